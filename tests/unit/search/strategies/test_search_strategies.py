"""Which points a search tries: each strategy on a function whose minimum is known."""

from __future__ import annotations

import inspect
import math

import pytest

from dlctl.contract import search as contract
from dlctl.contract.search import Parameter, Spec, Task
from search.strategies import _OURS, NAMES, Proposal, Space, Trial, TrialResult, make_strategy
from search.strategies.space import value_at

SPACE = [
    Parameter("x", "float", 0.0, 1.0),
    Parameter("n", "int", 1, 9),
    Parameter("optimizer", "choice", choices=["sgd", "adam"]),
    Parameter("momentum", "float", 0.0, 0.9, when={"optimizer": ["sgd"]}),
]


def spec(strategy="random", seed=3, space=SPACE, **options):
    return Spec("s", space, Task("python"), strategy, options, seed=seed)


def height(point):
    return (point["x"] - 0.3) ** 2 + abs(point["n"] - 4) / 10 + (point["optimizer"] == "sgd")


def best_of(strategy, trials, batch=4):
    best = math.inf
    for first in range(0, trials, batch):
        points = strategy.ask(batch)
        for number, point in enumerate(points, first):
            best = min(best, height(point))
            strategy.tell(Trial(number, point), TrialResult(height(point)))
    return best


def test_a_parameter_exists_only_where_its_conditions_hold():
    for point in make_strategy(spec()).ask(50):
        assert ("momentum" in point) == (point["optimizer"] == "sgd")
        assert 0 <= point["x"] <= 1 and 1 <= point["n"] <= 9 and isinstance(point["n"], int)


def test_a_circle_of_conditions_is_refused():
    one = Parameter("a", "choice", choices=[1], when={"b": [1]})
    other = Parameter("b", "choice", choices=[1], when={"a": [1]})
    with pytest.raises(ValueError, match="the conditions of a, b"):
        Space([one, other])


@pytest.mark.parametrize(("parameter", "share", "value"), [
    (Parameter("p", "float", 1e-4, 1.0, log=True), 0.5, 1e-2),
    (Parameter("p", "float", 0.0, 1.0, step=0.25), 0.6, 0.5),
    (Parameter("p", "int", 1, 4), 0.999, 4),
    (Parameter("p", "int", 0, 100, step=10), 0.999, 100),
    (Parameter("p", "choice", choices=["a", "b"]), 1.0, "b"),
])  # fmt: skip
def test_a_share_of_a_range_is_a_value(parameter, share, value):
    assert value_at(parameter, share) == pytest.approx(value)


def test_the_grid_has_each_combination_once():
    grid = make_strategy(spec("grid", levels=3))
    points = grid.ask(1000)
    # 3 x, 3 n, and adam alone or sgd with 3 momenta
    assert len(points) == 3 * 3 * (1 + 3) and grid.ask(1) == []
    assert len({repr(sorted(p.items())) for p in points}) == len(points)


def test_a_latin_hypercube_has_one_point_in_each_row():
    points = make_strategy(spec("latin_hypercube", samples=10)).ask(20)
    for block in (points[:10], points[10:]):
        assert sorted(int(p["x"] * 10) for p in block) == list(range(10))


@pytest.mark.parametrize("name", ["genetic", "aging"])
def test_evolution_finds_better_points_than_chance(name):
    options = {"genetic": {"population": 10}, "aging": {"population": 20, "sample": 5}}[name]
    evolved = [best_of(make_strategy(spec(name, seed, **options)), 200) for seed in range(9)]
    chance = [best_of(make_strategy(spec("random", seed)), 200) for seed in range(9)]
    assert sum(a < b for a, b in zip(evolved, chance, strict=True)) >= 6
    assert sorted(evolved)[4] < sorted(chance)[4]


@pytest.mark.parametrize("name", ["random", "latin_hypercube", "genetic", "aging", "asha"])
def test_a_seed_gives_the_same_points_in_batches_of_any_size(name):
    def points(sizes, seed):
        strategy, found = make_strategy(spec(name, seed)), []
        for size in sizes:
            found += strategy.ask(size)
        return found

    assert points([6], 1) == points([1, 2, 3], 1) != points([6], 2)


