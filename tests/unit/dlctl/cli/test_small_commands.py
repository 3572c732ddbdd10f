"""Shell completion, lists of folders, test notices, and how the dashboard starts and ends."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hints import commands_in
from people import mail_server, webhook

from dlctl.contract import State
from dlctl.contract.metrics import MetricsLine
from dlctl.record import Record

# What a shell offers to complete; none of it asks a site -----------------------------------------


@pytest.fixture
def known(trainings):
    """A training of a site that is no more."""
    record = Record("t-1", "t", "gone", "/no", "/no", "2026-01-01")
    trainings.add(replace(record, tags=["baseline"]))
    return trainings


def offered(env, shell, words):
    """Return what the real command offers for the last of these words."""
    asked = {
        "_DLCTL_COMPLETE": f"complete_{shell}", "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": " ".join(words),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1],
    }  # fmt: skip
    command = [str(Path(sys.executable).with_name("dlctl"))]
    done = subprocess.run(command, env=env | asked, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "words", "wanted"),
    [("bash", ["show", "t"], "t-1"), ("zsh", ["list", "--tag", "b"], "baseline"),
     ("fish", ["submit", "--tag", "b"], "baseline"), ("bash", ["list", "--site", "l"], "local"),
     ("zsh", ["cancel", "--state", "TR"], "TRAINING"), ("fish", ["schema", "tra"], "training")],
)  # fmt: skip
def test_each_shell_is_offered_what_the_record_knows(xdg, known, shell, words, wanted):
    assert wanted in offered(xdg.env, shell, ["dlctl", *words])


def test_attempts_and_names_of_metrics_are_those_that_this_machine_has_seen(known, monkeypatch):
    from dlctl.cli.logs import complete_attempts
    from dlctl.cli.metrics import complete_names
    from dlctl.series.merged import Entry

    known.add(replace(known.find("t-1"), training_id="t-2", attempt=12))
    entry = Entry.__new__(Entry)
    object.__setattr__(entry, "line", MetricsLine(step=1, values={"loss": 1.0, "lr": 0.1}))
    monkeypatch.setattr("dlctl.outputs.metrics.files.kept_metrics", lambda record: (0.0, [entry]))
    monkeypatch.setattr("dlctl.record.RecordStore", lambda: known)
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    for name, attempts, names in (("t-2", ["12", "11", "10", "1"], ["loss"]), ("nothing", [], [])):
        context.params |= {"training_id": name, "training_ids": [name]}
        assert complete_attempts(context, "1") == attempts
        assert complete_names(context, "lo") == names


# Lists of folders of several origins, also wrong ones ---------------------------------------------

KINDS = {"stores": "store.yml", "frameworks": "framework.yml"}
GOOD = {"stores": "description: Tapes.\n", "frameworks": "title: Lua\n"}


@pytest.fixture(params=sorted(KINDS))
def made(request, tmp_path, monkeypatch):
    """A function that makes a folder in the user's or the training's templates, and the kind."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home/.config"))
    (tmp_path / "training").mkdir()
    monkeypatch.chdir(tmp_path / "training")

    def make(place, name, text):
        folder = tmp_path / place / "templates" / request.param / name
        folder.mkdir(parents=True)
        (folder / KINDS[request.param]).write_text(text)
        (folder / "train.sh.j2").write_text("echo\n")

    return make, request.param


def test_where_each_comes_from_fits_a_narrow_terminal(run, made):
    make, kind = made
    make("training", "here", GOOD[kind])
    make("home/.config/dlctl", "mine", GOOD[kind])
    done = run(kind, "list")
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    assert rows["here"] == f"./templates/{kind}/here"
    assert rows["mine"] == f"~/.config/dlctl/templates/{kind}/mine"
    assert {where for name, where in rows.items() if name not in ("here", "mine")} == {
        "dlctl", "from"}  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_one_that_is_wrong_hides_no_other(run, made, options):
    make, kind = made
    make("training", "wrong", "descriptoin: a\n")
    make("training", "right", GOOD[kind])
    done = run(kind, "list", *options)
    assert done.exit_code == 3
    assert f"wrong/{KINDS[kind]}:1:1: descriptoin: unknown key" in done.stderr
    if options:
        names = [each.get("type") or each["name"] for each in json.loads(done.stdout)]
    else:
        names = [line.split()[0] for line in done.stdout.splitlines()]
    assert "right" in names and "wrong" not in names and len(names) > 10


# `dlctl validate --notify` ------------------------------------------------------------------------

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MANIFEST = """\
name: digits
framework: {{name: custom, command: python train.py}}
notify: {{webhook: '{url}', webhook_secret: '{secret}'{more}}}
"""


