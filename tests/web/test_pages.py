"""The pages, as a person sees and uses them."""

from __future__ import annotations

import csv
import io
import re
from itertools import product
from pathlib import Path

import pytest
from canvas import TELL_TEXTS, VISIBLE_SPIKES
from dashboard_server import Served, served
from synthetic_feed import HTML, SHOWN, SyntheticFeed, make_feed, spiked, training

from dlctl.contract.metrics import MetricsLine, Source
from dlctl.dashboard.report import report
from dlctl.series.readable import memory_size, readable
from dlctl.series.replays import Origin
from dlctl.series.run import Run
from dlctl.units import format_bytes

ONE = "/training/digits-3k9f"
BOTH = "/compare?runs=digits-3k9f,digits-2b7d"
DRAWN = ".chart canvas"
pytestmark = pytest.mark.xdist_group("web")
PAGES = ["/", f"{ONE}?smooth=0.5", BOTH]


def chart(page, title: str):
    return page.locator(".chart", has=page.get_by_role("heading", name=title, exact=True)).first


def saved(page, label: str, click) -> str:
    with page.expect_download() as found:
        click(label)
    return Path(found.value.path()).read_text()


@pytest.mark.first
def test_all_trainings_are_listed_and_lead_to_their_pages(server: Served, visit):
    page = visit(server.page("/"))
    page.wait_for_selector(".training")
    assert page.locator(".training").count() == 5
    assert "token" not in page.url
    page.get_by_role("link", name="digits-3k9f").click()
    page.wait_for_selector(DRAWN)
    page.get_by_role("heading", name="On a plateau?").wait_for()
    assert page.locator(".answer").count() == 6


def test_what_is_left_out_is_said(visit):
    feed = SyntheticFeed()
    for number in range(41):
        feed.add(spiked(f"run-{number:04}", 100, [5]))
    with feed.run("run-0040") as run:
        for number in range(250):
            run.add(Origin(1, 0, Source.PROGRAM), MetricsLine(1, 0, 1.0, {f"m{number}": 1.0}))
    with served(feed) as server:
        page = visit(server.page("/"))
        page.get_by_text("for the 40 newest trainings").wait_for()
        page.goto(server.page("/training/run-0040"))
        page.get_by_text("240 of 251 curves are shown: find others by their name.").wait_for()
        page.get_by_role("button", name=re.compile("Show [0-9]+ more")).click()
        page.locator(".chart").nth(239).wait_for()
        drawn = page.locator(".chart canvas").count()
        assert drawn < 100, "what is far away is drawn when it comes near"
        page.locator(".chart").last.scroll_into_view_if_needed()
        page.locator(".chart").last.locator("canvas").wait_for()
        page.locator("#find").fill("m249")
        page.get_by_role("heading", name="m249", exact=True).wait_for()
        page.get_by_text("curves are shown").wait_for(state="hidden")


@pytest.mark.first
def test_a_training_is_followed_as_it_grows(server: Served, visit):
    page = visit(server.page(ONE))
    page.wait_for_selector(DRAWN)
    server.feed.grow("digits-3k9f", 300)
    server.feed.say("<b>step 1489</b>")
    page.locator(".bar", has_text="74 %").wait_for()
    page.get_by_text("<b>step 1489</b>").wait_for()
    server.feed.change("digits-3k9f", state="COMPLETED")
    page.locator(".head .state", has_text="COMPLETED").wait_for()
    assert page.get_by_role("button", name="Halt").count() == 0


def test_a_zoom_asks_for_the_points_of_its_window(server: Served, visit):
    page = visit(server.page(ONE))
    page.wait_for_selector(DRAWN)
    box = chart(page, "loss").locator(".u-over").bounding_box()
    with page.expect_request(re.compile(r"/curves\?.*from=")) as asked:
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
        page.mouse.up()
    begin = float(re.search(r"from=([\d.]+)", asked.value.url)[1])
    assert 400 < begin < 520
    page.wait_for_url(re.compile("from="))
    page.get_by_role("button", name="Whole range").click()
    page.wait_for_url(re.compile("k9f$"))
    page.keyboard.press("+")
    page.wait_for_url(re.compile("from="))


