"""Sites: where trainings run. Validated models, which know no transport and no Slurm command.

A site is a YAML file: the user's own in `$XDG_CONFIG_HOME/dlctl/sites/NAME.yml`, else one that is
shipped in `site_configs/`. Adding a site means adding a file: no site's name is in this code.
`dlctl.sites.files` finds, reads and writes the files.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dlctl.contract import STARTERS
from dlctl.contract.ground.safe_text import has_credential
from dlctl.contract.launchers import LAUNCHERS, SITE_LAUNCHERS
from dlctl.scheduler import SCHEDULERS, scheduler_class
from dlctl.scheduler.sbatch import refusal
from dlctl.units import parse_duration, parse_size

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""A site's name is a file name, a word on the command line and a word in comments of scripts."""
_INTERFACE_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_.@-]{0,14}")
"""Linux allows 15 characters."""
_HOST_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NODE_MTBF_S = 30 * 86400
"""Deliberately cautious: 150 to 430 days were reported for clusters of GPU nodes (Kokolis et al.,
"Revisiting Reliability in Large-Scale Machine Learning Research Clusters", 2024). The interval
grows with its square root, and preemptions and a user's own mistakes are failures, too."""
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def _line(value: Any) -> Any:
    """Accept `account: 12345`; refuse text that would not stay on one line of a script."""
    text = getattr(value, "text", value)  # a number as it was written
    if isinstance(text, str) and _CONTROL_CHARACTERS.search(text):
        raise ValueError("one line without control characters is allowed")
    return text


def _words(value: Any) -> Any:
    """Accept `-l walltime=1` for a list of words, as a shell user writes it."""
    return shlex.split(value) if isinstance(value, str) else value


def _list(value: Any) -> Any:
    """Accept one version for a list of them."""
    return value if isinstance(value, list) else [value]


def _texts(value: Any) -> Any:
    """Accept `OMP_NUM_THREADS: 1`."""
    if not isinstance(value, dict):
        return value
    return {name: getattr(item, "text", item) for name, item in value.items()}


def _size(value: Any) -> Any:
    text = getattr(value, "text", value)
    return parse_size(text) if isinstance(text, str) else value


def _duration(value: Any) -> Any:
    text = getattr(value, "text", value)
    if isinstance(text, str) and text.strip().lower() in ("unlimited", "infinite"):
        return None
    return parse_duration(text) if isinstance(text, str) else value


def _closes_quotes(text: str) -> bool:
    """Return whether each quotation mark of shell text has its end, as far as this can tell."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return "<<" in text or "$'" in text  # a text of its own, which shlex does not know
    return True


def _host(text: str) -> str:
    """Return the name of a host, an address or a network as it is compared."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_network(text, strict=False))
    if not _HOST_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r}: a host's name, an address, or addresses as 10.1.0.0/16, "
                         "are allowed")  # fmt: skip
    return text.lower().rstrip(".")


Line = Annotated[str, BeforeValidator(_line)]
Versions = Annotated[list[Line], BeforeValidator(_list)]
Words = Annotated[list[Line], BeforeValidator(_words)]


class TransportSettings(_Settings):
    """The way to the site."""

    kind: Literal["ssh", "openssh", "local"]
    """`openssh`: the system's ssh, whose connection stays. `ssh`: paramiko, one a command."""
    host: Line | None = Field(default=None, min_length=1)
    """A host name, an address, or an alias of `~/.ssh/config`. Not for `local`."""
    user: Line | None = Field(default=None, min_length=1)
    """None: what `~/.ssh/config` says, else this machine's user name."""
    port: int | None = Field(default=None, ge=1, le=65535)
    connect_timeout_s: float = Field(default=15.0, gt=0, le=600)
    keepalive_s: float = Field(default=30.0, ge=0, le=3600)
    """Seconds between keep-alive messages; 0 sends none."""
    persist_s: Annotated[int, BeforeValidator(_duration)] = Field(
        default=12 * 3600, alias="persist", gt=0
    )
    """Kind `openssh`: how long the connection stays after the last command."""

    @model_validator(mode="after")
    def _host_goes_with_ssh(self) -> TransportSettings:
        if self.kind != "local" and not self.host:
            raise ValueError(f"kind {self.kind} needs a host")
        if self.kind != "local" and str(self.host).startswith("-"):
            raise ValueError("a host does not start with '-'")
        if self.kind == "local" and (self.host or self.user or self.port):
            raise ValueError("kind local takes no host, user or port")
        return self


