"""The comparison of a sweep's trainings, as a person sees and uses it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from statistics import mean, stdev

import pytest
from dashboard_server import Served, served
from synthetic_feed import make_sweep

pytestmark = pytest.mark.xdist_group("web")
SWEEP = ",".join(f"sweep-w{number}" for number in range(1, 41))
DRAWN, VALUE = ".chart canvas", "td.number"


@pytest.fixture
def server() -> Iterator[Served]:
    with served(make_sweep()) as running:
        yield running


def column(page, name: str) -> list[str]:
    names = page.locator("thead th").all_inner_texts()
    return page.locator(f"tbody td:nth-child({names.index(name) + 1})").all_inner_texts()


def ids(page) -> list[str]:
    return page.locator("td.whose").all_inner_texts()


def oklab(colour: str) -> tuple[float, float, float]:
    """Return where a colour lies in OKLab, a space in which distances are as people see them."""
    srgb = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in srgb)
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
            1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
            0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short)  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_forty_trainings_have_forty_colours_that_differ(server: Served, visit, theme: str):
    page = visit(server.page(f"/compare?runs={SWEEP}"), color_scheme=theme)
    page.wait_for_selector(VALUE)
    colours = page.locator("input[type=color]").evaluate_all("all => all.map((e) => e.value)")
    assert len(colours) == 40
    pairs = itertools.combinations(map(oklab, colours), 2)
    assert min(math.dist(*pair) for pair in pairs) > 0.06, "0.02 is just noticeable"


def test_a_chosen_colour_is_in_the_address_and_in_the_charts(server: Served, visit, wait_until):
    page = visit(server.page("/compare?runs=sweep-w1,sweep-w2"))
    page.get_by_label("Colour of sweep-w2").fill("#ff8800")
    page.wait_for_url(re.compile("inks=sweep-w2"))
    page.reload()
    page.wait_for_selector(VALUE)
    assert page.get_by_label("Colour of sweep-w2").input_value() == "#ff8800"
    swatch = page.locator(".chart .entry", has_text="sweep-w2").first.locator(".swatch")
    assert swatch.evaluate("e => getComputedStyle(e).color") == "rgb(255, 136, 0)"


def test_trainings_are_found_and_chosen_and_the_others_are_counted(server: Served, visit):
    page = visit(server.page("/compare?runs=sweep-w7"))
    page.wait_for_selector(VALUE)
    chips = page.locator(".picker .pick")
    assert chips.first.inner_text() == "sweep-w7", "the chosen ones come first"
    page.get_by_text("and 27 more: find them").wait_for()
    page.locator("#find-trainings").fill("lr=0.01 wd=0 |^sweep-w40 ")
    page.get_by_role("button", name="Choose 5 found").click()
    page.locator("td.whose", has_text="sweep-w40").wait_for()
    assert sorted(ids(page)) == [f"sweep-w{n}" for n in (1, 2, 3, 4, 40, 7)]
    assert page.locator(".pick[aria-pressed=true]").count() == 6
    colour = page.get_by_label("Colour of sweep-w40").input_value()
    page.get_by_role("button", name="sweep-w7", exact=True).click()
    page.locator("td.whose", has_text="sweep-w7").wait_for(state="detached")
    assert page.get_by_label("Colour of sweep-w40").input_value() == colour, "it keeps its colour"
    page.goto(server.page(f"/compare?runs={SWEEP}"))
    page.get_by_role("button", name="and 16 more").click()
    assert page.locator(".pick[aria-pressed=true]").count() == 40
    chart = page.locator(".chart").first
    more = chart.get_by_role("button", name="and 28 more")
    more.wait_for()
    assert chart.locator(".entry .label").count() == 12
    more.click()
    assert chart.locator(".entry .label").count() == 40


def test_one_table_holds_newest_and_best_values_with_what_differs(server: Served, visit):
    page = visit(server.page(f"/compare?runs={SWEEP}"))
    page.wait_for_selector(VALUE)
    assert page.locator("table").count() == 1
    assert page.locator("thead th").all_inner_texts() == [
        "training", "state", "lr", "wd", "seed", "train/loss", "best train/loss", "val/loss",
        "best val/loss", "val/accuracy", "best val/accuracy", "scale",
    ]  # fmt: skip
    page.get_by_role("button", name="training", exact=True).click()
    assert ids(page) == [f"sweep-w{number}" for number in range(1, 41)], "w2 before w10"
    page.get_by_role("button", name="best val/accuracy").click()
    best = [float(text) for text in column(page, "best val/accuracy")]
    assert best == sorted(best, reverse=True), "the highest accuracy comes first"
    page.get_by_role("button", name="best val/loss").click()
    best = [float(text) for text in column(page, "best val/loss")]
    assert best == sorted(best), "the lowest loss comes first"
    at = ids(page).index("sweep-w4")
    assert float(column(page, "val/loss")[at]) >= best[at]


def test_repetitions_are_drawn_as_mean_and_range(server: Served, visit):
    page = visit(server.page(f"/compare?runs={SWEEP}"))
    page.wait_for_selector(VALUE)
    page.get_by_role("button", name="training", exact=True).click()
    losses = [float(text) for text in column(page, "train/loss")]
    page.get_by_role("button", name="repetitions").click()
    page.wait_for_url(re.compile("repeats=1"))
    page.reload()
    page.locator("td.whose", has_text="×4").first.wait_for()
    assert ids(page)[:2] == ["lr=0.01 wd=0 ×4", "lr=0.01 wd=1 ×4"] and len(ids(page)) == 10
    middle, spread = map(float, column(page, "train/loss")[0].split(" ± "))
    assert (middle, spread) == pytest.approx((mean(losses[:4]), stdev(losses[:4])), rel=0.02)
    chart = page.locator(".chart", has=page.get_by_role("heading", name="train/loss")).first
    chart.locator(".entry", has_text="lr=1 wd=1 ×4").wait_for()
    assert chart.locator(".entry .label").count() == 10


def test_charts_are_grouped_by_their_names_and_pinned(server: Served, visit):
    page = visit(server.page("/compare?runs=sweep-w1,sweep-w2"))
    page.wait_for_selector(DRAWN)
    headings = page.locator(".section h2")
    assert headings.all_inner_texts() == ["train", "val", "Curves"]
    page.get_by_role("button", name="Pin the chart of val/loss").click()
    page.wait_for_url(re.compile("pin=val"))
    page.reload()
    page.wait_for_selector(DRAWN)
    assert headings.all_inner_texts() == ["Pinned", "train", "val", "Curves"]
    first = page.locator(".section").first
    assert first.locator("h3").all_inner_texts() == ["val/loss"]
    first.locator("summary").first.click()
    assert first.locator(".chart").is_hidden(), "a section folds"
    first.locator("summary").first.click()
    first.get_by_role("button", name="Pin the chart").click()
    page.locator(".section h2", has_text="Pinned").wait_for(state="detached")


def test_metrics_are_found_by_a_regular_expression(server: Served, visit):
    page = visit(server.page("/compare?runs=sweep-w1"))
    page.wait_for_selector(DRAWN)
    page.locator("#find").fill("^val/(loss|acc)")
    page.locator(".section h2", has_text="train").wait_for(state="detached")
    assert sorted(page.locator(".chart h3").all_inner_texts()) == ["val/accuracy", "val/loss"]
    page.locator("#find").fill("(")
    page.get_by_text("Choose trainings above").wait_for(state="hidden")