@pytest.fixture
def validate(dlctl, xdg, add_site, tmp_path):
    add_site("mine", tmp_path / "root")
    with (xdg.config / "dlctl/sites/mine.yml").open("a") as file:
        file.write("webhook_hosts: [127.0.0.1]\n")

    def validate(url, *options, more="", **how):
        (dlctl.cwd / "train.py").write_text("")
        text = MANIFEST.format(url=url, secret=SECRET, more=more)
        (dlctl.cwd / "manifest.yml").write_text(text)
        return dlctl("validate", *(options or ("--notify", "--site", "mine")), **how)

    return validate


def test_each_way_gets_a_signed_notice_that_says_it_is_a_test(validate, dlctl):
    with webhook() as hook, mail_server() as (port, mails):
        more = (", email: me@example.org, "
                f"smtp: {{server: '127.0.0.1:{port}', sender: a@b.c, tls: none}}")  # fmt: skip
        done = validate(hook.url, more=more, ok=True)
        assert hook.request_count == 1 and len(mails) == 1
        validate(hook.url, "--site", "mine", ok=True)
        assert hook.request_count == 1, "without --notify nobody is told"
        ((command, _),) = commands_in(hook.got[0]["text"])
        dlctl(*command.split(), env={"DLCTL_SITE": "mine"}, ok=True)
        assert hook.request_count == 2
    assert "webhook: the test notice was taken" in done.stderr and "email: " in done.stderr
    (headers, _), got = hook.sent[0], hook.got[0]
    assert got["event"] == "started" and got["training_id"].startswith("test-")
    assert "This is a test" in got["text"] and headers["webhook-signature"].startswith("v1,")


def test_what_was_not_taken_is_an_error_without_a_secret(validate):
    with webhook() as hook:
        hook.answers = [404]
        refused = validate(hook.url)
    absent = validate(hook.url)
    for done, said in ((refused, "answered with 404"), (absent, "Connection refused")):
        assert done.exit_code == 1 and said in done.stderr
        assert "secret-token" not in done.stderr and SECRET not in done.stderr


def test_a_private_receiver_that_the_site_does_not_list_is_refused(validate):
    with webhook() as hook:
        done = validate(hook.url, "--notify", "--site", "local")
    assert done.exit_code == 1 and "webhook_hosts" in done.stderr and hook.request_count == 0


def test_a_manifest_that_tells_nobody_is_a_wrong_option(validate, dlctl):
    text = "name: digits\nframework: {name: custom, command: 'true'}\n"
    (dlctl.cwd / "manifest.yml").write_text(text)
    done = dlctl("validate", "--notify")
    assert done.exit_code == 2 and "no webhook" in done.stderr


# `dlctl dashboard` --------------------------------------------------------------------------------

ONE = "digits-3k9f"


@pytest.fixture
def ended(trainings, tmp_path):
    job = tmp_path / "job"
    (job / "metrics").mkdir(parents=True)
    (job / "metrics" / "1-0.jsonl").write_text('{"step": 3, "time": 1790000000, "loss": 0.5}\n')
    trainings.add(Record(
        ONE, "digits", "local", str(tmp_path), str(job), "2026-01-01T10:00:00+00:00",
        state=State.COMPLETED))  # fmt: skip


def test_it_prints_where_it_is_and_ends_at_ctrl_c(xdg, ended):
    command = [sys.executable, "-m", "dlctl", "dashboard", "3k9f", "--no-browser"]
    env = {name: value for name, value in xdg.env.items() if name != "PYTHONUNBUFFERED"}
    running = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)  # fmt: skip
    url = running.stdout.readline().strip()
    page, _, token = url.partition("?token=")
    assert page.endswith(f"/#/training/{ONE}")
    request = urllib.request.Request(
        page.partition("#")[0] + "api/trainings", headers={"x-dlctl-token": token}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert ONE in answer.read().decode()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "")
    assert "the trainings continue" in err


def test_a_report_is_written_and_no_server_starts(dlctl, ended, tmp_path):
    path = tmp_path / "report.html"
    assert dlctl("dashboard", "--export", path, ok=True).stdout.strip() == str(path)
    text = path.read_text()
    assert ONE in text and text.startswith("<!doctype html>")


def test_a_port_that_is_not_free_an_unknown_training_and_an_unknown_site_are_named(dlctl, ended):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for words, code, said in (
            (["--port", port], 11, port), (["nobody"], 8, "nobody"),
            (["--site", "nowhere"], 4, "nowhere"),
        ):  # fmt: skip
            done = dlctl("dashboard", "--no-browser", *words)
            assert done.exit_code == code and said in done.stderr
