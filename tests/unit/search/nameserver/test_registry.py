"""The nameserver knows what heartbeats told it, and nothing else."""

from search.nameserver.__main__ import Registry

TIMEOUT_S = 10.0


def test_a_broker_is_found_until_it_is_silent_for_too_long() -> None:
    registry = Registry(TIMEOUT_S)
    registry.register("b1", 1, "n1:4000", now=0.0)
    assert registry.lookup("", now=9.0) == ("b1", 1, "n1:4000")
    assert registry.beat("b1", 1, now=9.0)
    assert registry.lookup("", now=18.0) == ("b1", 1, "n1:4000")
    assert registry.lookup("", now=19.5) is None


def test_who_was_dropped_or_is_unknown_must_register_again() -> None:
    registry = Registry(TIMEOUT_S)
    assert not registry.beat("b1", 1, now=0.0)
    registry.register("b1", 1, "n1:4000", now=0.0)
    assert not registry.beat("b1", 1, now=11.0)


def test_nobody_is_told_of_himself() -> None:
    registry = Registry(TIMEOUT_S)
    registry.register("b1", 1, "n1:4000", now=0.0)
    assert registry.lookup("b1", now=1.0) is None
    registry.register("b2", 1, "n2:4000", now=0.0)
    assert {registry.lookup("b1", now=1.0) for _ in range(20)} == {("b2", 1, "n2:4000")}
    assert {registry.lookup("", now=1.0) for _ in range(50)} == {
        ("b1", 1, "n1:4000"),
        ("b2", 1, "n2:4000"),
    }


def test_an_old_incarnation_never_replaces_a_new_one() -> None:
    registry = Registry(TIMEOUT_S)
    registry.register("b1", 2, "n2:4000", now=0.0)
    registry.register("b1", 1, "n1:4000", now=1.0)
    assert registry.beat("b1", 1, now=9.0)  # the old one does not count as a sign of the new one
    assert registry.lookup("", now=9.0) == ("b1", 2, "n2:4000")
    assert registry.lookup("", now=11.0) is None
