"""The README's picture: what it may leave out, and what it may never show."""

import importlib.util
import re
from xml.etree import ElementTree

import pytest
from repository import REPOSITORY
from rich.text import Text

PICTURE = REPOSITORY / "docs/training.svg"


@pytest.fixture(scope="session")
def make_picture():
    path = REPOSITORY / "docs/make_picture.py"
    spec = importlib.util.spec_from_file_location("make_picture", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def picture_text():
    root = ElementTree.parse(PICTURE).getroot()
    return "".join(root.itertext()).replace("\N{NO-BREAK SPACE}", " ")


def test_the_picture_shows_the_commands_of_its_program(make_picture):
    text = picture_text()
    for scene in make_picture.SCENES:
        assert scene.command in text, "run `make picture`"
    assert "COMPLETED" in text


def test_the_picture_loads_nothing_and_names_no_path_of_a_machine():
    svg = PICTURE.read_text(encoding="utf-8")
    assert "@font-face" not in svg
    assert not re.findall(r"url\((?!#)|href=|src=", svg)
    assert not re.findall(r"/(?:home|root|tmp|srv|var|usr)/", svg)


def test_what_was_erased_or_left_out_is_not_visible(make_picture):
    bar = "\x1b[?25l\r\x1b[2Ksending 10 %\r\x1b[2Ksending 90 %\r\n"
    sent = bar + "\x1b[?25h\r\x1b[1A\x1b[2Kdone\r\n"
    assert make_picture.visible_lines(sent) == ["done"]
    shown = make_picture.shortened(["epoch 1", "epoch 2", "epoch 3", "", "end"], r"epoch [23]|^$")
    assert [text.plain for text in shown] == ["epoch 1", "⋮", "end"]
    values = "  ".join(f"value_{number} {number}" for number in range(20))
    cut = make_picture.cut(Text(values)).plain
    assert len(cut) <= make_picture.COLUMNS and values.startswith(cut.removesuffix(" …") + "  ")
