"""What the commands about stored models share: what a person said, a question, a new version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import open_record

if TYPE_CHECKING:
    from dlctl.contract import ModelVersion
    from dlctl.lifecycle import Session
    from dlctl.models.create import Wish
    from dlctl.models.known import KnownModel


def confirmed(model: KnownModel, number: int | None) -> bool:
    """Ask at the terminal.

    Raises:
        typer.BadParameter: there is none.
    """
    versions = f"{len(model.numbers)} versions" if len(model.numbers) > 1 else "its one version"
    what = f"{model.model_id}@{number}" if number else f"{model.model_id} with {versions}"
    return output.agreed(f"delete {what} from {model.site}?", "dlctl models delete")


def seconds(text: str) -> int:
    """Return what --older-than means.

    Raises:
        typer.BadParameter: it is no duration.
    """
    from dlctl.units import parse_duration

    if text in ("0", "0s"):
        return 0
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"--older-than: {error}") from None


def one_source(folder: Path | None, training_id: str | None, *, needed: bool) -> None:
    """Refuse two sources for a version, or none where one is needed."""
    if folder and training_id:
        raise typer.BadParameter("name a folder or --from a training, not both")
    if needed and not (folder or training_id):
        raise typer.BadParameter("name a folder, or --from TRAINING")


def said(
    name: str, tags: list[str] | None, aliases: list[str] | None, description: str | None
) -> Wish:
    """Return what a person has said about a version.

    Raises:
        RecordError: a word can't be a tag or an alias.
    """
    from dlctl.models.create import Wish
    from dlctl.models.reference import check_alias, check_word

    return Wish(name, [check_word(tag, "a tag") for tag in tags or []],
                [check_alias(alias) for alias in aliases or []], description)  # fmt: skip


def make(
    session: Session, wish: Wish, folder: Path | None, training_id: str | None, results: str
) -> ModelVersion:
    """Store a version."""
    from dlctl.errors import RecordError
    from dlctl.models.create import from_folder, from_training

    if training_id is None:
        assert folder is not None
        with output.progress("sending") as on_progress:
            return from_folder(session, folder, wish, on_progress, output.note)
    training = open_record().find(training_id)
    if training.site != session.site.name:
        raise RecordError(
            f"{training.training_id} is at {training.site}, and the model at {session.site.name}",
            hint="dlctl models create --from makes a model at the training's site",
        )
    from dlctl.lifecycle import refresh

    return from_training(session, refresh(session, [training], open_record())[0], wish, results)
