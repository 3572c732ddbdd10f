"""Find the newest checkpoint that is whole, and read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from learner.checkpoint import layout
from learner.checkpoint.layout import DamagedCheckpoint, Marker
from learner.checkpoint.tree import Packed
from learner.faults import UserFault


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, read."""

    directory: Path
    marker: Marker
    packed: Packed


def load_newest(root: Path, warn: Callable[[str], None]) -> Loaded | None:
    """Return the newest whole checkpoint, or None; damaged ones are skipped with a warning."""
    for step in layout.steps_present(root):
        directory = root / layout.directory_name(step)
        try:
            return _load(directory)
        except DamagedCheckpoint as damage:
            warn(f"the checkpoint {directory.name} is skipped: {damage}")
    return None


def _load(directory: Path) -> Loaded:
    marker = layout.read_marker(directory)
    for name, record in marker.files.items():
        if layout.checksum(directory / name) != record.crc32:
            raise DamagedCheckpoint(f"the content of {name} does not match its checksum")
    try:
        return Loaded(directory, marker, layout.read_state(directory / layout.STATE_FILE))
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise DamagedCheckpoint(f"{layout.STATE_FILE} can't be read ({error})") from error


def check_settings(found: dict[str, int], now: dict[str, int], directory: Path) -> None:
    """Refuse a checkpoint of another number of learners or another order of the data.

    Raises:
        UserFault: going on from it would not continue the same training.
    """
    if found.get("learners") != now["learners"]:
        raise UserFault(
            f"the checkpoint {directory.name} was written by {found.get('learners')} learners, "
            f"and this attempt has {now['learners']}",
            hint="resume with the same number; another one is for a later version of dlctl",
        )
    for name, value in now.items():
        if found.get(name) != value:
            raise UserFault(
                f"the checkpoint {directory.name} was written with {_WORDS[name]} "
                f"{found.get(name)}, and this attempt has {value}",
                hint="resume with the old value, or submit a new training that starts from the "
                "old one's model (framework.arguments.weights)",
            )


_WORDS = {
    "seed": "training.seed",
    "batch_size": "training.batch_size",
    "samples": "a number of training samples of",
}
