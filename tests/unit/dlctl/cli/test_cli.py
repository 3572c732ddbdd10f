"""The command as a user meets it: help, exit codes, JSON, pipes, Ctrl-C. A process each."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlctl import __version__
from dlctl.cli import main

MANIFEST = "name: t\nframework: {name: x, command: 'COMMAND'}\n"
SLURM = """\
transport: {kind: local}
root: ROOT
scheduler: {kind: slurm, path: BIN}
partitions: {small: {cpus_per_node: 2}}
launcher: {kind: srun}
environment: {python: /usr/bin/python3}
"""
SSH = """\
transport: {kind: ssh, host: 127.0.0.1, port: 1, connect_timeout_s: 2}
root: /tmp/nowhere
scheduler: {kind: slurm}
launcher: {kind: srun}
environment: {python: /usr/bin/python3}
"""


def manifest(dlctl, command="true"):
    path = dlctl.cwd / "manifest.yml"
    path.write_text(MANIFEST.replace("COMMAND", command))
    return path


def add_site(xdg, tmp_path, name, text):
    folder = xdg.config / "dlctl/sites"
    folder.mkdir(parents=True, exist_ok=True)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir(exist_ok=True)
    (bin_folder / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: no such QOS' >&2; exit 1\n")
    (bin_folder / "sbatch").chmod(0o755)
    text = text.replace("ROOT", str(tmp_path / "root")).replace("BIN", str(bin_folder))
    (folder / f"{name}.yml").write_text(text)


def test_the_whole_help_is_one_screen_in_groups(dlctl):
    lines = dlctl("--help", ok=True, env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) <= 51 and max(map(len, lines)) <= 80
    heads = [line.split()[0] for line in lines if re.match(r"[A-Z]\w+ +[a-z]+  ", line)]
    assert heads == list(main.PANELS)
    for group in ("search", "models", "stores", "sites", "checkpoints", "frameworks"):
        lines += dlctl(group, "--help", ok=True, env={"COLUMNS": "80"}).stdout.splitlines()
    assert not [line for line in lines if line.endswith("...") or line.startswith("   " * 8)]
    text = dlctl("submit", "--help", ok=True).stdout
    assert "Example: dlctl submit" in text and "\x1b" not in text
    assert "--learners N  " in text and "--memory TEXT  " in text
    usage = {name: dlctl(*name.split(), "-h", ok=True).stdout.splitlines()[0]
             for name in ("tune", "fetch", "sites add", "init")}  # fmt: skip
    assert [line.partition("[OPTIONS] ")[2] for line in usage.values()] == [
        "[ID] NAME=VALUE…", "[WHAT] [ID]...", "NAME USER@HOST", "FOLDER",
    ]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), [
    ("version", "--version"), ("sites check mine --on-node", "doctor mine --deep"),
    ("checkpoint t-1", "checkpoints save t-1"), ("search halt s-1", "halt s-1"),
    ("search cancel", "cancel ID"),
    ("search show s-1 --trial 3", "show s-1 --trial 3"),
])  # fmt: skip
def test_an_old_spelling_is_answered_with_the_new_one(dlctl, old, new):
    done = dlctl(*old.split())
    words = " ".join(old.split()[: 1 if old[0] in "vc" else 2])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"error: `dlctl {words}` is now: dlctl {new}\n"


@pytest.mark.parametrize(
    ("word", "verbs"),
    [
        ("stop", {"halt", "cancel"}),
        ("kill", {"halt", "cancel"}),
        ("rm", {"delete"}),
        ("ps", {"list"}),
        ("history", {"list"}),
        ("tail", {"logs"}),
        ("login", {"sites", "doctor"}),
    ],
)
def test_a_word_of_another_tool_is_answered_with_ours(dlctl, word, verbs):
    done = dlctl(word, "t-1")
    assert (done.exit_code, done.stdout) == (2, "")
    assert set(re.findall(r"`dlctl (\w+)", done.stderr)) == {word} | verbs
    for verb in verbs:
        assert dlctl(verb, "--help").exit_code == 0


def test_help_is_a_word_too(dlctl):
    for words in (["help"], ["help", "models", "list"]):
        assert dlctl(*words, ok=True).stdout == dlctl(*words[1:], "--help", ok=True).stdout


def test_of_very_many_problems_the_first_ones_are_shown_and_the_others_counted(dlctl):
    manifest(dlctl)
    for number in range(25):
        (dlctl.cwd / f"link-{number:02}").symlink_to("/etc/passwd")
    done = dlctl("submit", "manifest.yml", "-s", "local")
    assert done.exit_code == 3
    lines = done.stderr.splitlines()
    assert [line.split(":")[1] for line in lines[:20]] == [f" link-{n:02}" for n in range(20)]
    assert lines[20:] == ["error: and 5 more; fix these, then try again"]


def test_exit_codes_and_sentences_of_each_family(dlctl, xdg, tmp_path):
    add_site(xdg, tmp_path, "refuses", SLURM)
    add_site(xdg, tmp_path, "unreachable", SSH)
    path = manifest(dlctl)
    bad = dlctl.cwd / "bad.yml"
    bad.write_text("name: t\nlerners: 2\n")
    (dlctl.cwd / "train.sh").write_text("echo\n")
    for code, arguments, said in [
        (2, ["submit", "--no-such-option"], "No such option"),
        (2, ["submit", "--lr", "0.1"], "--lr; those of your program stand in the manifest"),
        (3, ["submit", dlctl.cwd], "is a folder, not a file; "),
        (3, ["submit", "train.sh"], "is a program; a manifest names it"),
        (2, ["show", "--tag", "x"], "status and list take several"),
        (2, ["resume", "--set", "a=b"], "`dlctl submit --from ID` trains anew"),
        (3, ["submit", bad], "lerners"),
        (3, ["validate", "absent.yml"], "absent.yml"),
        (3, ["submit", "absent.yml"], "dlctl init my-training"),
        (2, ["fetch", "log", "t-1"], "'log' is none of"),
        (2, ["fetch", "checkpoint"], "'checkpoint' is none of"),
        (2, ["fetch", "results", "logs"], "`all` brings all"),
        (8, ["fetch", "t-nothing"], "no training 't-nothing'"),
        (4, ["submit", path, "--site", "refusez"], "did you mean 'refuses'"),
        (5, ["submit", path, "--site", "refuses", "--cpus", "3"], "fits no partition"),
        (6, ["submit", path, "--site", "unreachable"], "127.0.0.1"),
        (7, ["submit", path, "--site", "refuses"], "no such QOS"),
        (4, ["list", "--site", "refusez"], "did you mean 'refuses'"),
        (8, ["status", "nothing-like-it"], "no training 'nothing-like-it'"),
        (8, ["status", "nothing-like-it"], "`dlctl adopt SITE` finds what another machine has"),
        (8, ["logs", "--follow", "absent"], "no training"),
    ]:
        done = dlctl(*arguments)
        assert (done.exit_code, done.stdout) == (code, ""), (arguments, done)
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stderr
    for arguments in (["--debug", "status", "none"], ["status", "none", "--debug"]):  # no id's end
        assert "Traceback" in dlctl(*arguments).stderr


def test_a_job_that_runs_is_no_error_where_its_id_cannot_be_written(dlctl, xdg, tmp_path):
    """The record becomes another dlctl's, a newer one, while the scheduler is asked."""
    add_site(xdg, tmp_path, "newer", SLURM)
    database = xdg.state / "dlctl/record.db"
    (tmp_path / "bin/sbatch").write_text(
        f"#!/bin/sh\n{sys.executable} -c 'import sqlite3\n"
        f'c = sqlite3.connect("{database}"); c.execute("PRAGMA user_version = 9"); c.close()\n'
        "'; echo 4711\n"
    )
    done = dlctl("submit", manifest(dlctl), "--site", "newer")
    assert done.exit_code == 0, done
    training_id = done.stdout.strip()
    assert training_id.startswith("t-")
    assert done.stderr.count("warning: ") == 1
    assert "newer version of dlctl" in done.stderr
    assert training_id in dlctl("list", ok=True).stdout


