"""The importance of parameters, on searches of which the answer is known."""

import random

import pytest
from made_search import SPACE, trials_of

from dlctl.contract.search import Parameter
from dlctl.search.importance import importances, ranked
from dlctl.search.page import MOST_BEST, MOST_NEW, page_of, shown_rows
from dlctl.search.trials import TrialRow


def rows_of(points, metric):
    return [
        TrialRow(n, str(n), point, "SUCCEEDED", metric(point)) for n, point in enumerate(points)
    ]


def test_what_matters_comes_first_and_noise_is_not_more_than_chance():
    found = {each.name: each for each in importances(SPACE, trials_of(400).ended, maximize=False)}
    assert [*found][0] == "lr" and found["lr"].share > 0.7 and not found["lr"].by_chance
    low, high = (float(part) for part in found["lr"].best.split(" to "))
    assert 0.001 < low < 0.02 < high * 2, "the best rate is 0.01"
    assert not found["layers"].by_chance and found["layers"].best in "345"
    assert found["noise"].by_chance and found["noise"].share < 0.05
    assert found["momentum"].trials < found["lr"].trials, "it exists with sgd alone"


@pytest.mark.parametrize("seed", range(5))
def test_chance_alone_gives_nothing(seed):
    """Without the correction eight groups of 40 trials would explain 18 % of pure noise."""
    chance = random.Random(seed)
    space = [Parameter(f"p{n}", "float", 0, 1) for n in range(20)]
    points = [{each.name: chance.random() for each in space} for _ in range(40)]
    found = importances(space, rows_of(points, lambda _: chance.random()), maximize=False)
    assert sum(each.share for each in found) / 20 < 0.06
    assert sum(not each.by_chance for each in found) <= 4


@pytest.mark.parametrize("maximize", [False, True])
def test_the_best_choice_is_that_of_the_goal(maximize):
    space = [Parameter("kind", "choice", choices=["a", "b"]), Parameter("same", "int", 3, 3)]
    points = [{"kind": "ab"[n % 2], "same": 3} for n in range(20)]
    found = importances(
        space, rows_of(points, lambda p: 1.0 if p["kind"] == "a" else 2.0), maximize=maximize
    )
    assert (found[0].name, found[0].share, found[0].best) == ("kind", 1.0, "b" if maximize else "a")
    assert (found[1].share, found[1].best) == (None, ""), "one value explains nothing"


def test_an_outlier_counts_as_one_rank():
    space = [Parameter("x", "float", 0, 1)]
    points = [{"x": n / 50} for n in range(50)]
    calm = importances(space, rows_of(points, lambda p: p["x"]), maximize=False)[0].share
    wild = importances(
        space, rows_of(points, lambda p: 1e30 if p["x"] == 0.98 else p["x"]), maximize=False
    )[0].share
    assert calm == wild > 0.9
    assert ranked([3.0, 1.0, 3.0, 2.0]) == [2.5, 0.0, 2.5, 1.0], "equal values share a rank"


def test_too_few_trials_tell_nothing():
    assert all(
        each.share is None for each in importances(SPACE, trials_of(9).ended, maximize=False)
    )
    assert all(each.share is None for each in importances(SPACE, [], maximize=False))
    same = rows_of([{"lr": n / 30} for n in range(30)], lambda _: 1.0)
    assert importances(SPACE[:1], same, maximize=False)[0].share == 0.0


def test_a_page_of_very_many_trials_has_the_best_and_the_newest(tmp_path):
    from login_side import make_record
    from made_search import overview_of

    found = trials_of(2600, failed=0.0)
    rows = shown_rows(found)
    assert len(rows) == MOST_BEST + MOST_NEW
    assert [row.number for row in rows] == sorted(row.number for row in rows)
    assert found.best in rows and rows[-1].number == 2599
    page = page_of(overview_of(found), make_record())
    assert (page["all_trials"], len(page["trials"]["number"])) == (2600, 2000)
    assert page["best_trial"] in page["trials"]["number"]
    columns = page["trials"]["point"]
    assert {len(column) for column in columns.values()} == {2000}
    assert set(columns["optimizer"]) == {0, 1, 2} and None in columns["momentum"]