def test_one_cursor_is_over_all_charts(server: Served, visit, wait_until):
    page = visit(server.page(ONE))
    page.wait_for_selector(DRAWN)
    box = chart(page, "loss").locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)

    def told() -> list[str]:
        return page.locator(".chart:has(canvas) .at").all_inner_texts()

    wait_until(lambda: len(told()) > 5 and all(text.startswith("step ") for text in told()),
               what="the same place in each chart")  # fmt: skip


def test_the_url_holds_the_view(server: Served, visit):
    page = visit(server.page(f"{ONE}?x=time&smooth=0.8&logy=1&from=100&to=300&tab=Events"))
    page.wait_for_selector(DRAWN)
    assert (
        page.get_by_role("button", name="time", exact=True).get_attribute("aria-pressed") == "true"
    )
    assert page.locator("#smooth").input_value() == "0.8"
    assert page.get_by_role("tab", name="Events").get_attribute("aria-selected") == "true"
    page.get_by_text("FAILED: node n7 was lost").first.wait_for()


@pytest.mark.first
def test_runs_are_compared_and_the_table_sorts(server: Served, visit):
    page = visit(server.page(BOTH))
    page.wait_for_selector(DRAWN)
    page.get_by_role("button", name="digits-4c1a").click()
    page.locator("tbody tr", has_text="digits-4c1a").first.wait_for()
    assert page.locator("th", has_text="batch_size").count() == 1
    page.get_by_role("button", name="loss", exact=True).click()
    assert "digits-4c1a" in page.locator("tbody tr").first.inner_text()
    for kind in ("epoch", "time"):
        page.get_by_role("button", name=kind, exact=True).click()
        page.wait_for_url(re.compile(f"x={kind}"))


@pytest.mark.first
def test_charts_are_saved_as_pictures_and_numbers(server: Served, visit):
    page = visit(server.page(ONE))
    page.wait_for_selector(DRAWN)

    def click(label: str) -> None:
        chart(page, "loss").locator("summary").click()
        chart(page, "loss").get_by_role("button", name=label).click()

    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV", click))))
    assert {row["curve"] for row in rows} == {"train", "validation"}
    picture = saved(page, "SVG", click)
    assert picture.startswith("<svg") and "NaN" not in picture and ">train<" in picture
    with page.expect_download() as found:
        click("PNG")
    assert Path(found.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.first
def test_an_action_is_confirmed_first(server: Served, visit):
    page = visit(server.page(ONE))
    page.get_by_role("button", name="Halt").click()
    assert server.feed.acts == []
    page.get_by_role("dialog").get_by_role("button", name="Halt").click()
    page.get_by_text("halt was asked for").wait_for()
    assert server.feed.acts == [("digits-3k9f", "halt", {})]
    page.keyboard.press("Escape")
    page.locator(".head .state", has_text="HALTED").wait_for()


@pytest.mark.first
def test_names_with_html_are_text(server: Served, visit):
    page = visit(server.page("/training/hostile-9z9z?tab=Events"))
    page.wait_for_selector(DRAWN)
    page.get_by_role("heading", name=HTML.replace("_", " "), exact=True).wait_for()
    page.get_by_role("cell", name=HTML).wait_for()
    page.get_by_role("tab", name="Logs").click()
    page.locator(".log", has_text=f"a line with {HTML}\\u202egpj.exe").wait_for()
    assert page.get_by_text("10 %").count() == 0, "overwritten"
    page.get_by_role("tab", name="Checkpoints").click()
    page.get_by_role("cell", name=SHOWN).wait_for()
    page.locator(".facts", has_text=f"Output: {SHOWN}: 2 B; not in RESULT_DIR").wait_for()
    html = page.evaluate("document.documentElement.outerHTML")
    assert [html[m.start() - 200 : m.end()] for m in re.finditer("[\u202e\x1b]", html)] == []
    assert page.locator("main img").count() == 0


def test_pages_fit_the_screen(server: Served, visit):
    page = visit(server.page("/"))
    for width, path in product((320, 768, 1280, 2560), PAGES):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(server.page(path))
        page.wait_for_selector(".training" if path == "/" else DRAWN)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, path)
        page.locator(".cell .bar span").evaluate_all(
            "all => all.forEach((e) => { e.textContent = '100 % · epoch 1000/1000'; })"
        )
        wide = page.locator(".cell:has(.bar)").evaluate_all(
            "all => all.filter((e) => e.scrollWidth > e.clientWidth).length"
        )
        assert wide == 0, (width, path)
        heights = page.locator(".training").evaluate_all("all => all.map((e) => e.clientHeight)")
        assert len({*heights}) <= 1, (width, heights)