def test_learners_that_would_each_train_alone_are_warned_about(dlctl):
    (dlctl.cwd / "train.py").write_text("print('I am alone')\n")
    command = "framework: {name: pytorch, command: python train.py}"
    (dlctl.cwd / "manifest.yml").write_text(f"name: t\nlearners: 2\n{command}\n")
    told = "nothing in the program reads RANK or LEARNER_ID"
    assert told in dlctl("validate", "manifest.yml", ok=True).stderr
    (warning,) = dlctl("validate", "manifest.yml", "--json", ok=True).json["warnings"]
    assert told in warning
    (dlctl.cwd / "manifest.yml").write_text(f"name: t\n{command}\n")
    assert dlctl("validate", "manifest.yml", ok=True).stderr == ""


def test_the_partition_is_chosen_on_the_command_line(dlctl, xdg, tmp_path):
    two = SLURM.replace("{small: ", "{big: {cpus_per_node: 64}, small: ")
    add_site(xdg, tmp_path, "two", two)
    path = manifest(dlctl)
    for partition in ("small", "big"):
        shown = dlctl("render", path, "--site", "two", "--partition", partition, ok=True)
        assert f"#SBATCH --partition={partition}\n" in shown.stdout
    done = dlctl("submit", path, "--site", "two", "--partition", "small", "--cpus", "3")
    assert (done.exit_code, done.stdout) == (5, "")
    assert "small" in done.stderr