class SchedulerSettings(_Settings):
    """Which batch scheduler, and the options of every job."""

    kind: Literal[tuple(SCHEDULERS)]  # type: ignore[valid-type]
    path: Line | None = None
    """Folder of Slurm's commands, if they are not on the PATH of a non-login shell."""
    account: Line | None = None
    qos: Line | None = None
    partition: Line | None = None
    """The partition (or a comma-separated list) of jobs that name none."""
    extra: Words = []
    """Further sbatch options of every job."""
    accounting: bool = True
    """Whether sacct answers here."""
    next_attempt: list[Literal[STARTERS]] = list(STARTERS)  # type: ignore[valid-type]
    """Who may start the next attempt of a training, in order of preference."""
    cpus: int | None = Field(default=None, ge=1)
    """Kind local: how many CPUs all jobs together may use; None: all of the machine's."""

    @property
    def allocates(self) -> bool:
        """Return whether the scheduler gives out nodes; else it is one machine's queue."""
        return bool(scheduler_class(self.kind).allocates)

    @model_validator(mode="after")
    def _cpus_goes_with_local(self) -> SchedulerSettings:
        if self.cpus is not None and self.kind != "local":
            raise ValueError("cpus is for kind local; for Slurm, set it in partitions")
        return self

    @field_validator("extra")
    @classmethod
    def _options(cls, value: list[str]) -> list[str]:
        for why_not in filter(None, map(refusal, value)):
            raise ValueError(why_not)
        return value

    @field_validator("path")
    @classmethod
    def _absolute_path(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("an absolute path is allowed")
        return value


class LauncherSettings(_Settings):
    """The launcher of a job's learners."""

    kind: Literal[SITE_LAUNCHERS]  # type: ignore[valid-type]
    mpi: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_]+$")
    """srun's `--mpi`: `pmix`, `pmi2`, `none`, …; None leaves it to the site's MpiDefault."""
    executable: Line | None = None
    """The program, if dlctl would find the wrong one by itself."""
    extra: Words = []
    """Further options of the launcher."""


class EnvironmentSettings(_Settings):
    """The Python of the nodes, and what has to happen before it starts."""

    python: Line | None = None
    """Absolute path on the site; `auto` is the Python that runs dlctl (local transport only);
    None until `dlctl sites setup` has made one."""
    modules: list[Line] = []
    """Environment modules to load, in order."""
    setup: list[str] = []
    """Shell lines, run as they are, after the modules."""
    container: Words = []
    """The prefix of preflight and learners, e.g. `apptainer exec image.sif`."""
    variables: Annotated[dict[str, str], BeforeValidator(_texts)] = {}
    """Environment variables of every job. Never a secret."""
    pip: Words = []
    """Options of pip, e.g. `--find-links DIR` or `--index-url URL`: in `dlctl sites setup`, and for
    the requirements of manifests."""

    @field_validator("setup", mode="before")
    @classmethod
    def _setup_lines(cls, value: Any) -> Any:
        return value.splitlines() if isinstance(value, str) else value

    @field_validator("setup")
    @classmethod
    def _closed_quotes(cls, value: list[str]) -> list[str]:
        if not _closes_quotes("\n".join(value)):
            line = next((line for line in value if not _closes_quotes(line)), value[-1])
            raise ValueError(f"a quotation mark is never closed: {line}")
        return value

    @field_validator("pip", "variables")
    @classmethod
    def _no_credential(cls, value: Any) -> Any:
        if any(map(has_credential, value.values() if isinstance(value, dict) else value)):
            raise ValueError(
                "a URL has a user or a token, and everybody on the site can read it; put that into "
                "~/.netrc or pip's own file there (chmod 600), and leave it out of the URL"
            )
        return value

    @field_validator("variables")
    @classmethod
    def _variable_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _VARIABLE_PATTERN.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name of an environment variable")
        return value

    @field_validator("python")
    @classmethod
    def _python_path(cls, value: str | None) -> str | None:
        if value is not None and value != "auto" and not value.startswith("/"):
            raise ValueError("an absolute path, auto or null is allowed")
        return value


class NamedEnvironment(EnvironmentSettings):
    """An environment of its own for the learners' program, beside dlctl's own Python.

    Only a framework with the built-in loop needs dlctl's packages in it.
    """

    frameworks: Annotated[dict[str, Versions], BeforeValidator(_texts)]
    """Framework → its versions here, and image tags that mean this environment."""

    @model_validator(mode="after")
    def _own_path(self) -> NamedEnvironment:
        if self.python == "auto":
            raise ValueError("python: an absolute path or null is allowed")
        return self


class Partition(_Settings):
    """The limits of one partition; None is unknown or unlimited."""

    nodes: int | None = Field(default=None, ge=0)
    """How many nodes it has."""
    cpus_per_node: int | None = Field(default=None, ge=1)
    memory_bytes_per_node: Annotated[int | None, BeforeValidator(_size)] = Field(
        default=None, alias="memory_per_node", ge=1
    )
    """In the file `memory_per_node: 192GiB`."""
    gpus_per_node: int = Field(default=0, ge=0)
    gpu_type: Line | None = None
    """Slurm's word, e.g. `a100`."""
    max_time_s: Annotated[int | None, BeforeValidator(_duration)] = Field(
        default=None, alias="max_time", ge=1
    )
    """In the file `max_time: 2d`, or Slurm's `2-00:00:00`."""
    max_nodes: int | None = Field(default=None, ge=1)
    """Per job."""
    default: bool = False