def test_a_telephone_shows_many_trainings_at_once(visit):
    feed = SyntheticFeed()
    for number in range(1, 13):
        feed.add(training(f"sweep-w{number}", 20), reason="it has left results of 1.9 MB")
    with served(feed) as server:
        page = visit(server.page("/"), viewport={"width": 390, "height": 844})
        page.locator(".training").nth(11).wait_for()
        ends = page.locator(".training").evaluate_all(
            "all => all.map((e) => e.getBoundingClientRect().bottom)"
        )
    assert sum(end <= 844 for end in ends) >= 9


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(server: Served, visit, theme: str):
    from axe_playwright_python.sync_playwright import Axe

    # axe itself is put into the page, which the policy forbids.
    page = visit(server.page("/"), color_scheme=theme, bypass_csp=True)
    for path in PAGES:
        page.goto(server.page(path))
        page.wait_for_selector(".training" if path == "/" else DRAWN)
        if path == BOTH:
            page.locator("td.number").first.wait_for()
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_the_theme_switches_and_stays(server: Served, visit):
    page = visit(server.page("/"), color_scheme="light")
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 24)"
    page.reload()
    page.wait_for_selector(".training")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_spikes_of_one_point_among_a_million_are_all_drawn(visit):
    feed = SyntheticFeed()
    feed.add(spiked("spikes-1a2b", 1_000_000, range(5_000, 1_000_000, 10_000)))
    with served(feed) as server:
        page = visit(server.page("/training/spikes-1a2b"))
        page.wait_for_selector(DRAWN)
        seen = page.evaluate(VISIBLE_SPIKES)
        assert seen == 100


def test_an_axis_has_numbers_at_any_scale(visit, wait_until):
    run = Run("scales-1a2b")
    for step in range(20):
        values = {"tiny": step * 1e-301, "huge": step * 1e300, "high": 1e9 + step / 10}
        run.add(Origin(1, 0, Source.PROGRAM), MetricsLine(step, 1, 1e9 + step, values))
    feed = SyntheticFeed()
    feed.add(run)
    with served(feed) as server:
        page = visit(server.page("/training/scales-1a2b"))
        page.wait_for_selector(DRAWN)
        entry = chart(page, "high").locator(".entry")
        told = "Lowest 1G at step 0, highest 1.000000002G at step 19. "
        assert entry.get_attribute("title").startswith(told)
        page.evaluate(TELL_TEXTS)
        page.set_viewport_size({"width": 1000, "height": 900})
        wanted = {"5.0e-301", "5.0e+300", "1.000000001G"}
        # Not `wait_for_function`: what it asks for at its second try, the page's policy forbids.
        wait_until(lambda: wanted <= set(page.evaluate("[...window.texts]")), what=str(wanted))


def test_a_program_that_tells_only_epochs_is_drawn_by_epochs(visit, wait_until):
    run = Run("epochs-1a2b")
    for epoch in range(1, 31):
        line = MetricsLine(epoch=epoch, time=1e9 + epoch, values={"loss": 1 / epoch})
        run.add(Origin(1, 0, Source.PROGRAM), line)
    feed = SyntheticFeed()
    feed.add(run, state="TRAINING", step=None, done=None)
    with served(feed) as server:
        page = visit(server.page("/"))
        page.locator(".bar", has_text="epoch 30").wait_for()
        page.evaluate(TELL_TEXTS)
        page.get_by_role("link", name="epochs-1a2b").click()
        page.locator(".bar", has_text="epoch 30").wait_for()
        page.get_by_text("(epoch 30)").wait_for()
        wanted = {"epoch", "10", "30"}
        wait_until(lambda: wanted <= set(page.evaluate("[...window.texts]")), what=str(wanted))


