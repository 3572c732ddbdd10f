"""The nameserver knows what heartbeats told it, and nothing else."""

from search.nameserver.__main__ import Registry


def registry_of(*brokers: str) -> Registry:
    """Return a registry whose brokers b1, b2, … have registered at these hosts at the time 0."""
    registry = Registry(timeout_s=10.0)
    for number, host in enumerate(brokers, 1):
        registry.register(f"b{number}", 1, f"{host}:4000", now=0.0)
    return registry


def test_a_broker_is_found_until_it_is_silent_for_too_long_and_must_register_again():
    registry = registry_of("n1")
    assert not registry.beat("b2", 1, now=0.0), "it is unknown"
    assert registry.lookup("", now=9.0) == ("b1", 1, "n1:4000")
    assert registry.beat("b1", 1, now=9.0)
    assert registry.lookup("", now=18.0) == ("b1", 1, "n1:4000")
    assert registry.lookup("", now=19.5) is None
    assert not registry.beat("b1", 1, now=20.0)


def test_nobody_is_told_of_himself():
    registry = registry_of("n1", "n2")
    first, second = ("b1", 1, "n1:4000"), ("b2", 1, "n2:4000")
    assert registry_of("n1").lookup("b1", now=1.0) is None
    assert {registry.lookup("b1", now=1.0) for _ in range(20)} == {second}
    assert {registry.lookup("", now=1.0) for _ in range(50)} == {first, second}


def test_an_old_incarnation_never_replaces_a_new_one():
    registry = registry_of()
    registry.register("b1", 2, "n2:4000", now=0.0)
    registry.register("b1", 1, "n1:4000", now=1.0)
    assert registry.beat("b1", 1, now=9.0)  # the old one does not count as a sign of the new one
    assert registry.lookup("", now=9.0) == ("b1", 2, "n2:4000")
    assert registry.lookup("", now=11.0) is None
