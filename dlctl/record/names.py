"""Find a training by the beginning or end of its id, by `@latest`, or by its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dlctl.errors import NoSuch

T = TypeVar("T")


def _counted_back(wanted: str, ids: Sequence[str]) -> str:
    """Return the training that `@latest`, or `@-2` for the one before it, means."""
    number = re.fullmatch(r"@(?:latest|-([1-9][0-9]*))", wanted)
    if number is None:
        raise NoSuch(f"{wanted!r} is no training",
                             hint="@latest is the newest, @-2 the one "
                          "before it")  # fmt: skip
    back = int(number[1] or 1)
    if back > len(ids):
        raise NoSuch(f"{wanted}: there are only {len(ids)} in the local record",
                          hint="`dlctl list` shows them all")  # fmt: skip
    return ids[-back]


def ids_fitting(wanted: str, ids: Sequence[str]) -> list[str]:
    """Return the id that this is; else those of this name, of this beginning, or of this end."""
    if wanted in ids:
        return [wanted]
    if named := [i for i in ids if wanted and i.rpartition("-")[0] == wanted]:
        return named
    return [i for i in ids if i.startswith(wanted)] or [i for i in ids if i.endswith(wanted)]


def only_fitting(
    wanted: str, ids: Sequence[str], noun: str, unknown: str, hint: str, hint_if_odd: str = ""
) -> str:
    """Return the only id that fits.

    Args:
        unknown: What is said if none does.
        hint_if_odd: What the hint says, too, if none is even near.

    Raises:
        NoSuch: there is none, or several.
    """
    found = ids_fitting(wanted, ids)
    if len(found) == 1:
        return found[0]
    if found:
        what = f"{wanted!r} fits {len(found)} {noun}s"
        raise NoSuch(what, hint=f"such as {', '.join(found[-5:])}")
    import difflib  # 4 ms, which a name that is found does not need

    near = difflib.get_close_matches(wanted, ids, 1, 0.75)
    raise NoSuch(unknown, hint=f"did you mean {near[0]}? {hint}" if near else hint + hint_if_odd)


def fitting(wanted: str, ids: Sequence[str]) -> str:
    """Return the training with this id, a beginning or end of it, or so many before the newest.

    Args:
        ids: Of all trainings, the newest last.

    Raises:
        NoSuch: there is none, or several.
    """
    if wanted.startswith("@"):
        return _counted_back(wanted, ids)
    return only_fitting(
        wanted, ids, "training", f"no training {wanted!r} is known here",
        "`dlctl list` shows them all",
        ", `dlctl adopt SITE` finds what another machine has submitted",
    )  # fmt: skip


def nearest(by_folder: Mapping[str, T], folder: Path) -> T:
    """Return what belongs to a folder, or to the nearest folder above it.

    Raises:
        NoSuch: there is none.
    """
    here = folder.resolve()
    for place in (here, *here.parents):
        if str(place) in by_folder:
            return by_folder[str(place)]
    raise NoSuch(
        f"no training was submitted from {here}",
        hint="name one (`dlctl list` shows them), or `dlctl submit manifest.yml`",
    )