def end(dlctl, training_id):
    return dlctl("logs", "--follow", training_id)


@pytest.mark.first("exit 3*")
@pytest.mark.parametrize(("command", "code", "state"), [
    ("echo hello", 0, "COMPLETED"), ("exit 3", 10, "FAILED"),
])  # fmt: skip
def test_a_local_training_to_its_end(dlctl, local_site, command, code, state):
    training_id = dlctl("submit", manifest(dlctl, command), "--json", ok=True).json["training_id"]
    followed = end(dlctl, training_id)
    assert followed.exit_code == code, followed
    assert "\x1b" not in followed.stdout + followed.stderr
    for verb in ("status", "show"):
        assert dlctl(verb, "--json", ok=True).json["state"] == state
    assert dlctl("list", "--json", ok=True).json[0]["training_id"] == training_id
    assert dlctl("fetch", "results", "--json", ok=True).json["training_id"] == training_id
    assert dlctl("fetch", "checkpoints").exit_code == 9
    assert dlctl("delete", training_id[:4], "--yes", "--json", ok=True).json["deleted"] is True
    assert not local_site.job_dir(training_id).exists()


@pytest.mark.slow
def test_what_is_followed_is_json_as_well(dlctl, local_site):
    """`dlctl submit --follow --json | jq` stopped at the first line of the log."""
    for command in (["submit", manifest(dlctl, "echo hello; exit 3")], ["resume"]):
        done = dlctl(*command, "--follow", "--json")
        assert done.exit_code == 10, done
        record, *lines = re.split(r"\n(?=\{)", done.stdout)
        assert json.loads(record)["state"]
        lines = [json.loads(line) for line in lines]
        assert "hello" in [each["line"] for each in lines if each["source"] == "learner-0"]


def test_an_output_that_is_full_is_said():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dlctl", "frameworks", "list"], stdout=full,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == (
        "error: standard output can't be written: No space left on device"
    )


def test_a_reader_that_leaves_is_exit_code_141(dlctl, local_site):
    """Of very much output, and of output that is still in a buffer when the command ends."""
    training_id = dlctl("submit", manifest(dlctl, "seq 100000"), ok=True).stdout.strip()
    end(dlctl, training_id)
    for command in (["logs", training_id], ["list", "--offline"]):
        with dlctl.start(*command) as process:
            process.stdout.close()
            said = process.stderr.read()
            assert process.wait(60) == 141, command
        assert said == ""
    last = dlctl("logs", training_id, "--learner", "0", "--tail", "2", ok=True).stdout
    assert last == "learner-0 | 99999\nlearner-0 | 100000\n"
    below = dlctl.cwd / "data"
    below.mkdir()
    dlctl("fetch", training_id[-5:], cwd=below, ok=True)
    assert (below / "results" / training_id / "logs/attempt-1-learner-0.log").exists()
    assert dlctl.record(training_id).fetched_attempt == 1
    assert dlctl("status", "--json", cwd=below, ok=True).json["training_id"] == training_id


def test_the_version_and_a_folder_with_spaces(dlctl):
    assert dlctl("--version", ok=True).stdout == f"dlctl {__version__}\n"
    assert "cd 'My Net 2' && dlctl submit" in dlctl("init", "My Net 2", ok=True).stderr


