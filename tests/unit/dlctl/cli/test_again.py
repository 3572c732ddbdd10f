"""Trainings that are awaited, remarked on, compared, submitted again, and forecast."""

import json

import pytest

RUNS = 'echo "$1"; echo made >"$RESULT_DIR/made"'


@pytest.fixture
def own(dlctl, local_site):
    """A training of a person's own program, that has ended."""
    (dlctl.cwd / "train.sh").write_text(RUNS)
    (dlctl.cwd / "manifest.yml").write_text(
        "name: own\nframework: {command: 'sh train.sh one'}\nenv: {KEY: {from_file: key.txt}}\n"
    )
    (dlctl.cwd / "key.txt").write_text("hunter2")
    training_id = dlctl("submit", ok=True).stdout.strip()
    assert dlctl("wait", training_id, ok=True).stdout.startswith(f"{training_id} COMPLETED")
    return training_id


@pytest.mark.slow
def test_waiting_tells_how_each_ended_and_ends_in_time(dlctl, local_site):
    submit = ("submit", "--set")
    (dlctl.cwd / "manifest.yml").write_text("name: w\nframework: {command: 'true'}\n")
    good = dlctl("submit", ok=True).stdout.strip()
    bad = dlctl(*submit, "framework.command=exit 3", ok=True).stdout.strip()
    done = dlctl("wait", good, bad)
    assert done.exit_code == 10 and f"{bad} is FAILED" in done.stderr
    assert {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()} == {
        good: "COMPLETED", bad: "FAILED",
    }  # fmt: skip
    long = dlctl(*submit, "framework.command=sleep 600", ok=True).stdout.strip()
    late = dlctl("wait", long, "--timeout", "1s", "--json")
    assert late.exit_code == 124 and f"{long} did not end within 1s" in late.stderr
    dlctl("cancel", long, ok=True)
    assert [each["state"] for each in dlctl("wait", long, "--json").json] == ["CANCELLED"]


@pytest.mark.costs(6)
def test_notes_are_kept_shown_and_taken_away(dlctl, own):
    dlctl("note", own, "the rate is too high", ok=True)
    dlctl("note", own, "again", ok=True)
    assert dlctl("note", own, ok=True).stdout.splitlines()[1].endswith(" again")
    assert "the rate is too high" in dlctl("show", own, ok=True).stdout
    assert len(dlctl("note", own, "--remove", "1", "--json", ok=True).json["notes"]) == 1
    assert dlctl("note", own, "--remove", "2").exit_code == 2
    assert dlctl("note", own, "a\x1b[2J").exit_code == 2
    dlctl("status", own, ok=True)
    assert len(dlctl("note", own, "--json", ok=True).json["notes"]) == 1, "no look loses one"


@pytest.mark.costs(12)
def test_a_training_is_submitted_again_with_changes_from_any_folder(
    dlctl, own, tmp_path, monkeypatch
):
    code = ("show", own, "--json")
    before = dlctl(*code, ok=True).json["plan"]
    (dlctl.cwd / "train.sh").write_text("exit 1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    change = ("--set", "framework.command=sh train.sh two")
    again = dlctl("submit", "--from", own, *change, cwd=elsewhere, ok=True).stdout.strip()
    assert dlctl("wait", cwd=elsewhere, ok=True).stdout.startswith(again), "this folder's latest"
    after = dlctl("show", again, "--json", ok=True).json["plan"]
    assert after["code_digest"] == before["code_digest"]
    assert after["framework"]["command"] == "sh train.sh two"
    differs = dlctl("diff", own, again, "--json", ok=True).json
    assert (differs["first"], differs["second"], differs["files"]) == (own, again, [])
    assert [row["what"] for row in differs["plan"]] == ["framework.command"]
    shown = dlctl("diff", own, again, ok=True).stdout
    assert "framework.command  sh train.sh one  sh train.sh two\n" in shown
    same = dlctl("submit", "--from", again, cwd=elsewhere, ok=True).stdout.strip()
    assert f"{again} and {same} are the same" in dlctl("diff", again, same, ok=True).stdout
    assert dlctl("submit", "manifest.yml", "--from", own).exit_code == 2
    assert dlctl("resume", own, "--epochs", "+1").exit_code == 2, "its program decides"
    monkeypatch.setenv("DLCTL_SITE", "nowhere")
    refused = dlctl("submit", "--from", own, "--site", "nowhere")
    assert "nowhere" in refused.stderr, "--site counts, though it is the default one's name"


def test_a_dry_run_sends_nothing_and_says_what_it_would(dlctl, local_site):
    (dlctl.cwd / "train.sh").write_text(RUNS)
    (dlctl.cwd / "manifest.yml").write_text(
        "name: own\nlearners: 2\nframework: {command: sh train.sh}\n"
    )
    found = dlctl("submit", "--dry-run", "--json", ok=True)
    assert [each["path"] for each in found.json["files"]] == ["train.sh"]
    assert found.json["plan"]["asks for"] == "2 learners on 1 node, 1 CPU each"
    assert "nothing was sent" in dlctl("submit", "--dry-run", ok=True).stderr
    (dlctl.cwd / "grid.yml").write_text("env.LR: [1, 2]\n")
    plan = dlctl("submit", "--sweep", "grid.yml", "--dry-run", "--json", ok=True).json["plan"]
    assert plan["trainings"] == "2: LR=1; LR=2"
    assert json.loads(dlctl("list", "--json", ok=True).stdout) == []
    assert not (local_site.root / "jobs").exists()
    with (dlctl.cwd / "manifest.yml").open("a") as manifest:
        manifest.write(
            "data_stores: [{id: a, type: host_mount, training_data: {container: x}, connection: "
            "{path: /nowhere}}]\n"
        )
    refused, dry = dlctl("submit"), dlctl("submit", "--dry-run")
    assert refused.exit_code == dry.exit_code == 5, dry
    assert "nothing was sent: /nowhere/x of data store 'a' is not there" in dry.stderr


@pytest.mark.costs(10)
def test_a_command_that_is_given_twice_names_what_it_has_started(dlctl, local_site):
    (dlctl.cwd / "manifest.yml").write_text("name: own\nframework: {command: sleep 60}\n")
    first = dlctl("submit", ok=True)
    assert "trained already" not in first.stderr
    (dlctl.cwd / "other.yml").write_text("name: other\nframework: {command: echo}\n")
    both = dlctl("submit", "manifest.yml", "other.yml", "--set", "env.B=1", ok=True)
    assert both.stderr.count("names neither RESULT_DIR nor CHECKPOINT_DIR") == 1
    again = dlctl("submit", ok=True)
    assert f"the same is trained already: {first.stdout.strip()}, submitted" in again.stderr
    assert "trained already" not in dlctl("submit", "--set", "env.A=1", ok=True).stderr
    dlctl("cancel", "--name", "own", ok=True)
    assert dlctl("wait", "--name", "own").exit_code == 10
    (dlctl.cwd / "grid.yml").write_text("framework.command: [echo, echo again]\n")
    last = dlctl("submit", "--sweep", "grid.yml", "--tag", "grid", ok=True)
    assert "trained already" not in last.stderr
    dlctl("wait", "--tag", "grid", ok=True)
    found = dlctl("list", "--tag", "grid", "--columns", "framework.command", "--json", ok=True).json
    assert sorted(each["varied"] for each in found) == ["command=echo", "command=echo again"]
