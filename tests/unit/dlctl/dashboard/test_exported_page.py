"""The file that needs no server."""

import base64
import hashlib
import json
import re

import pytest
from synthetic_feed import HTML, make_feed

from dlctl.dashboard.app import STATIC
from dlctl.dashboard.feed import Unknown
from dlctl.dashboard.report import bundle, report


@pytest.fixture(scope="module")
def text():
    return report(make_feed(), ["digits-3k9f", "hostile-9z9z"])


def test_it_holds_all_that_it_needs(text):
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*", text)
    assert "import " not in text.split('<script type="module">')[1].split("\n")[0]
    (data,) = re.findall(r'<script type="application/json" id="report">(.*?)</script>', text)
    found = json.loads(data)
    assert set(found["details"]) == {"digits-3k9f", "hostile-9z9z"}
    assert found["curves"]["digits-3k9f"]["time"]["columns"]
    assert HTML not in text and "\\u003cimg" in text, "nothing of a training is HTML in it"
    with pytest.raises(Unknown):
        report(make_feed(), ["nobody"])


def test_it_holds_the_last_lines_of_the_log_plan_and_verdicts():
    feed = make_feed()
    feed.say(*(f"line {n} <i>\x1c" for n in range(300)))
    text = report(feed, ["digits-3k9f"])
    (data,) = re.findall(r'<script type="application/json" id="report">(.*?)</script>', text)
    found = json.loads(data)
    lines = [piece["text"] for piece in found["logs"]["digits-3k9f"]]
    assert lines == [f"line {n} <i>\x1c\n" for n in range(100, 300)] and "<i>" not in data
    details = found["details"]["digits-3k9f"]
    assert details["plan"] and details["verdicts"]


def test_its_policy_allows_its_own_scripts_only(text):
    (policy,) = re.findall(r'content="(default-src[^"]*)"', text)
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy and "http" not in policy


def test_each_module_is_in_the_bundle_once_after_what_it_imports():
    program = bundle("main.js")
    makes_html = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    )
    for path in STATIC.glob("*.js"):
        assert not re.search(makes_html, path.read_text()), path.name
        for name in re.findall(r"^export (?:function|class|const) (\w+)", path.read_text(), re.M):
            defined = re.findall(rf"^(?:async )?(?:function|class|const) {name}\b", program, re.M)
            assert len(defined) == 1, name
    assert not re.search(r"^(import|export) ", program, re.M)
