"""The commands of upkeep on this machine's own site: what they print, and what they refuse."""


def test_a_site_without_anything(dlctl, local_site):
    assert dlctl("prune", "--dry-run", "--json", ok=True).json[0]["trainings"] == []
    assert dlctl("du", "local", "--json", ok=True).json["total_bytes"] == 0
    assert dlctl("adopt", "local", "--json", ok=True).json == {
        "site": "local", "added": [], "known": [], "damaged": [],
    }  # fmt: skip
    assert "nothing on local may go" in dlctl("prune", "--yes", ok=True).stderr


def test_what_a_prune_refuses(dlctl, local_site):
    assert dlctl("prune", "--json").exit_code == 2
    assert dlctl("prune", "--older-than", "5x").exit_code == 2
    assert dlctl("doctor", "--deep").exit_code == 2
    assert dlctl("adopt", "nowhere").exit_code == 4