def test_init_writes_a_manifest_for_a_program_that_is_there(dlctl):
    (dlctl.cwd / "main.py").write_text("print('step 1: loss 0.5')\n")
    (dlctl.cwd / "util.py").write_text("")
    (dlctl.cwd / ".dlctlignore").write_text("mine\n")
    assert "`dlctl init .` writes one for the program there" in dlctl("validate").stderr
    done = dlctl("init", ".", ok=True)
    assert done.stdout == "created manifest.yml\ncreated .dlctl/manifest.schema.json\n"
    assert "the manifest runs: python main.py" in done.stderr
    assert (dlctl.cwd / ".dlctlignore").read_text() == "mine\n"
    assert dlctl("validate", ok=True).stderr == ""
    assert "dlctl submit manifest.yml" in dlctl("init", ".").stderr
    (dlctl.cwd / "manifest.yml").rename(dlctl.cwd / "manifest.yaml")
    assert "manifest.yaml does: name it" in dlctl("submit").stderr
    assert "already contains manifest.yaml" in dlctl("init", ".").stderr
    (dlctl.cwd / "manifest.yaml").unlink()
    (dlctl.cwd / "main.py").rename(dlctl.cwd / "other.py")
    assert "dlctl init . --command ./run.sh" in dlctl("init", ".").stderr
    dlctl("init", ".", "--command", "python other.py --note 'a: b'", ok=True)
    assert dlctl("validate", ok=True).stderr == ""


def test_the_loop_without_its_packages_here_is_refused_before_anything_is_sent(dlctl, local_site):
    dlctl("init", "t", ok=True)
    blocked = "import sys; sys.modules['torch'] = None\n"
    (dlctl.cwd / "sitecustomize.py").write_text(blocked)
    with dlctl.start("submit", "t/manifest.yml", env={"PYTHONPATH": str(dlctl.cwd)}) as process:
        said = process.stderr.read()
        assert process.wait(60) == 5, said
    assert "trains with this Python" in said and "which lacks torch" in said
    assert "-m pip install 'dlctl[node]'" in said
    assert not (local_site.root / "store").exists()


def test_ctrl_c_while_dlctl_starts_prints_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(main, "app", lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 130 and capsys.readouterr().err == ""


def test_ctrl_c_leaves_the_training_running(dlctl, local_site):
    training_id = dlctl("submit", manifest(dlctl, "echo started; sleep 60"), ok=True).stdout.strip()
    with dlctl.start("logs", "--follow", training_id) as follower:
        for line in follower.stdout:
            if re.search(r"\| started", line):
                break
        follower.send_signal(signal.SIGINT)
        said = follower.stderr.read()
        assert follower.wait(60) == 130
    assert f"the training continues as {training_id}" in said
    assert "Traceback" not in said
    assert dlctl("status", "--json", ok=True).json["state"] == "TRAINING"
    assert json.loads(dlctl("cancel", "--json", ok=True).stdout)["training_id"] == training_id
    assert end(dlctl, training_id).exit_code == 10, "a script that follows must not continue"
    assert dlctl("status", "--json", ok=True).json["state"] == "CANCELLED"


@pytest.mark.slow
def test_a_job_directory_that_is_gone_is_why_nothing_is_shown(dlctl, local_site):
    """`logs` said that nothing was printed, `fetch` that nothing was made yet; `show` failed."""
    training_id = dlctl("submit", manifest(dlctl), ok=True).stdout.strip()
    end(dlctl, training_id)
    said = dlctl("logs", "--learner", "0", ok=True).stderr
    assert said == f"learner 0 of {training_id} (COMPLETED) has printed nothing\n"
    shutil.rmtree(local_site.job_dir(training_id))
    gone = "its job directory is gone from the site"
    for command in (["logs"], ["checkpoints", "list"]):
        assert dlctl(*command, ok=True).stderr.endswith(f": {gone}\n"), command
    fetched = dlctl("fetch")
    assert fetched.exit_code == 9
    assert gone in fetched.stderr and f"dlctl delete {training_id}" in fetched.stderr
    shown = dlctl("show", ok=True)
    assert gone in shown.stdout and "COMPLETED" in shown.stdout
