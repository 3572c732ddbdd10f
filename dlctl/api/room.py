"""One local record and open connections, which the objects of a program share."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Sequence

from dlctl.record import RecordStore
from dlctl.service.client import Client, open_site
from dlctl.service.pool import Pool
from dlctl.tell import Tell

_log = logging.getLogger("dlctl")
_lock = threading.Lock()
_rooms: dict[str, Client] = {}


class _Logged(Tell):
    """Send notes and warnings to the logger `dlctl`."""

    def note(self, text: str) -> None:
        if text:
            _log.info("%s", text)

    def warn(self, text: str) -> None:
        if text:
            _log.warning("%s", text)


def mine() -> Client:
    """Return what opens sites and knows the trainings of this user; one for each local record."""
    store = RecordStore(tell=_log.warning)
    with _lock:
        if (known := _rooms.get(str(store.path))) is None:
            pool = Pool(open_site)
            atexit.register(pool.close)
            known = _rooms[str(store.path)] = Client(store, _Logged(), pool=pool)
        return known


def site_named(site: str | None) -> str:
    """Return a site's name; that of `dlctl config site` if None."""
    from dlctl.settings import setting

    return site or setting("site")[0]


def listed(words: str | Sequence[str]) -> list[str]:
    """Return several words, of which one may stand alone."""
    return [words] if isinstance(words, str) else list(words)
