"""Deficit round-robin: flows get the same cost done; inside a flow priorities count."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from search.broker.fair_queue import FairQueue


@dataclass(eq=False)
class Item:
    flow: str
    shape: int = 1
    priority: int = 0
    cost: float = 1.0
    gone: bool = False
    number: int = 0


def fair_queue(*items: Item) -> FairQueue:
    queue: FairQueue = FairQueue(lambda item: not item.gone)
    for item in items:
        queue.push(item.flow, item)
    return queue


def drain(queue: FairQueue, fits=lambda shape: True) -> list[Item]:  # noqa: ANN001
    found = []
    while item := queue.pop(fits):
        found.append(item)
    return found


def test_flows_take_turns():
    queue = fair_queue(*(Item("a") for _ in range(6)), *(Item("b") for _ in range(3)))
    assert "".join(item.flow for item in drain(queue)) == "abababaaa"


def test_a_flow_of_large_tasks_gets_no_more_than_one_of_small_tasks():
    large = [Item("large", cost=8.0) for _ in range(10)]
    queue = fair_queue(*large, *(Item("small") for _ in range(200)))
    done: Counter[str] = Counter()
    for _ in range(90):
        item = queue.pop(lambda shape: True)
        assert item is not None
        done[item.flow] += int(item.cost)
    assert abs(done["large"] - done["small"]) <= 8


def test_higher_priorities_go_first_and_equal_ones_in_order():
    items = [Item("a", priority=p, number=n) for n, p in enumerate([0, 5, 0, 5])]
    assert [item.number for item in drain(fair_queue(*items))] == [1, 3, 0, 2]


def test_what_does_not_fit_is_passed_over_and_stays():
    queue = fair_queue(Item("a", shape=9), Item("a", shape=1), Item("b", shape=9))
    assert [item.shape for item in drain(queue, lambda shape: shape == 1)] == [1]
    assert len(drain(queue)) == 2


def test_what_was_withdrawn_is_never_given_out():
    items = [Item("a"), Item("a"), Item("b")]
    queue = fair_queue(*items)
    items[0].gone = True
    assert drain(queue) == items[1:]


ITEMS = st.builds(
    Item,
    flow=st.sampled_from("abc"),
    shape=st.integers(1, 3),
    priority=st.integers(0, 2),
    cost=st.sampled_from([1.0, 4.0, 16.0]),
)


@given(st.lists(ITEMS, max_size=40), st.integers(0, 3))
def test_each_item_that_fits_is_given_out_exactly_once(items, largest):
    queue = fair_queue(*items)
    first = drain(queue, lambda shape: shape <= largest)
    rest = drain(queue)
    assert all(item.shape <= largest for item in first)
    assert sorted(map(id, first + rest)) == sorted(map(id, items))
