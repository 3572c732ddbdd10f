"""The trainings of one command: manifests, a sweep's points, repetitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlctl.errors import ManifestError
from dlctl.manifest.overrides import Overrides
from dlctl.request.variants import variants

ONE = [Path("manifest.yml")]


def written(folder: Path, text: str) -> Path:
    path = folder / "grid.yml"
    path.write_text(text)
    return path


def seen(found):
    return [(each.label, each.overrides.learners, each.overrides.set) for each in found]


def test_one_manifest_alone_is_one_training_as_the_command_line_says():
    overrides = Overrides(learners=2)
    (one,) = variants(ONE, overrides)
    assert (one.manifest, one.overrides, one.label) == (ONE[0], overrides, "")


def test_a_grid_is_every_combination_and_the_last_key_varies_first(tmp_path):
    grid = written(tmp_path, "learners: [1, 2]\nframework.arguments.lr: [1e-3, 0.10]\n")
    assert seen(variants(ONE, Overrides(set=("name=x",)), grid)) == [
        (f"learners={n} lr={lr}", n, ("name=x", f"framework.arguments.lr={lr}"))
        for n in ("1", "2") for lr in ("1e-3", "0.10")
    ]  # fmt: skip


def test_a_list_is_its_points_alone(tmp_path):
    grid = written(tmp_path, "- {learners: 1, time: 4h}\n- {framework.arguments.opt: 'no'}\n")
    first, second = variants(ONE, Overrides(), grid)
    assert (first.label, first.overrides.time) == ("learners=1 time=4h", "4h")
    assert (second.label, second.overrides.set) == ("opt=no", ('framework.arguments.opt="no"',))


def test_each_point_is_repeated_with_other_seeds_and_each_manifest(tmp_path):
    grid = written(tmp_path, "a.lr: [1]\nb.lr: [2]\n")
    found = variants([Path("a.yml"), Path("b.yml")], Overrides(), grid, repeat=2, seed_from=7)
    assert [each.label for each in found] == [
        f"{name} a.lr=1 b.lr=2 seed={seed}" for name in ("a.yml", "b.yml") for seed in (7, 8)
    ]
    assert found[0].overrides.set == ("a.lr=1", "b.lr=2", "training.seed=7")
    assert [each.label for each in variants(ONE, Overrides(), repeat=2)] == ["seed=1", "seed=2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("learners: 2\n", "grid.yml:1:1: learners: a list of values is allowed"),
        ("learners: []\n", "grid.yml:1:1: learners: a list of values is allowed"),
        ("a: [1, {b: 2}]\n", "grid.yml:1:8: a: a single value or a list is allowed"),
        ("- 3\n", "grid.yml:1:3: a point is keys with values"),
        ("[]\n", "asks for no training"),
        ("text\n", "a sweep is keys with lists of values, or a list of points"),
        ("a: [1\n", "grid.yml:2:1"),
        ("a: [1]\na: [2]\n", "grid.yml:2:1"),
    ],
)
def test_a_wrong_file_is_told_with_its_place(tmp_path, text, told):
    with pytest.raises(ManifestError) as caught:
        variants(ONE, Overrides(), written(tmp_path, text))
    assert told in caught.value.message


def test_a_slip_of_the_pen_is_not_ten_thousand_jobs():
    with pytest.raises(ManifestError, match=r"10,001 trainings are more than the 10,000"):
        variants(ONE, Overrides(), repeat=10_001)
