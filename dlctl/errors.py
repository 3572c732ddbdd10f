"""Every error of the login side, as one tree; each family has an exit code.

    DlctlError                        1
    ├── Misused                       2   what was asked for makes no sense, as a wrong option
    ├── ManifestError                 3   manifest.yml is wrong
    │   └── BundleError                   the folder holds what can't or must not be sent
    ├── SiteError                     4   a site config is wrong or missing
    ├── PlanError                     5   the request fits no partition, or can't be planned
    ├── TransportError                6   the site can't be reached
    │   ├── ConnectError                  refused, no route, name unknown
    │   ├── AuthError                     no key or password was accepted
    │   ├── HostKeyError                  the host key is unknown or has changed
    │   ├── TransportTimeout              no answer in time
    │   ├── ConnectionLost                it broke while in use
    │   ├── TransferError                 what arrived is not what was sent
    │   └── RemoteCommandError            a command on the site failed
    ├── SchedulerError                7
    │   ├── SubmitRejected                the scheduler said no: nothing was submitted
    │   ├── SubmitUnknown                 the answer was lost: the job may exist, look it up
    │   └── SchedulerUnavailable          the controller does not answer
    ├── RecordError                  11   a training, or this machine, is not in a state for it
    │   ├── NoSuch                    8   no training, search or model has this name, or several do
    │   ├── HasEnded                      nothing is left to end
    │   └── NotWritten                    the disk here is full, or the local record is locked
    ├── ResultsError                  9   nothing to fetch, or what came back is damaged
    ├── TrainingFailed                10  the training was followed and ended FAILED or CANCELLED
    └── TimeIsUp                     124  what was waited for has not come in time

A message is one sentence with three parts: what was seen, where, and what to do next (`hint`).
Exit code 2 is a wrong command line, 130 is Ctrl-C, and 1 alone is a fault in dlctl itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlctl.contract.ground.hinted import HintedError

ELSEWHERE = (
    "make room there and check that you may write it, or set XDG_CONFIG_HOME to a folder elsewhere"
)
"""What to do where a file of the user's settings can't be written."""


class DlctlError(HintedError):
    """An error whose text an end user can understand."""

    exit_code = 1
    _HEAD = ""


class Misused(DlctlError):
    """The request makes no sense; the command line shows it as a wrong option."""

    exit_code = 2

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class ManifestError(DlctlError):
    """manifest.yml is wrong. `problems` holds one line for each fault, all of them."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "", problems: list[str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems or [message]


class BundleError(ManifestError):
    """The user's folder holds something that can't or must not be sent."""


class SiteError(DlctlError):
    """A site config is wrong, missing, or exists already."""

    exit_code = 4


class PlanError(DlctlError):
    """The request can't be planned; says why for each partition."""

    exit_code = 5


class TransportError(DlctlError):
    """The site can't be reached. Never a state of a job."""

    exit_code = 6
    transient = False
    """Whether trying again may help."""


class ConnectError(TransportError):
    """No connection: refused, no route, name unknown."""

    transient = True


class AuthError(TransportError):
    """No key, password or answer was accepted."""


class HostKeyError(TransportError):
    """The host key is unknown or has changed."""


class TransportTimeout(TransportError):
    """No answer in time."""

    transient = True


class ConnectionLost(TransportError):
    """The connection broke while it was in use."""

    transient = True


class TransferError(TransportError):
    """The received bytes differ from those that were sent."""


class RemoteCommandError(TransportError):
    """A command on the site failed; the message has its exit code and last error lines."""


class SchedulerError(DlctlError):
    """The scheduler refused, or its answer is unusable."""

    exit_code = 7


class SubmitRejected(SchedulerError):
    """The scheduler said no. Nothing was submitted."""


class SubmitUnknown(SchedulerError):
    """The answer was lost: the job may exist. Looked up by its token, never sent again blindly."""


class SchedulerUnavailable(SchedulerError):
    """The scheduler's controller does not answer."""


class RecordError(DlctlError):
    """A training, or what is kept here, is in the wrong state for the command."""

    exit_code = 11


class NoSuch(RecordError):
    """Nothing has the name that was given, or several things do."""

    exit_code = 8


class NotWritten(RecordError):
    """This machine can't keep what it has to, as on a full disk."""


class HasEnded(RecordError):
    """A training has ended, and so there is nothing to end."""


class ResultsError(DlctlError):
    """There is nothing to fetch, or what was fetched is damaged."""

    exit_code = 9


class TrainingFailed(DlctlError):
    """The training that was followed ended FAILED or CANCELLED."""

    exit_code = 10


class TimeIsUp(DlctlError):
    """The time to wait is over, and the trainings go on."""

    exit_code = 124


_ALLOWED = {
    "int_parsing": "a whole number is allowed",
    "int_type": "a whole number is allowed",
    "int_from_float": "a whole number is allowed",
    "int_parsing_size": "a smaller number is allowed",
    "bool_parsing": "true or false is allowed",
    "bool_type": "true or false is allowed",
    "float_parsing": "a number is allowed",
    "float_type": "a number is allowed",
    "finite_number": "a finite number is allowed",
    "string_type": "text is allowed",
    "list_type": "a list is allowed",
    "dict_type": "keys with values, `KEY: value`, are allowed",
    "model_type": "keys with values, `KEY: value`, are allowed",
    "model_attributes_type": "keys with values, `KEY: value`, are allowed",
    "too_short": "text that is not empty is allowed",
    "string_too_short": "text that is not empty is allowed",
}
_BOUNDS = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}


def in_words(fault: Mapping[str, Any], value: str) -> str:
    """Return what pydantic finds wrong with a value, as a sentence says it.

    Args:
        value: as a message may show it.
    """
    kind, text = fault["type"], str(fault["msg"])
    if kind in ("value_error", "contradiction"):
        return text.removeprefix("Value error, ")
    if kind == "union_tag_invalid":
        tag, allowed = fault["ctx"]["tag"], fault["ctx"]["expected_tags"]
        key = fault["ctx"]["discriminator"].strip("'")
        return f"{key}: {tag!r} is not allowed; {allowed} are"
    if kind in _BOUNDS:
        return f"{value} is out of bounds; {_BOUNDS[kind].format(**fault['ctx'])} is allowed"
    other = f"{text.removeprefix('Input should be ').partition(', unable')[0]} is allowed"
    return f"{value} is not allowed; {_ALLOWED.get(kind, other)}"
