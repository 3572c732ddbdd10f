"""Change what may change about a model, delete versions, and remove contents that nobody needs."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import RecordError, RemoteCommandError
from dlctl.files.site_folders import UNSAFE, begin_in_root, explained, refusal
from dlctl.models.known import KnownModel
from dlctl.script_templates import render_script

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import RecordStore
    from dlctl.transport.base import Completed

_TIMEOUT_S = 3600.0
_CHANGED = 81


@dataclass(frozen=True)
class Changes:
    """Changes of a model, besides its versions."""

    aliases: Sequence[str] = ()
    """They begin to mean `number`."""
    number: int = 0
    tags: Sequence[str] = ()
    removed_tags: Sequence[str] = ()
    removed_aliases: Sequence[str] = ()
    description: str | None = None


def change(session: Session, model: KnownModel, changes: Changes) -> None:
    """Write the changes; each of them is whole at any moment.

    Raises:
        RecordError: an alias or a tag that is to go is not there.
        TransportError
    """
    refuse_unknown(model, changes)
    lines = [f"say {contract.MODEL_ALIASES} {word} {changes.number}" for word in changes.aliases]
    lines += [f"say {contract.MODEL_TAGS} {word} {word}" for word in changes.tags]
    lines += [f"rm -f {contract.MODEL_TAGS}/{word}" for word in changes.removed_tags]
    lines += [f"rm -f {contract.MODEL_ALIASES}/{word}" for word in changes.removed_aliases]
    if changes.description is not None:
        text = shlex.quote(contract.json_text(changes.description))
        lines.append(f"say . {contract.MODEL_DESCRIPTION} {text}")
    still_there = f"[ -f {changes.number}.json ] || exit {_CHANGED}" if changes.aliases else ""
    token = secrets.token_hex(8)
    _run_in(session, model, f"""\
{still_there}
say() {{ # folder, name, text: replaces the file whole
    mkdir -p "$1" && printf '%s\\n' "$3" >"$1/.$2.{token}" &&
        mv -f "$1/.$2.{token}" "$1/$2" || exit 1
}}
{chr(10).join(lines)}
{still_there}
exit 0""")  # fmt: skip


def refuse_unknown(model: KnownModel, changes: Changes) -> None:
    """Refuse to take away what is not there.

    Raises:
        RecordError
    """
    for gone, known, what in ((changes.removed_tags, model.tags, "tag"),
                              (changes.removed_aliases, list(model.aliases), "alias")):  # fmt: skip
        if missing := [word for word in gone if word not in known]:
            raise RecordError(
                f"the model {model.model_id} has no {what} {missing[0]}",
                hint=f"dlctl models show {model.model_id}",
            )


def check_unused(
    session: Session, models: list[KnownModel], model: KnownModel, number: int | None,
    store: RecordStore,
) -> None:  # fmt: skip
    """Refuse to delete a version that something refers to; without a number, the whole model.

    Raises:
        RecordError: names all that refers to it.
        TransportError
    """
    numbers = model.numbers if number is None else [number]
    if number is not None and numbers == model.numbers:
        raise RecordError(
            f"{model.model_id}@{number} is the only version of its model",
            hint=f"dlctl models delete {model.model_id}",
        )
    reasons = [] if number is None else _aliases(model, number)
    reasons += _children(models, model, numbers)
    reasons += _trainings(session, model, numbers, store)
    if reasons:
        what = model.model_id if number is None else f"{model.model_id}@{number}"
        raise RecordError(
            f"{what} can't be deleted: {'; '.join(said for said, _ in reasons)}",
            hint="; ".join(dict.fromkeys(todo for _, todo in reasons)),
        )


def delete(session: Session, model: KnownModel, number: int | None) -> None:
    """Delete a version of a model, or without a number the model with all of its versions.

    A number is never given again, and the contents stay until `dlctl models gc`.

    Raises:
        RecordError: a version or a use has come or gone since the model was read.
        TransportError
    """
    script = _delete_model(model) if number is None else _delete_version(model, number)
    # A training that is being submitted first leaves a mark, then looks for the version.
    _run_in(session, model, f"""\
same() {{ # versions: whether these are all that there are, and no use has come or gone
    uses=$(ls {contract.MODEL_USES} 2>/dev/null) left=$(ls *.json 2>/dev/null)
    [ "$uses" = {shlex.quote(chr(10).join(model.uses))} ] && [ "$left" = "$1" ]
}}
{script}""")  # fmt: skip


def _delete_version(model: KnownModel, number: int) -> str:
    return f"""\
