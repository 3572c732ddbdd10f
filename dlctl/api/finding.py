"""Find trainings and searches."""

from __future__ import annotations

from collections.abc import Sequence

from dlctl.api.jobs import Training
from dlctl.api.room import listed, mine
from dlctl.api.searches import Search
from dlctl.service.client import Filter


def trainings(
    *, name: str | None = None, state: str | Sequence[str] = (), tag: str | Sequence[str] = (),
) -> list[Training]:  # fmt: skip
    """Return the trainings and searches that fit, the newest last; asks no site.

    A search is a `Search`.

    Args:
        name: A pattern of the shell, such as `digits*`, for the name or the id.
        state: One or several states, as last known.
        tag: Tags that each has.

    Raises:
        Misused: a word is no state.
    """
    states, tags = listed(state), listed(tag)
    known, wanted = mine(), Filter(name, states, tags)
    return [(Search if record.is_search else Training)(record, known)
            for record in known.store.all() if wanted.fits(record)]  # fmt: skip


def searches(
    *, name: str | None = None, state: str | Sequence[str] = (), tag: str | Sequence[str] = (),
) -> list[Search]:  # fmt: skip
    """Return the searches that fit, as `trainings` does."""
    found = trainings(name=name, state=state, tag=tag)
    return [each for each in found if isinstance(each, Search)]


def training(training_id: str | None = None) -> Training:
    """Return a training by its id, or a unique beginning or end of it.

    Args:
        training_id: None: the latest of the working directory.

    Raises:
        RecordError: there is none, or several.
    """
    known = mine()
    return Training(known.store.find(training_id), known)


def search_of(search_id: str | None = None) -> Search:
    """Return a search by its id, or a unique beginning or end of it.

    Args:
        search_id: None: the latest search of the working directory.

    Raises:
        RecordError: there is none, or several.
    """
    known = mine()
    return Search(known.store.find_search(search_id), known)