def test_what_an_answer_is_based_on_is_behind_a_click(server: Served, visit):
    page = visit(server.page(ONE))
    answer = page.locator(".answer", has_text="Checkpoint written?")
    answer.get_by_text("Yes, of step 1000, 18.2 MB").wait_for()
    evidence = answer.locator("dl")
    assert evidence.is_hidden()
    answer.get_by_text("Evidence").click()
    assert "18.2 MB" in evidence.inner_text(), "one size in one unit"
    server.feed.grow("digits-3k9f", 10)
    answer.get_by_text("199 steps have been done since").wait_for()
    assert evidence.is_visible(), "it stays open"


FORMATS = """async () => {
  const f = await import('/static/format.js');
  const ticks = (gap, ...values) => values.map((value) => f.xTick('time', value, 4, gap));
  return {
    numbers: [999, 9999.9, 999999, 1e6, 1000001, 999999999].map((each) => f.shortNumber(each)),
    times: [0.9996, 59.6, 3599.7].map(f.duration),
    tenths: ticks(0.2, 1, 1.2, 1.4, 61.2), seconds: ticks(5, 0, 3600, 3605, 90065),
    sorted: ['w11', 'w2', '', 'w1', 'w10'].sort((a, b) => f.compared(a, b)),
    falling: [2, null, 10, 1].sort((a, b) => f.compared(a, b, -1)),
    sizes: [['memory_rss_bytes', 2 ** 31], ['disk_read_bytes_per_s', 2e9]]
      .map((each) => f.metricValue(...each)),
    found: ['^w1$', 'W1', '('].map((text) => ['w1', 'w10', '('].filter(f.matcher(text))),
  };
}"""


def test_numbers_times_and_names_are_written_in_one_way(server: Served, visit):
    found = visit(server.page("/")).evaluate(FORMATS)
    assert found == {
        "numbers": ["999", "10k", "1M", "1M", "1M", "1G"],
        "times": ["1 s", "1 min", "1 h 00 min"],
        "tenths": ["1s", "1.2s", "1.4s", "1m 1.2s"],
        "seconds": ["0s", "1h", "1h 5s", "1d 1h 1m 5s"],
        "sorted": ["w1", "w2", "w10", "w11", ""], "falling": [10, 2, 1, None],
        "sizes": ["2 GiB", "2.0 GB/s"], "found": [["w1"], ["w1", "w10"], ["("]],
    }  # fmt: skip
    assert [readable("memory_rss_bytes", 2**31), readable("disk_read_bytes_per_s", 2e9)] == [
        "2 GiB", "2.0 GB/s",
    ]  # fmt: skip


def test_trainings_are_found_by_a_regular_expression_in_the_address(server: Served, visit):
    page = visit(server.page("/"))
    page.locator("#find").fill("^digits-[23]")
    page.wait_for_url(re.compile("find="))
    page.reload()
    page.wait_for_selector(".training")
    assert page.locator(".training .who a").evaluate_all("all => all.map((e) => e.title)") == [
        "digits-3k9f", "digits-2b7d",
    ]  # fmt: skip


def test_sizes_read_as_on_the_command_line(server: Served, visit):
    sizes = [0, 999, 1_000, 999_949, 999_950, 1_023 * 1_024, 1_900_000, 10**9, 5 * 10**16]
    shown = visit(server.page("/")).evaluate(
        "async (sizes) => { const f = await import('/static/format.js');"
        " return sizes.map((size) => [f.fileSize(size), f.memorySize(size)]); }", sizes,
    )  # fmt: skip
    assert shown == [[format_bytes(size), memory_size(size)] for size in sizes]


def test_a_report_opens_from_the_disk(visit, tmp_path: Path):
    path = tmp_path / "report.html"
    path.write_text(report(make_feed()))
    page = visit(path.as_uri())
    page.get_by_role("link", name="digits-3k9f").click()
    page.wait_for_selector(DRAWN)
    page.get_by_role("button", name="epoch", exact=True).click()
    page.keyboard.press("s")
    page.locator(".log", has_text="step 1189: loss").wait_for()
    page.goto(f"{path.as_uri()}#{BOTH}")
    page.locator("td.number").first.wait_for()
    page.goto(f"{path.as_uri()}#/training/hostile-9z9z")
    page.get_by_role("heading", name=HTML.replace("_", " "), exact=True).wait_for()


def test_a_page_without_the_token_says_what_is_wrong(server: Served, browser):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://{server.host}/")
    page.get_by_text("the token is missing").wait_for()
    context.close()
