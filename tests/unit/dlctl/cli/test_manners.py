"""Settings, the pager, names such as @latest, one shape of JSON, --dry-run, broken surroundings."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import jsonschema
import pytest
from login_side import make_record

from dlctl.contract import State
from dlctl.errors import RecordError
from dlctl.record import Record


@pytest.fixture
def three(trainings):
    """Three trainings in the local record, the last of which runs."""
    for number in range(3):
        state = State.TRAINING if number == 2 else State.COMPLETED
        record = Record(f"t-{number}", "t", "local", "/no", "/no", f"2026-01-0{number + 1}")
        trainings.add(replace(record, state=state, job_id="" if number == 2 else "7"))
    return trainings


@pytest.mark.parametrize(("name", "wanted"), [("@latest", "t-2"), ("@-1", "t-2"), ("@-3", "t-0")])
def test_trainings_are_counted_back_from_the_latest(three, name, wanted):
    assert three.find(name).training_id == wanted


@pytest.mark.parametrize(
    ("name", "told"),
    [("@-4", "@-4: there are only 3 in the local record"), ("@-0", "'@-0' is no training"),
     ("@newest", "'@newest' is no training")],
)  # fmt: skip
def test_no_other_training_is_taken_for_what_does_not_exist(three, name, told):
    with pytest.raises(RecordError, match=re.escape(told)):
        three.find(name)


def test_a_setting_is_kept_shown_with_its_source_and_taken_away(dlctl, xdg):
    assert dlctl("config", "site", "--json", ok=True).json[0]["from"] == "default"
    dlctl("config", "site", "slurm-example", ok=True)
    (dlctl.cwd / "manifest.yml").write_text("name: t\nframework: {name: sh, command: 'true'}\n")
    for option, site in (([], "slurm-example"), (["--site", "local"], "local")):
        assert dlctl("render", "--json", *option, ok=True).json["plan"]["site"] == site
    (found,) = dlctl("config", "site", "--json", ok=True).json
    assert found["value"] == "slurm-example"
    assert found["from"] == str(xdg.config / "dlctl/config.yml")
    (there,) = dlctl("config", "site", "--json", ok=True, env={"DLCTL_SITE": "local"}).json
    assert (there["value"], there["from"]) == ("local", "$DLCTL_SITE")
    dlctl("config", "site", "--unset", ok=True)
    assert dlctl("config", "site", "--json", ok=True).json[0]["value"] == "local"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["colour"], "'colour' is no setting"), (["site", "nosuch"], "there is no site 'nosuch'"),
     (["site", "local", "--unset"], "either a value or --unset"),
     (["--unset"], "name the setting")],
)  # fmt: skip
def test_a_wrong_setting_is_refused(dlctl, arguments, told):
    done = dlctl("config", *arguments)
    assert done.exit_code != 0
    assert told in done.stderr


def test_a_damaged_file_of_settings_is_told_with_its_place(dlctl, xdg):
    (xdg.config / "dlctl").mkdir(parents=True, exist_ok=True)
    (xdg.config / "dlctl/config.yml").write_text("site: [a\n")
    done = dlctl("config")
    assert done.exit_code == 2
    assert "config.yml:" in done.stderr


def test_deleting_can_be_tried_first(dlctl, three, xdg):
    dlctl("sites", "add", "mine", "local", "--without-slurm", ok=True)
    file = xdg.config / "dlctl/sites/mine.yml"
    assert dlctl("sites", "remove", "mine", "-n", ok=True).stdout == f"would remove {file}\n"
    assert file.exists()
    done = dlctl("delete", "--name", "t", "--dry-run", "--json", ok=True).json
    assert [each["would"] for each in done] == ["delete", "delete", "refuse: it has not ended"]
    assert len(three.all()) == 3


@pytest.mark.slow
def test_a_running_training_that_would_be_cancelled_runs_on(dlctl, local_site):
    """A real job: only that can show that nothing was sent to it."""
    (dlctl.cwd / "manifest.yml").write_text(
        "name: t\nframework: {name: sh, command: 'sleep 600'}\n"
    )
    (training_id,) = dlctl("submit", ok=True).stdout.split()
    (tried,) = dlctl("cancel", "-n", "--json", ok=True).json
    assert (tried["training_id"], tried["would"]) == (training_id, "cancel")
    assert dlctl("status", "--json", ok=True).json["state"] != "CANCELLED"
    assert f"{training_id}  local" in dlctl("cancel", "--name", "t", "--dry-run", ok=True).stdout
    dlctl("cancel", ok=True)
    dlctl("logs", "--follow")  # until it has ended
    assert dlctl("status", "--json", ok=True).json["state"] == "CANCELLED"
    (tried,) = dlctl("cancel", "-n", "--json", ok=True).json
    assert (tried["would"], tried["lost"]) == ("refuse: it has ended", "")


@pytest.mark.parametrize(("arguments", "said"), [
    (["serve", "--port", "x"], "'--port': 'x' is not allowed; a whole number is allowed"),
    (["submit", "--repeat", "0"], "'--repeat': '0' is out of bounds; at least 1 is allowed"),
    (["dashboard", "--port", "99999"], "'99999' is out of bounds; at most 65535 is allowed"),
    (["export", "x", "--format", "foo"], "'--format': 'foo' is not one of 'torchscript',"),
    (["checkpoints", "diff", "A", "B"], "STEP…: 'B' is no step; another training comes after "),
])  # fmt: skip
def test_a_wrong_option_is_explained_in_plain_words(dlctl, arguments, said):
    done = dlctl(*arguments)
    assert done.exit_code == 2 and said in done.stderr
    assert "Input should" not in done.stderr and "Value error" not in done.stderr


def test_what_has_ended_goes_on_no_more():
    """Whether its plan lets it go on is kept, for a resume."""
    for state in (State.COMPLETED, State.TRAINING):
        record = make_record(state=state, goes_on=True)
        assert (record.plain()["goes_on"], record.goes_on) == (state is State.TRAINING, True)


def test_all_commands_print_a_training_in_one_shape(dlctl, three):
    shape = dlctl("schema", "training", ok=True).json
    (listed, *_) = dlctl("list", "--offline", "--json", ok=True).json
    (tagged,) = dlctl("tag", "t-0", "--add", "x", "--json", ok=True).json
    for row in (listed, tagged):
        assert set(row) == set(shape["properties"]) - {"measured"} == set(shape["required"])
    assert tagged["tags"] == ["x"]
    jsonschema.validate(listed, shape)
    assert dlctl("schema", "nothing").exit_code == 2


def rendered_on_a_terminal(dlctl, pager):
    (dlctl.cwd / "manifest.yml").write_text("name: t\nframework: {name: sh, command: 'true'}\n")
    env = dlctl.env | {"DLCTL_PAGER": pager, "TERM": "xterm"}
    command = ["render", "--site", "slurm-example"]
    return dlctl.server.run_on_terminal(command, env=env, cwd=dlctl.cwd, columns=80)[1], env


@pytest.mark.parametrize(
    ("pager", "paged"),
    [("sed s/^/PAGED/", True), ("never", False), ("less '", False), ("/no/such/pager", False)],
)
def test_what_is_long_goes_through_the_users_pager(dlctl, pager, paged):
    printed, env = rendered_on_a_terminal(dlctl, pager)
    assert (b"PAGED# plan.json" in printed) is paged
    assert b"# plan.json" in printed
    assert "PAGED" not in dlctl("render", env=env, ok=True).stdout, "never in a pipe"
    if paged:  # a user who has seen enough leaves no traceback
        said, *lines = rendered_on_a_terminal(dlctl, "head -n 1")[0].splitlines()
        assert said.startswith(b"a submission sends ") and lines == [b"# plan.json"]


RUN = f"exec {sys.executable} -m dlctl list"
WHERE = f"exec {sys.executable} -m dlctl status"


def run(script, env):
    return subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True,
                          check=False, timeout=60)  # fmt: skip


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_fault(xdg, closed):
    """`dlctl submit >&-` submitted, and ended with an internal error."""
    end = run(f"{RUN} {closed}", xdg.env)
    assert (end.returncode, "internal error" in end.stderr) == (0, False), end


def test_a_current_folder_that_is_gone_is_said(xdg, tmp_path):
    end = run(f"cd {tmp_path} && mkdir gone && cd gone && rmdir ../gone && {WHERE}", xdg.env)
    assert (end.returncode, end.stderr) == (1, (
        "error: the current folder is gone: somebody has removed it\n"
        "  hint: cd to another folder\n"
    ))  # fmt: skip


def test_a_user_without_a_home_is_told_so():
    if os.getuid() != 0:
        pytest.skip("only root can run a program as a user that does not exist")
    end = run(f"cd / && exec setpriv --reuid 54321 --clear-groups {RUN[5:]}",
              {"PATH": os.environ["PATH"]})  # fmt: skip
    assert (end.returncode, "there is no home folder: HOME is not set" in end.stderr) == (1, True)


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["show", "nosuch"], 8, "no training 'nosuch' is known here"),
    (["report", "nosuch"], 8, "no training 'nosuch' is known here"),
    (["submit", "nosuch.yml"], 3, "nosuch.yml: does not exist"),
    (["list", "--sort", "colour"], 2, "no training here has a column or a metric 'colour'"),
    (["show", "--colour"], 2, "No such option: --colour"),
])  # fmt: skip
def test_a_failure_is_json_too(dlctl, three, arguments, code, message):
    """A program that reads standard output found nothing there."""
    done = dlctl(*arguments, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["exit_code"]) == (code, code)
    assert error["message"].startswith(message) and message.split("'")[0].strip() in done.stderr
    assert not dlctl(*arguments).stdout


def test_a_manifest_that_is_a_link_to_itself_is_no_fault_of_dlctl(dlctl):
    loop = dlctl.cwd / "loop.yml"
    loop.symlink_to(loop)
    for command in ("validate", "submit", "render"):
        end = dlctl(command, "loop.yml")
        assert "internal error" not in end.stderr and "loop.yml" in end.stderr, end