class Failures(_Settings):
    """The site's rate of failures: the input of `checkpoint.every: auto`."""

    node_mtbf_s: Annotated[int | None, BeforeValidator(_duration)] = Field(
        default=NODE_MTBF_S, alias="node_mtbf", ge=1
    )
    """Mean time between failures of one node, in the file `node_mtbf: 30d`; None is never."""


class Price(_Settings):
    """The price of an hour: `dlctl report` adds it up."""

    node_hour: float = Field(default=0.0, ge=0)
    gpu_hour: float = Field(default=0.0, ge=0)
    currency: Line = ""


class Site(_Settings):
    """One validated site."""

    name: str
    transport: TransportSettings
    root: Line
    """Absolute path of the site's directory for jobs, runtimes and stored code."""
    scheduler: SchedulerSettings
    partitions: dict[str, Partition] = {}
    """If empty, they are unknown, and nothing is refused before submission."""
    launcher: LauncherSettings
    environment: EnvironmentSettings
    environments: dict[str, NamedEnvironment] = {}
    """Further ones, which `framework.version` or `image_tag` of a manifest selects."""
    network: Line | None = None
    """What parameter servers on several nodes talk through: an interface, or addresses as
    10.1.0.0/16. None: the address that a node's own name resolves to."""
    endpoints: Annotated[dict[str, str], BeforeValidator(_texts)] = {}
    """Addresses of data stores that the site reaches in another way: from → to."""
    data_via: Literal["node", "login", "laptop"] = "node"
    """Who moves the data of data stores with scripts: the job's first node, or before the job the
    login node or the user's machine."""
    cache_limit_bytes: Annotated[int | None, BeforeValidator(_size)] = Field(
        default=None, alias="cache_limit", ge=0
    )
    """How much data of stores the site keeps for later trainings, in the file `cache_limit:
    500GB`; None: as much as there is room."""
    failures: Failures = Failures()
    webhook_hosts: list[Annotated[str, AfterValidator(_host)]] = []
    """Names, addresses and networks that webhooks may reach although they are private, or by http
    without TLS."""
    price: Price | None = None
    """None: unknown, or free of charge."""
    share: Literal["group"] | None = None
    """Who beside the user may read what dlctl and its jobs write at the site; None: nobody."""

    @field_validator("name")
    @classmethod
    def _safe_name(cls, value: str) -> str:
        if not NAME_PATTERN.fullmatch(value):
            raise ValueError(NAME_RULE)
        return value

    @field_validator("root")
    @classmethod
    def _absolute_root(cls, value: str, info: ValidationInfo) -> str:
        transport = info.data.get("transport")
        local = isinstance(transport, TransportSettings) and transport.kind == "local"
        root = expand_local(value) if local else value
        if not root.startswith("/"):
            allowed = "an absolute path" + (", or one below ~ or $XDG_DATA_HOME" if local else "")
            raise ValueError(f"{allowed} is allowed")
        root = os.path.normpath(root)
        if root.strip("/") == "":
            raise ValueError("a directory of its own is allowed, not /")
        return root

    @field_validator("network")
    @classmethod
    def _network(cls, value: str | None) -> str | None:
        if value is None or _INTERFACE_PATTERN.fullmatch(value):
            return value
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError:
            allowed = "the name of an interface, or addresses as 10.1.0.0/16, are allowed"
            raise ValueError(f"{value!r}: {allowed}") from None
        return value

    @model_validator(mode="after")
    def _parts_agree(self) -> Site:
        if self.environment.python == "auto" and self.transport.kind != "local":
            raise ValueError("environment.python: auto works only with the local transport")
        launcher = LAUNCHERS[self.launcher.kind]
        if launcher.scheduler not in ("", self.scheduler.kind):
            raise ValueError(f"launcher.kind: {launcher.kind} works only with the scheduler "
                             f"{launcher.scheduler}")  # fmt: skip
        defaults = [name for name, partition in self.partitions.items() if partition.default]
        if len(defaults) > 1:
            raise ValueError(f"partitions: one default is allowed, seen {', '.join(defaults)}")
        return self

    @property
    def umask(self) -> int:
        """Return the permissions that nothing gets that dlctl and its jobs write at the site."""
        return 0o027 if self.share == "group" else 0o077

    @property
    def default_partition(self) -> str | None:
        """Return the partition of jobs that name none: the setting, else Slurm's default."""
        if self.scheduler.partition:
            return self.scheduler.partition
        return next((name for name, limits in self.partitions.items() if limits.default), None)


NAME_RULE = "letters, digits, '.', '_' and '-' are allowed, at most 63, the first a letter or digit"


def expand_local(path: str) -> str:
    """Return `path` with a leading `~` or `$XDG_DATA_HOME` replaced by this machine's."""
    for written in ("$XDG_DATA_HOME", "${XDG_DATA_HOME}"):
        if path == written or path.startswith(written + "/"):
            return str(xdg_directory("XDG_DATA_HOME", ".local/share")) + path[len(written) :]
    return str(Path(path).expanduser()) if path.startswith("~") else path


def xdg_directory(variable: str, default: str) -> Path:
    """Return a base directory of the XDG specification, which says to ignore relative values."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / default
