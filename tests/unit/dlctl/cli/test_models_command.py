"""`dlctl models`, as a person types it; no job runs."""

import contextlib
import json
import re
import socket

import pytest
from repository import REPOSITORY
from stored_models import write_folder

from dlctl import contract
from dlctl.models.known import KnownModel, ModelRecord


@pytest.fixture
def folder(dlctl, local_site):
    return write_folder(dlctl.cwd / "folder", net_pt=b"weights")


def test_the_ids_go_to_standard_output_and_the_rest_to_standard_error(dlctl, folder):
    made = dlctl("models", "create", folder, "--name", "My Words", "--tag", "a", ok=True)
    assert re.fullmatch(r"my-words-[a-z2-9]{8}@1\n", made.stdout)
    assert made.stderr == "2 files, 13 B, at local\n"
    model = made.stdout.partition("@")[0]
    again = dlctl("models", "update", model, folder, "--alias", "best", ok=True)
    assert again.stdout == f"{model}@2\n"
    moved = dlctl("models", "update", f"{model}@1", "--alias", "best", "--tag", "b", ok=True)
    assert moved.stderr == "version 1; @best=1; tags a b\n"
    for words, said in ((["--remove-tag", "x"], "no tag x"), (["--remove-alias", "y"], "no alias")):
        wrong = dlctl("models", "update", model, folder, *words)
        assert (wrong.exit_code, said in wrong.stderr) == (11, True), "and no version is stored"
    [listed] = dlctl("models", "list", "--json", ok=True).json
    assert (listed["aliases"], listed["tags"]) == ({"best": 1}, ["a", "b"])
    assert [version["version"] for version in listed["versions"]] == [1, 2]
    table = dlctl("models", "list", "--tag", "b", ok=True).stdout
    assert re.search(rf"{model}  local  2 +13 B  .* ago  @best=1  a b\n", table)
    nothing = dlctl("models", "list", "--tag", "c", ok=True)
    assert (nothing.stdout, nothing.stderr) == ("", "no model has this tag\n")
    shown = dlctl("models", "show", "my-words@best", "--json", ok=True).json
    assert (shown["version"], shown["versions"], len(shown["files"])) == (1, [1, 2], 2)
    text = dlctl("models", "show", model, "--verify", ok=True).stdout
    assert "2 files, 13 B, all verified" in text
    assert re.search(r"net\.pt +weights +7 B", text)


def test_the_default_site_is_where_models_are_stored_and_looked_for(dlctl, folder, xdg, add_site):
    """`dlctl config site` did not count: a model went to this machine, and none was found there."""
    add_site("mine", f"{dlctl.cwd}/root")
    dlctl("config", "site", "mine", ok=True)
    made = dlctl("models", "create", folder, ok=True)
    assert made.stderr.endswith("at mine\n")
    (xdg.state / "dlctl/record.db").unlink()  # another laptop
    [listed] = dlctl("models", "list", "--json", ok=True).json
    assert listed["site"] == "mine"
    assert dlctl("models", "show", made.stdout.strip(), "--json", ok=True).json["site"] == "mine"


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (["create"], 2, "name a folder, or --from TRAINING"),
        (["create", ".", "--from", "x"], 2, "not both"),
        (["create", "nowhere"], 3, "there is no such folder or manifest"),
        (["create", ".", "--alias", "7"], 11, "can't be an alias: it is a version's number"),
        (["create", "--from", "nothing"], 8, "no training 'nothing'"),
        (["show", "nothing"], 8, "there is no model 'nothing' at the site local"),
        (["copy", "nothing", "local"], 8, "there is no model 'nothing' at the site local"),
        (["show", "a b"], 8, "does not name a stored model"),
        (["gc", "--older-than", "soon"], 2, "--older-than"),
    ],
)
def test_a_mistake_is_one_sentence(dlctl, local_site, words, exit_code, said):
    done = dlctl("models", *words)
    assert (done.exit_code, done.stdout) == (exit_code, "")
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_training_that_sent_no_file_makes_a_model_of_its_results(
    dlctl, local_site, add_site, tmp_path
):
    """The index of an empty folder is empty, and was taken for one that is gone."""
    (dlctl.cwd / "manifest.yml").write_text(
        "name: t\nframework: {name: sh, command: 'echo x >\"$RESULT_DIR/x\"'}\n"
    )
    (training_id,) = dlctl("submit", ok=True).stdout.split()
    dlctl("logs", "--follow", training_id)
    add_site("other", f"{tmp_path}/other")
    create = ("models", "create", "--from", training_id)
    refused = dlctl(*create, "--site", "other")  # it was ignored
    assert f"{training_id} is at local, and the model at other" in refused.stderr
    made = dlctl(*create, "--json", env={"DLCTL_SITE": "other"}, ok=True).json
    assert [each["path"] for each in made["files"]] == ["x"]


def test_a_folder_without_a_file_is_not_called_left_out(dlctl):
    (dlctl.cwd / "manifest.yml").write_text("name: t\nframework: {name: sh, command: 'true'}\n")
    bare = dlctl("models", "create", ".")
    assert bare.exit_code == 3
    assert "no file to store\n  hint: put the program's files there" in bare.stderr
    (dlctl.cwd / "a.py").touch()
    (dlctl.cwd / ".dlctlignore").write_text("*\n")
    ignored = dlctl("models", "create", ".")
    assert "no file to store; left out by .dlctlignore:1: " in ignored.stderr


