"""Write trainings into one HTML file that opens without a server and without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import __version__
from dlctl.contract.search import FRAMEWORK
from dlctl.dashboard.curves import KINDS, Wanted, curves
from dlctl.dashboard.feed import Unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlctl.dashboard.curves import Json
    from dlctl.dashboard.live import LiveFeed

_STATIC = Path(__file__).with_name("static")
_WIDTH = 1500
"""Columns of a curve: as far as one can zoom in."""
LOG_LINES = 200
"""Lines of the newest attempt of each training."""
_BY_KIND = ("span", "problem", "events", "attempts")
_IMPORT = re.compile(r"^import\s[^;]*?from\s+'\./(?P<name>[\w.]+)';\n", re.MULTILINE)


def report(feed: LiveFeed, training_ids: Sequence[str] = ()) -> str:
    """Return the file's text.

    Args:
        training_ids: all trainings if empty.

    Raises:
        Unknown: there is no such training.
    """
    rows = [row for row in feed.trainings() if not training_ids or row["id"] in training_ids]
    data = _empty() | {"trainings": rows}
    for training_id in training_ids or [row["id"] for row in rows]:
        data["details"][training_id] = feed.details(training_id)
        if is_search(data["details"][training_id]):
            with suppress(Unknown):
                data["searches"][training_id] = feed.search(training_id)
        data["curves"][training_id] = _all_curves(feed, training_id)
        data["logs"][training_id] = feed.log_tail(training_id, LOG_LINES)
    return _page(data)


def search_report(page: Json) -> str:
    """Return a file's text that shows one search alone.

    Args:
        page: what `dlctl.search.page` makes.
    """
    search_id = page["id"]
    return _page(_empty() | {"searches": {search_id: page}, "first": f"#/search/{search_id}"})


def is_search(details: Json) -> bool:
    """Return whether a training is the hub of a search, by its record or its plan."""
    framework = (details.get("plan") or {}).get("framework") or {}
    return bool(details.get("is_search")) or framework.get("name") == FRAMEWORK


def _empty() -> Json:
    return {
        "made_at": time.time(), "version": __version__, "trainings": [], "details": {},
        "curves": {}, "logs": {}, "searches": {},
    }  # fmt: skip


def _all_curves(feed: LiveFeed, training_id: str) -> Json:
    """Return the curves by step; those by epoch and time share all but `x`."""
    with feed.run(training_id) as run:
        by_kind = {kind: curves(run, Wanted(kind, width=_WIDTH)) for kind in KINDS}
    whole = by_kind.pop("step")
    for kind, other in by_kind.items():
        whole[kind] = {name: other[name] for name in _BY_KIND}
        whole[kind]["columns"] = other["curves"]
    return whole


def _page(data: Json) -> str:
    """Return the page with everything in it; its policy allows these scripts and nothing else."""
    library = (_STATIC / "vendor/uPlot.iife.min.js").read_text()
    program = bundle("main.js")
    style = (_STATIC / "vendor/uPlot.min.css").read_text() + (_STATIC / "style.css").read_text()
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(program)}; "
        f"style-src {_hash(style)}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    text = (_STATIC / "index.html").read_text()
    head, rest = text.split("<!-- loaded -->")
    _, body = rest.split("<!-- /loaded -->")
    # `<` in a text would end the script element that holds it.
    json_text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return "".join((
        head, f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        f"<style>{style}</style>\n",
        f'<script type="application/json" id="report">{json_text}</script>\n',
        f"<script>{library}</script>\n", f'<script type="module">{program}</script>\n', body,
    ))  # fmt: skip


def bundle(first: str) -> str:
    """Return a JavaScript module and all that it imports as one module.

    The page's modules import by name only, and no two define the same name at their top.
    """
    done: dict[str, str] = {}

    def take(name: str) -> None:
        if name in done:
            return
        text = (_STATIC / name).read_text()
        done[name] = ""  # a circle would end here
        for found in _IMPORT.finditer(text):
            take(found["name"])
        del done[name]
        own = _IMPORT.sub("", text)
        done[name] = re.sub(r"^export ", "", own, flags=re.MULTILINE)

    take(first)
    return "".join(done.values())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