def test_asha_ends_what_is_worse_at_a_rung():
    """Of nine trials that reach the first rung, the best third goes on."""
    asha = make_strategy(spec("asha", eta=3, most=9))
    trials = [Trial(n, point) for n, point in enumerate(asha.ask(9))]
    first = [asha.report(trial, 1, value) for trial, value in zip(trials, range(9), strict=True)]
    assert first[:2] == [True, True] and not any(first[3:])
    assert asha.report(trials[0], 3, 0.0)
    assert asha.report(trials[8], 2, 9.0), "it was told once, at its rung"


def test_a_bracket_of_hyperband_judges_later_than_another():
    """Of the brackets with their first rungs at 1, 3 and 9, trial 2 is in the last."""
    many = make_strategy(spec("hyperband", eta=3, most=9))
    trials = [Trial(n, point) for n, point in enumerate(many.ask(15))]
    at_1 = [many.report(trial, 1, float(trial.number)) for trial in trials]
    assert not all(at_1[0::3]) and all(at_1[1::3]) and all(at_1[2::3])
    at_3 = [many.report(trial, 3, float(trial.number)) for trial in trials]
    assert not all(at_3[1::3]) and all(at_3[2::3])


def test_an_unknown_strategy_or_option_is_named():
    with pytest.raises(ValueError, match="there is no strategy 'ransom'; there are grid, random"):
        make_strategy(spec("ransom"))
    with pytest.raises(ValueError, match="the strategy genetic: got an unexpected .* 'popul'"):
        make_strategy(spec("genetic", popul=3))
    assert {"tpe", "cmaes", "grid"} <= set(NAMES)


def train_population(strategy, rounds, population):
    """Return the last loss of each member: a trial halves what is left, if its rate is right."""
    left, lasts = {}, {}
    for number in range(rounds * population):
        (each,) = strategy.ask(1)
        point, parent = (each.point, each.parent) if isinstance(each, Proposal) else (each, None)
        begin = 1.0 if parent is None else left[parent]
        left[number] = begin * (0.5 + min(0.5, abs(math.log10(point["rate"] / 1e-2))))
        strategy.tell(Trial(number, point, parent), TrialResult(left[number]))
        lasts[number % population] = left[number]
    return sorted(lasts.values())


def test_a_population_copies_its_best_members_and_beats_random_search():
    space = [Parameter("rate", "float", 1e-5, 1.0, log=True)]
    trained = train_population(make_strategy(spec("pbt", space=space, population=8)), 12, 8)
    # Alone, a member that happens to begin within a factor of 3 of the best rate ends at about 1.
    alone = [(0.5 + min(0.5, abs(math.log10(p["rate"] / 1e-2)))) ** 12
             for p in make_strategy(spec(space=space)).ask(8)]  # fmt: skip
    assert trained[4] < 0.01 < sorted(alone)[4]


def test_a_member_of_a_population_waits_for_its_own_trial_only():
    population = make_strategy(spec("pbt", population=3))
    points = population.ask(5)
    assert len(points) == 3 and population.ask(1) == []
    population.tell(Trial(1, points[1]), TrialResult(0.5))
    (goes_on,) = population.ask(5)
    assert goes_on == Proposal(points[1], 1)
    population.tell(Trial(3, goes_on.point, 1), TrialResult(None))
    (anew,) = population.ask(1)
    assert not isinstance(anew, Proposal), "a failed trial left nothing to go on from"


def test_the_worst_member_of_a_population_goes_on_from_the_best():
    population = make_strategy(spec("pbt", population=4, share=0.25, resample=0.0))
    points = population.ask(4)
    for number, value in enumerate((0.1, 0.2, 0.3, 0.9)):
        population.tell(Trial(number, points[number]), TrialResult(value))
    proposals = population.ask(4)
    assert [each.parent for each in proposals] == [0, 1, 2, 0]
    assert proposals[0].point == points[0] and proposals[3].point != points[0]
    ratio = proposals[3].point["x"] / points[0]["x"]
    assert ratio in (pytest.approx(1.2), pytest.approx(1 / 1.2)) or proposals[3].point["x"] == 1


def test_the_login_side_knows_all_strategies():
    assert sorted(contract.STRATEGIES) == sorted(NAMES)


def test_the_login_side_knows_the_options_of_each_strategy():
    for name, options in contract.OPTIONS.items():
        takes = list(inspect.signature(_OURS[name]).parameters.values())[2:]
        assert [each.name for each in takes] == list(options)
        assert [options[each.name].fault(each.default) for each in takes] == [""] * len(takes)
