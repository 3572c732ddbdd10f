"""The commands of upkeep on this machine's own site: what they print, and what they refuse."""

import pytest

from dlctl.cli.upkeep import _print_done
from dlctl.upkeep.inventory import Inventory
from dlctl.upkeep.prune import Prunable, Pruned


def test_a_site_without_anything(dlctl, local_site):
    assert dlctl("prune", "--dry-run", "--json", ok=True).json[0]["trainings"] == []
    assert dlctl("du", "local", "--json", ok=True).json["total_bytes"] == 0
    assert dlctl("adopt", "local", "--json", ok=True).json == {
        "site": "local", "added": [], "known": [], "damaged": [],
    }  # fmt: skip
    assert "nothing on local may go" in dlctl("prune", "local", "--yes", ok=True).stderr


def test_what_a_prune_refuses(dlctl, local_site):
    assert dlctl("prune", "--json").exit_code == 2
    assert dlctl("prune", "--older-than", "5x").exit_code == 2
    assert dlctl("doctor", "--deep").exit_code == 2
    assert dlctl("adopt", "nowhere").exit_code == 4


def test_a_damaged_record_is_kept_aside_by_adopt(dlctl, local_site, xdg):
    assert "`dlctl adopt SITE` finds those of a site" in dlctl("list", ok=True).stderr
    record = xdg.state / "dlctl/record.db"
    record.parent.mkdir(exist_ok=True)
    record.write_bytes(b"no database at all, but longer than the head of one: " * 10)
    broken = dlctl("list")
    assert broken.exit_code == 8 and "dlctl adopt SITE" in broken.stderr
    assert len(broken.stderr.splitlines()) == 2, "one sentence, and what to do"
    adopted = dlctl("adopt", "local", ok=True)
    (kept,) = record.parent.glob("record.db.damaged-*")
    assert f"it is kept as {kept}" in adopted.stderr
    assert dlctl("list", "--json", ok=True).json == []


@pytest.mark.parametrize(("keeps", "unused", "cached", "told"), [
    (True, [], [], "removed 4.1 kB of 2 trainings"),
    (False, [], [], "removed 4.1 kB: 2 trainings"),
    (False, ["store/a"], ["data"], "removed 4.1 kB: 2 trainings, 1 unused folder, 1 cached folder"),
])  # fmt: skip
def test_a_prune_that_keeps_trainings_does_not_call_them_removed(
    capsys, keeps, unused, cached, told
):
    """It said `removed 4.1 kB: 2 trainings, 0 unused folders`; cached data it did not count."""
    done = Pruned(["a-1", "b-2"], unused, 4100, cached=cached)
    site = Inventory("here", "/", 0.0, [], [], "")
    _print_done(Prunable(site, [], [], {}, keeps, removed=done))
    assert capsys.readouterr().out == f"here: {told}\n"