mv {number}.json {number}.deleted || exit 1
same {_listed(model, without=number)} &&
    ! cat {contract.MODEL_ALIASES}/* 2>/dev/null | grep -qx {number} ||
    {{ mv {number}.deleted {number}.json; exit {_CHANGED}; }}"""


def _delete_model(model: KnownModel) -> str:
    """Return the lines that delete a model: what comes to it later, fails, because it is not there.

    `dlctl models gc` finishes or undoes a deletion that was killed: the folder's name says which.
    """
    here, aside, gone = (
        f"{where}{model.model_id}"
        for where in (f"{contract.MODEL_VERSIONS.rpartition('/')[2]}/", ".deleting.", ".deleted.")
    )
    return f"""\
touch . && cd ../.. && mv {here} {aside} || exit 1
(cd {aside} && same {_listed(model)}) || {{ mv {aside} {here}; exit {_CHANGED}; }}
mv {aside} {gone} && rm -rf -- {gone}"""


def _listed(model: KnownModel, without: int = 0) -> str:
    """Return what `ls *.json` prints, as a word of a shell: sorted as text."""
    names = sorted(f"{number}.json" for number in model.numbers if number != without)
    return shlex.quote("\n".join(names))


def _aliases(model: KnownModel, number: int) -> list[tuple[str, str]]:
    return [
        (f"it is @{alias}",
         f"move the alias (dlctl models update {model.model_id}@N --alias {alias}), or remove it: "
         f"dlctl models update {model.model_id} --remove-alias {alias}")
        for alias, its_number in sorted(model.aliases.items()) if its_number == number
    ]  # fmt: skip


def _children(
    models: list[KnownModel], model: KnownModel, numbers: list[int]
) -> list[tuple[str, str]]:
    mine = {f"{model.model_id}@{number}" for number in numbers}
    children = [
        version.label for each in models for version in map(each.version, each.numbers)
        if version.parent in mine and version.label not in mine
    ]  # fmt: skip
    return [(f"{child} was made from it", f"dlctl models delete {child}") for child in children]


def _trainings(
    session: Session, model: KnownModel, numbers: list[int], store: RecordStore
) -> list[tuple[str, str]]:
    """Return the trainings that use a version and have not ended, each with what to do."""
    from dlctl.lifecycle import refresh

    uses = [use.partition(".")[::2] for use in model.uses]
    ids = sorted({training_id for number, training_id in uses if int(number) in numbers})
    mine = {record.training_id: record for record in store.all() if record.training_id in ids}
    known = {r.training_id: r.state for r in refresh(session, list(mine.values()), store)}
    others = _running(session, [training_id for training_id in ids if training_id not in known])
    return [
        (f"the training {each} uses it and is {known.get(each, 'not known to have ended')}",
         f"dlctl cancel {each}, or wait until it has ended")
        for each in ids if each in others or not known.get(each, State.COMPLETED).final
    ]  # fmt: skip


def _running(session: Session, training_ids: list[str]) -> set[str]:
    """Return which trainings that this machine does not know have no verdict yet."""
    if not training_ids:
        return set()
    end = _run(session, f"""\
for id in {" ".join(map(shlex.quote, training_ids))}; do
    cd "jobs/$id/attempts" 2>/dev/null || continue # it was deleted
    newest=$(ls | sort -n | tail -n 1)
    [ -f "$newest/verdict.json" ] || echo "$id"
    cd ../../..
done
exit 0""")  # fmt: skip
    return set(end.text.split())


def _run_in(session: Session, model: KnownModel, script: str) -> None:
    """Run a script in a model's folder.

    Raises:
        RecordError: the script, or that there is no such folder, says that the model has changed.
        TransportError
    """
    name, folder = session.transport.name, f"{contract.MODEL_VERSIONS}/{model.model_id}"
    end = _run(session, f"cd {folder} || exit {_CHANGED}\n{script}")
    if end.exit_code == _CHANGED:
        raise RecordError(
            f"{name}: the model {model.model_id} has changed at this moment",
            hint="look at it and try again: dlctl models show " + model.model_id,
        )
    if end.exit_code:
        raise explained(session.transport, session.site.root, end)


@dataclass(frozen=True)
class Collected:
    """The versions that `dlctl models gc` has removed, or would remove."""

    blobs: int
    size_bytes: int
    removed: bool


def collect_garbage(session: Session, older_than_s: int, *, dry_run: bool = False) -> Collected:
    """Remove the contents that no version refers to, and what unfinished creates have left.

    What is younger than `older_than_s` stays, because a version that needs it may be in the making.
    A content is first moved aside. If a create has renewed its time since this began, it goes back;
    the create finds it missing in between, and sends it again.

    Raises:
        TransportError
    """
    old = f"-mmin +{-(-older_than_s // 60) - 1}" if older_than_s else ""
    end = _run(session, render_script("login/model_gc.sh.j2", old=old, dry_run=dry_run))
    words = end.text.split()
    if end.exit_code or len(words) != 2:
        raise RemoteCommandError(
            f"{session.transport.name}: what no model needs can't be removed: "
            f"{end.last_error_line}",
            hint="check the space and the permissions there",
        )
    return Collected(int(words[0]), int(words[1]), not dry_run)


def _run(session: Session, script: str) -> Completed:
    """Run a script in the root folder, which must be the user's alone.

    Raises:
        RemoteCommandError: it is not.
    """
    whole = f"{begin_in_root(session.site.root, session.site.umask)}\n{script}"
    end = session.transport.run(whole, timeout_s=_TIMEOUT_S)
    if end.exit_code == UNSAFE:
        raise refusal(session.transport.name, end)
    return end