def test_a_deletion_asks_first(dlctl, folder):
    model = dlctl("models", "create", folder, ok=True).stdout.partition("@")[0]
    assert "--json asks nothing" in dlctl("models", "delete", model, "--json").stderr
    asked = dlctl("models", "delete", model)
    assert asked.exit_code == 2
    assert "add --yes" in " ".join(asked.stderr.replace("│", " ").split())
    tried = dlctl("models", "delete", model, "--dry-run", "--json", ok=True).json
    assert tried == {"model": model, "site": "local", "deleted": False}
    assert dlctl("models", "list", "--json", ok=True).json != []
    done = dlctl("models", "delete", model, "--yes", "--json", ok=True).json
    assert done == {"model": model, "site": "local", "deleted": True}
    assert dlctl("models", "list", "--json", ok=True).json == []


def test_a_copy_to_the_same_site_is_refused_and_to_another_has_its_id(
    dlctl, folder, add_site, tmp_path
):
    made = dlctl("models", "create", folder, "--name", "x", ok=True).stdout.strip()
    assert "is at local already" in dlctl("models", "copy", "x", "local").stderr
    add_site("other", f"{tmp_path}/other")
    done = dlctl("models", "copy", "x", "other", "--alias", "best", ok=True)
    copied = done.stdout.strip()
    assert (copied != made, done.stderr) == (True, f"{made} at local is {copied} at other\n")
    shown = dlctl("models", "show", copied, "--verify", ok=True).stdout
    assert re.search(rf"copy of +{made}", shown)
    unclear = dlctl("models", "show", "x")
    assert (unclear.exit_code, "fits models at local and other" in unclear.stderr) == (8, True)
    again = dlctl("models", "copy", made, "other", ok=True)
    assert again.stdout == done.stdout, "it is there already"
    assert len(dlctl("models", "list", "--json", ok=True).json) == 2


def test_a_rendered_plan_names_the_version_that_an_alias_means_now(dlctl, folder):
    model = dlctl("models", "create", folder, "--name", "x", "--alias", "best", ok=True).stdout
    (dlctl.cwd / "train.py").write_text("")
    (dlctl.cwd / "manifest.yml").write_text(
        "name: a\nframework: {name: pytorch, job: train.py, arguments: {weights: 'model:x@best'}}\n"
    )
    plan = dlctl("render", "--json", ok=True).json["plan"]
    assert (plan["weights"]["model"], plan["weights"]["path"]) == (model.strip(), "net.pt")
    assert plan["framework"]["arguments"]["weights"] == f"{plan['job_dir']}/weights/net.pt"
    dlctl("models", "delete", model.partition("@")[0], "--yes", ok=True)
    assert dlctl("validate", ok=True).stdout == "manifest.yml is valid\n"
    for command in ("render", "submit"):
        refused = dlctl(command)
        assert refused.exit_code == 8
        assert "there is no model 'x' at the site local" in refused.stderr
    assert dlctl("list", "--json", ok=True).json == [], "nothing was queued"


def test_a_list_asks_all_sites_at_the_same_time(dlctl, folder, xdg, add_site):
    """Each is silent until all of them have been asked."""
    dlctl("models", "create", folder, ok=True)
    record = ModelRecord(xdg.state / "dlctl/record.db")
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        for number, server in enumerate(silent):
            server.settimeout(60)
            port = server.getsockname()[1]
            add_site(
                f"silent-{number}",
                "/tmp/nothing",
                f"{{kind: ssh, host: 127.0.0.1, port: {port}, connect_timeout_s: 300}}",
            )
            head = json.loads(contract.to_json(contract.ModelVersion(f"m-{number}", 1, "m")))
            record.remember(f"silent-{number}", [
                KnownModel(f"m-{number}", f"silent-{number}", {"1": head})
            ])  # fmt: skip
        with dlctl.start("models", "list", "--json") as listing:
            stack.callback(listing.kill)
            for connection in [server.accept()[0] for server in silent]:
                connection.close()
            for server in silent:
                server.close()
            listed = json.loads(listing.communicate(timeout=120)[0])
    assert [bool(model["stale_since"]) for model in listed].count(True) == 4
    assert len(listed) == 5
    add_site("local", "/tmp/nothing", "{kind: ssh, host: 127.0.0.1, port: 1, connect_timeout_s: 5}")
    silent = dlctl("models", "list", ok=True)
    assert "warning: local: " in silent.stderr
    assert re.search(r"  local \(\d+ s ago\)", silent.stdout)


@pytest.mark.slow
def test_the_session_on_the_page_of_models_runs_as_printed(dlctl, local_site):
    """The commands of docs/models.md, in their order; a training id replaces TRAINING."""
    page = (REPOSITORY / "docs/models.md").read_text()
    (session,) = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    write_folder(dlctl.cwd, words_txt="hello\n")
    (dlctl.cwd / "manifest.yml").write_text(
        "name: digits\nframework: {name: own, command: 'cp words.txt $RESULT_DIR/model.pt'}\n"
    )
    training, lines = "", session.splitlines()
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("$ dlctl "):
            continue
        words = line.removeprefix("$ dlctl ").replace("TRAINING", training).split()
        done = dlctl(*words)
        if words[0] == "submit":
            training = done.stdout.strip()
            dlctl("logs", "--follow", training, ok=True)
        shape = re.compile(r"-[a-z2-9]{8}\b")
        told = shape.sub("-ID", (done.stdout + done.stderr).split("\n")[0])
        if next_line and not next_line.startswith("$"):
            assert told == shape.sub("-ID", next_line)
        assert done.exit_code == (11 if next_line.startswith("error: ") else 0), (line, done)
