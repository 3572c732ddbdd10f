"""Make docs/dashboard-*.png from made trainings: python docs/make_dashboard_pictures.py.

The pages are the real ones, in Chromium. The trainings are those of the tests, so the pictures
change only when the pages do.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "tests" / "support")]

from dashboard_server import served  # noqa: E402
from login_side import make_record  # noqa: E402
from made_search import job, overview_of, trials_of, worker  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402
from synthetic_feed import NOW_S, make_feed  # noqa: E402

from dlctl.contract import State  # noqa: E402
from dlctl.search.page import page_of  # noqa: E402

WIDTH = 1240
LARGEST_BYTES = 200_000
SHOTS = {
    "trainings": ("light", 400, "/", ".training"),
    "training": ("light", 1000, "/training/digits-3k9f?smooth=0.6", ".chart canvas"),
    "dark": ("dark", 700, "/training/digits-3k9f?smooth=0.6&x=time", ".chart canvas"),
    "comparison": ("light", 760, "/compare?runs=digits-3k9f,digits-2b7d,digits-4c1a&smooth=0.8",
                   "td.number"),
    "search": ("light", 722, "/search/digits-7f3s", ".progress-plot canvas"),
}  # fmt: skip
"""By the picture's name: the theme, the height, the page, and what is on it when it is done."""


def main() -> None:
    """Make all pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is missing: make web-deps")
    feed = make_feed(hostile=False)
    record = make_record(training_id="digits-7f3s", site="alps", state=State.TRAINING)
    workers = [worker("w1.0", 2), worker("w1.1", 1)]
    jobs = [job("w1.0"), job("w1.1"), job("w1.2", "PENDING", "Resources")]
    feed.searches["digits-7f3s"] = page_of(overview_of(trials_of(19, 17), workers, jobs), record)
    with served(feed) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (theme, height, path, done) in SHOTS.items():
            page = browser.new_page(
                viewport={"width": WIDTH, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
            )
            page.clock.set_fixed_time(NOW_S)
            page.goto(server.page(path))
            page.locator(done).first.wait_for()
            _save(page, DOCS / f"dashboard-{name}.png")
        browser.close()


def _save(page: Page, picture: Path) -> None:
    page.evaluate("document.fonts.ready")
    if page.locator(".chart .u-over").count():
        if "dark" in picture.name:  # this one shows what stands further down
            page.locator(".toolbar").evaluate("bar => bar.scrollIntoView()")
        if "search" in picture.name:
            page.locator(".pair").evaluate("cards => cards.scrollIntoView()")
        box = page.locator(".chart .u-over").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 30)
        page.locator(".at", has_text=" ").first.wait_for()
    page.screenshot(path=picture)
    size = picture.stat().st_size
    if size > LARGEST_BYTES:
        sys.exit(f"{picture.name} is too large: {size} bytes")
    print(f"{picture.name}: {size} bytes")


if __name__ == "__main__":
    main()
