"""The page of a search, as a person sees and uses it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from canvas import TELL_TEXTS
from dashboard_server import Served, served
from login_side import make_record
from made_search import job, overview_of, trials_of, worker
from synthetic_feed import HTML, make_feed

from dlctl.contract import State
from dlctl.contract.search import Parameter
from dlctl.dashboard.report import report, search_report
from dlctl.search.page import page_of

pytestmark = pytest.mark.xdist_group("web")
ONE = "digits-3k9f"
PAGE = f"/search/{ONE}"
READY = ".search:not([hidden])"
STATES = [
    ("empty", 0, 0), ("one", 1, 1), ("two", 2, 2), ("forty", 40, 36), ("thousand", 1000, 1000),
]  # fmt: skip
INK = """() => {
  const source = document.querySelector('.parallel canvas');
  const copy = new OffscreenCanvas(source.width, source.height);
  const context = copy.getContext('2d', { willReadFrequently: true });
  context.drawImage(source, 0, 0);
  const { data } = context.getImageData(0, 0, copy.width, copy.height);
  return data.filter((value, n) => n % 4 === 3 && value > 0).length;
}"""


def page_for(count, ended=None, training_id=ONE, **more):
    trials = trials_of(count, ended, **more)
    seen = overview_of(
        trials, [worker("w1.0", 2)], [job("w1.0"), job("w1.1", "PENDING", "Resources")]
    )
    return page_of(seen, make_record(training_id=training_id, site="alps", state=State.TRAINING))


@pytest.fixture
def server() -> Iterator[Served]:
    feed = make_feed()
    feed.searches[ONE] = page_for(40, 36, failed=0.2)
    for name, count, ended in STATES:
        feed.searches[name] = page_for(count, ended, name)
    feed.searches["maximized"] = page_for(40, maximize=True)
    with served(feed) as running:
        yield running


def told(page) -> str:
    return page.locator("section[aria-label=Trials] [role=status]").inner_text()


def cells(page, column: int) -> list[str]:
    return page.locator(f".tall tbody td:nth-child({column})").all_inner_texts()


def axis(page, name: str):
    page.locator(".parallel").scroll_into_view_if_needed()
    return page.locator(f'g[data-axis="{name}"] .grip').bounding_box()


def brush(page, name: str, low: float, high: float) -> None:
    """Drag along an axis, from a share of its length to another, 0 at the bottom."""
    box = axis(page, name)
    top, bottom = box["y"] + 6, box["y"] + box["height"] - 26
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, bottom - (bottom - top) * low)
    page.mouse.down()
    page.mouse.move(x, bottom - (bottom - top) * high, steps=4)
    page.mouse.up()


def test_a_search_shows_trials_best_importance_and_why_trials_wait(server: Served, visit):
    page = visit(server.page(PAGE))
    page.wait_for_selector(READY)
    data = server.feed.searches[ONE]
    assert told(page) == "40 trials"
    assert page.get_by_text(data["best"]).count() == 1
    assert page.locator("tr.best td").first.inner_text() == str(data["best_trial"])
    assert page.locator(".trouble").first.inner_text().startswith("2 trials wait: 1 worker job is")
    first = page.locator(".share").first
    assert first.locator(".what").inner_text() == "lr"
    share = data["importance"]["of"][0]["share"]
    assert first.locator("b").inner_text() == f"{round(100 * share)} %"
    assert page.get_by_text("It sees each parameter alone").count() == 1
    page.locator(".progress-plot canvas").wait_for()
    names = page.locator(".axes .name").evaluate_all("all => all.map((e) => e.firstChild.data)")
    assert names == [
        "lr", "layers", "optimizer", "momentum", "noise", "loss",
    ]  # fmt: skip
    assert page.get_by_role("link", name="Hub").get_attribute("href") == f"#/training/{ONE}"


def test_a_search_that_has_failed_says_why(visit, tmp_path: Path):
    path = tmp_path / "search.html"
    why = "The search has failed: 10 trials have failed, and none has ended well."
    path.write_text(search_report(page_for(10, failed=1.0) | {"state": "FAILED", "reason": why}))
    page = visit(path.as_uri())
    page.wait_for_selector(READY)
    assert page.locator(".trouble").first.inner_text() == why
    says = page.locator("section[aria-label=Importance] .empty").inner_text()
    assert says == "Too few trials have ended well: 10 are needed."


def test_a_brush_chooses_trials_and_a_click_takes_it_back(server: Served, visit):
    page = visit(server.page(PAGE))
    page.wait_for_selector(READY)
    trials = server.feed.searches[ONE]["trials"]
    brush(page, "layers", 0.5, 1.02)
    known = [n for n, metric in zip(trials["number"], trials["metric"], strict=True)
             if metric is not None]  # fmt: skip
    deep = {n for n in known if trials["point"]["layers"][n] >= 5}
    assert told(page) == f"{len(deep)} of 40 trials are chosen"
    assert {int(text.split()[0]) for text in cells(page, 1)} == deep
    brush(page, "optimizer", 0.2, 0.6)
    adam = {n for n in deep if trials["point"]["optimizer"][n] == 1}
    assert told(page) == f"{len(adam)} of 40 trials are chosen" and adam
    box = axis(page, "layers")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 80)
    assert "are chosen" in told(page) and told(page) != f"{len(adam)} of 40 trials are chosen"
    page.get_by_role("button", name="Show all trials").click()
    assert told(page) == "40 trials"


@pytest.mark.parametrize("name", ["forty", "maximized"])
def test_the_best_end_of_the_metric_is_at_the_top(server: Served, visit, name: str):
    page = visit(server.page(f"/search/{name}"))
    page.wait_for_selector(READY)
    brush(page, "loss", 0.97, 1.05)
    assert server.feed.searches[name]["best_trial"] in [int(t.split()[0]) for t in cells(page, 1)]


def test_the_table_sorts_and_what_has_no_value_comes_last(server: Served, visit):
    page = visit(server.page(PAGE))
    page.wait_for_selector(READY)
    page.locator(".sort[data-name=loss]").click()
    up = cells(page, 3)
    values = [float(text) for text in up if text != "–"]
    assert values == sorted(values) and set(up[len(values) :]) == {"–"}
    page.locator(".sort[data-name=loss]").click()
    down = cells(page, 3)
    assert [float(text) for text in down if text != "–"] == values[::-1] and down[-1] == "–"


def test_a_line_under_the_pointer_is_named(server: Served, visit):
    page = visit(server.page(PAGE))
    page.wait_for_selector(READY)
    trials = server.feed.searches[ONE]["trials"]
    box = axis(page, "loss")
    page.mouse.move(box["x"] + box["width"] / 2 - 12, box["y"] + 10)
    page.locator(".pointed", has_text="trial ").wait_for()
    number = int(page.locator(".pointed").inner_text().split()[1])
    best = sorted(metric for metric in trials["metric"] if metric is not None)[:4]
    assert trials["metric"][number] in best, "the pointer is at the top of the metric's axis"
    page.mouse.move(box["x"] + 200, box["y"] - 200)
    page.locator(".pointed", has_text="trial ").wait_for(state="hidden")


def test_axes_have_labels_on_paper_and_whole_numbers_of_trials(server: Served, visit, wait_until):
    page = visit(server.page("/"))
    page.evaluate(TELL_TEXTS)
    page.evaluate("location.hash = '#/search/two'")
    page.wait_for_selector(READY)
    wanted = {"1", "2", "trials that have ended", "loss"}
    wait_until(lambda: wanted <= set(page.evaluate("[...window.texts]")), what=str(wanted))
    assert "1.2" not in page.evaluate("[...window.texts]")
    for label in page.locator(".axes .tick").all():
        text, paper = label.bounding_box(), label.locator("xpath=preceding-sibling::*[1]")
        box = paper.bounding_box()
        assert box["x"] <= text["x"] and text["x"] + text["width"] <= box["x"] + box["width"]


def test_failed_trials_are_drawn_when_asked_for(server: Served, visit):
    page = visit(server.page(PAGE))
    page.wait_for_selector(READY)
    before = page.evaluate(INK)
    assert page.locator(".axes .tick", has_text="failed").count() == 0
    page.get_by_label("failed trials").check()
    assert page.locator(".axes .tick", has_text="failed").count() == 1
    assert page.evaluate(INK) > before


@pytest.mark.first
def test_a_search_is_followed_as_it_grows(server: Served, visit):
    page = visit(server.page(PAGE))
    page.wait_for_selector(READY)
    brush(page, "layers", 0.5, 1.02)
    server.feed.searches[ONE] = page_for(60, 58)
    server.feed.versions.bump([ONE])
    page.get_by_text("58 of 40 ended").wait_for()
    assert "of 60 trials are chosen" in told(page), "the brush stays"


def test_what_is_no_search_says_so(server: Served, browser):
    """The browser itself complains about a 404, which `visit` would not bear."""
    page = browser.new_page()
    page.goto(server.page("/search/digits-2b7d"))
    page.get_by_text("digits-2b7d is a training, and no search").wait_for()
    page.close()


def test_names_and_errors_with_html_are_text(visit):
    feed = make_feed()
    space = [Parameter(HTML, "choice", choices=[HTML, "other"]), Parameter("x", "float", 0, 1)]
    page_data = page_for(12, failed=1.0, training_id=ONE)
    page_data["space"] = [{"name": p.name, "kind": p.kind, "low": p.low, "high": p.high,
                           "log": False, "choices": p.choices} for p in space]  # fmt: skip
    page_data["trials"]["point"] = {HTML: [0] * 12, "x": [0.5] * 12}
    feed.searches[ONE] = page_data
    with served(feed) as server:
        page = visit(server.page(PAGE))
        page.wait_for_selector(READY)
        page.get_by_label("failed trials").check()
        page.get_by_text("ValueError: the loss is <b>odd</b>").first.wait_for()
        assert page.locator("main img").count() == 0 and page.locator("main b b").count() == 0


def test_the_page_fits_the_screen(server: Served, visit):
    page = visit(server.page("/"))
    for width, (name, count, _) in product((320, 768, 1280, 2560), STATES):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(server.page(f"/search/{name}"))
        page.get_by_role("heading", name=name, exact=True).wait_for()
        page.wait_for_selector(READY)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, name)
        assert (page.evaluate(INK) > 0) == (count > 0), (width, name)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_accessible(server: Served, visit, theme: str):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(server.page("/"), color_scheme=theme, bypass_csp=True)
    for name in ("empty", "forty"):
        page.goto(server.page(f"/search/{name}"))
        page.get_by_role("heading", name=name, exact=True).wait_for()
        page.wait_for_selector(READY)
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


def test_one_file_shows_a_search_without_a_server(visit, tmp_path: Path):
    path = tmp_path / "search.html"
    path.write_text(search_report(page_for(40, 36)))
    page = visit(path.as_uri(), color_scheme="dark")
    page.wait_for_selector(READY)
    assert page.get_by_role("heading", name=ONE, exact=True).count() == 1
    assert page.locator("nav a").count() == 0 and page.get_by_role("link", name="Hub").count() == 0
    assert page.evaluate(INK) > 0
    brush(page, "layers", 0.5, 1.02)
    assert "of 40 trials are chosen" in told(page)
    page.get_by_role("button", name="log", exact=True).click()
    page.get_by_role("button", name="by time").click()
    page.get_by_role("button", name="Light").click()
    page.locator(".progress-plot canvas").wait_for()


def test_a_report_of_trainings_holds_their_searches(visit, tmp_path: Path):
    feed = make_feed()
    feed._details[ONE]["plan"] = {"framework": {"name": "search"}}
    feed.searches[ONE] = page_for(12)
    path = tmp_path / "report.html"
    path.write_text(report(feed, [ONE]))
    page = visit(f"{path.as_uri()}#/training/{ONE}")
    page.get_by_role("link", name="Trials of the search").click()
    page.wait_for_selector(READY)
    assert told(page) == "12 trials"
    page.get_by_role("link", name="Hub").click()
    page.wait_for_selector(".chart canvas")


def test_the_list_leads_to_the_page_of_a_search(server: Served, visit):
    server.feed.change(ONE, is_search=True)
    page = visit(server.page("/"))
    page.get_by_role("link", name=ONE).click()
    page.wait_for_selector(READY)
    page.get_by_role("link", name="Hub").click()
    page.get_by_role("link", name="Trials of the search").wait_for()
