"""What the objects of a program share, and how they are found: one record, open connections."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlctl.record import RecordStore
from dlctl.service.client import Client, Filter
from dlctl.service.pool import Pool
from dlctl.tell import Tell

if TYPE_CHECKING:
    from dlctl.api.jobs import Search, Training
    from dlctl.lifecycle import Session

_log = logging.getLogger("dlctl")
_lock = threading.Lock()
_rooms: dict[str, Client] = {}


class _Logged(Tell):
    """What the commands print beside their answer goes to the logger `dlctl`."""

    def note(self, text: str) -> None:
        if text:
            _log.info("%s", text)

    def warn(self, text: str) -> None:
        if text:
            _log.warning("%s", text)


def _open(name: str) -> Session:
    from dlctl.lifecycle import open_session
    from dlctl.sites.files import load_site

    return open_session(load_site(name))


def mine() -> Client:
    """Return what opens sites and knows the trainings of this user; one for each local record."""
    store = RecordStore(tell=_log.warning)
    with _lock:
        if (known := _rooms.get(str(store.path))) is None:
            pool = Pool(_open)
            atexit.register(pool.close)
            known = _rooms[str(store.path)] = Client(store, _Logged(), pool=pool)
        return known


def site_named(site: str | None) -> str:
    """Return a site's name; that of `dlctl config site` if None."""
    from dlctl.settings import setting

    return site or setting("site")[0]


def trainings(
    *, name: str | None = None, state: str | Sequence[str] = (), tag: str | Sequence[str] = (),
) -> list[Training | Search]:  # fmt: skip
    """Return the trainings and searches that fit, the newest last; asks no site.

    Args:
        name: A pattern of the shell, such as `digits*`, for the name or the id.
        state: One or several states, as last known.
        tag: Tags that each has.

    Raises:
        Misused: a word is no state.
    """
    from dlctl.api.jobs import job_of

    states, tags = _listed(state), _listed(tag)
    known, wanted = mine(), Filter(name, states, tags)
    return [job_of(record, known) for record in known.store.all() if wanted.fits(record)]


def training(training_id: str | None = None) -> Training:
    """Return a training by its id, or a unique beginning or end of it.

    Args:
        training_id: None: the latest of the working directory.

    Raises:
        RecordError: there is none, or several.
    """
    from dlctl.api.jobs import Training

    known = mine()
    return Training(known.store.find(training_id), known)


def search_of(search_id: str | None = None) -> Search:
    """Return a search by its id, or a unique beginning or end of it.

    Args:
        search_id: None: the latest search of the working directory.

    Raises:
        RecordError: there is none, or several.
    """
    from dlctl.api.jobs import Search

    known = mine()
    return Search(known.store.find_search(search_id), known)


def _listed(words: str | Sequence[str]) -> list[str]:
    return [words] if isinstance(words, str) else list(words)
