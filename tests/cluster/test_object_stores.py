"""Trainings whose data comes from a real Swift, and whose results go there: the main road."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy
from hints import commands_in
from relay import relayed
from trainings import (
    ON_THE_CLUSTER,
    change_site,
    command_lines,
    complete,
    files_tell,
    halt,
    submit,
    verdict,
    wait_for_state,
    write_training,
)
from waiting import wait_until

from dlctl import contract
from dlctl.contract.stores import Listing, Stored, listing_file

CAFFE = Path(__file__).resolve().parents[2] / "examples/frameworks/caffe"
PASSWORD = "correct-horse-battery"
GONE = b"HTTP/1.1 503 Gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def listing_1(swift, kind="softlayer_objectstore", **connection):
    """Return Listing 1 of the paper, with the credentials by reference."""
    return {
        "name": "my-mnist-model", "version": "1.0", "Learners": 1, "memory": "1024MiB",
        "time": "10m",
        "data_stores": [{
            "id": "softlayer-object-storage", "type": kind,
            "training_data": {"container": "my_training_data"},
            "training_results": {"container": "my_training_results"},
            "connection": {
                "auth_url": swift.auth_url, "user_name": {"from_env": "STORE_USER"},
                "password": {"from_env": "STORE_PASS"}, **connection,
            },
        }],
        "framework": {"name": "pytorch", "job": "train.py", "arguments": {"lr": 0.002}},
        "training": {"epochs": 2, "batch_size": 64},
    }  # fmt: skip


def caffe(folder):
    """Make the folder of Listing 1: a net of Caffe, and weights to start from; return the data."""
    folder.mkdir()
    shutil.copy(CAFFE / "pretrained.caffemodel", folder)
    for path in CAFFE.glob("*.prototxt"):
        text = path.read_text().replace('"caffe/', '"').replace("max_iter: 300", "max_iter: 60")
        (folder / path.name).write_text(text)
    data = {path.name: path.read_bytes() for path in CAFFE.glob("digits_*")}
    return {name: content.replace(b"caffe/", b"") if name.endswith(".txt") else content
            for name, content in data.items()}  # fmt: skip


@ON_THE_CLUSTER
def test_listing_1_trains_on_the_data_of_a_real_swift_and_stores_its_results_there(
    dlctl, site, tmp_path, swift_for
):
    """Two learners train a net of Caffe, as in the paper."""
    files = caffe(folder := tmp_path / "mnist")
    swift_for.container("my_mnist_data", files)  # other tests' objects are not in this one
    swift_for.container("my_training_results", {})
    program = {"name": "caffe", "version": "1", "job": "lenet_solver.prototxt",
               "arguments": {"weights": "pretrained.caffemodel"}}  # fmt: skip
    manifest = listing_1(swift_for) | {"Learners": 2, "framework": program}
    manifest["data_stores"][0]["training_data"]["container"] = "my_mnist_data"
    del manifest["training"]
    (folder / "manifest.yml").write_text(json.dumps(manifest))
    secret = {"STORE_USER": swift_for.user, "STORE_PASS": swift_for.password}
    training_id = submit(dlctl, site, folder, env=secret)
    wait_for_state(dlctl, training_id, "COMPLETED")
    job_dir = site.job_dir(training_id)
    listing = contract.read_record(Listing, job_dir / listing_file(0))
    assert {item.key: item.size_bytes for item in listing.objects} == {
        name: len(content) for name, content in files.items()
    }
    stored = contract.from_json(
        Stored, swift_for.get(f"my_training_results/{training_id}/_complete.json")
    )
    assert (stored.state, stored.attempt) == ("COMPLETED", 1)
    names = {item.name for item in stored.files}
    logs = {f"learner-{n}/training-log.txt" for n in (1, 2)}
    assert {"lenet_iter_60.caffemodel", "_submitted_code/model.zip"} | logs <= names
    own = (job_dir / "results/lenet_iter_60.caffemodel").read_bytes()
    assert swift_for.get(f"my_training_results/{training_id}/lenet_iter_60.caffemodel") == own
    there = {name for name in swift_for.names("my_training_results") if training_id in name}
    assert there == {f"{training_id}/{name}" for name in [*names, "_complete.json"]}
    held = [p for p in job_dir.rglob("*") if p.is_file() and PASSWORD.encode() in p.read_bytes()]
    assert held == []
    made = dlctl("models", "create", "--from", training_id, "--json", ok=True).json
    (data,) = [f for f in made["files"] if f["part"] == "data"]
    content = (site.root / contract.blob_path("", data["sha256"]).lstrip("/")).read_bytes()
    assert contract.from_json(Listing, content) == listing, "each object with its etag"


def of_commands(dlctl, swift, data, command, **more):
    """Write a training of Listing 1 that runs a command; return its folder and its credentials."""
    swift.container("my_training_results", {})
    manifest = listing_1(swift) | more
    manifest["data_stores"][0]["training_data"]["container"] = data
    manifest["framework"] = {"name": "any", "command": command}
    folder = write_training(dlctl.cwd, {"command": "true"})
    (folder / "manifest.yml").write_text(json.dumps(manifest))
    return folder, {"STORE_USER": swift.user, "STORE_PASS": swift.password}


def test_the_cache_of_a_site_is_listed_and_emptied(dlctl, local_site, swift):
    name = swift.container("cached", {"words": b"forty two"})
    command = "while [ ! -e go ]; do sleep 0.05; done; cat $DATA_DIR/words"
    folder, secret = of_commands(dlctl, swift, name, f'cd "$JOB_STATE_DIR"; {command}')
    training_id = submit(dlctl, local_site, folder, env=secret)
    job_dir = local_site.job_dir(training_id)
    wait_until(lambda: files_tell(job_dir, 1, "TRAINING"))
    early = dlctl("stores", "save", training_id)
    assert early.exit_code != 0 and "stored when it has ended" in early.stderr
    (used,) = dlctl("stores", "cache", "--clear", "--json", ok=True).json["held"]
    assert (used["container"], used["users"]) == (name, [training_id])
    (job_dir / "state/go").touch()
    wait_for_state(dlctl, training_id, "COMPLETED")
    assert "cached" in dlctl("stores", "cache", ok=True).stdout
    left = dlctl("stores", "cache", "--keep", "1KiB", "--json", ok=True).json
    assert (len(left["held"]), left["total_bytes"]) == (1, 9)
    gone = dlctl("stores", "cache", "--clear", "--json", ok=True).json
    assert (gone["held"], gone["total_bytes"]) == ([], 0)
    assert [each["container"] for each in gone["removed"]] == [name]


def test_a_halted_training_is_stored_and_its_successor_replaces_it(dlctl, local_site, swift):
    name = swift.container("to_halt", {"words": b"forty two"})
    program = "trap 'echo halted >\"$RESULT_DIR/how\"; exit 85' USR2\n"
    program += '[ -e $CHECKPOINT_DIR/1 ] && { echo resumed >"$RESULT_DIR/how"; exit 0; }\n'
    program += (
        "mkdir $CHECKPOINT_DIR/1; echo 7 >$CHECKPOINT_DIR/1/step; while :; do sleep 0.05; done"
    )
    folder, secret = of_commands(dlctl, swift, name, program)
    manifest = json.loads((folder / "manifest.yml").read_text())
    manifest["data_stores"][0]["training_results"]["checkpoints"] = True
    (folder / "manifest.yml").write_text(json.dumps(manifest))
    training_id = submit(dlctl, local_site, folder, env=secret)
    wait_until(lambda: any((local_site.job_dir(training_id) / "checkpoints").glob("*/step")))
    halt(dlctl, training_id)
    there = f"my_training_results/{training_id}"
    mark = json.loads(swift.get(f"{there}/_complete.json"))
    assert (mark["state"], mark["attempt"]) == ("HALTED", 1)
    assert swift.get(f"{there}/how") == b"halted\n"
    assert swift.get(f"{there}/_checkpoints/1/step") == b"7\n"
    dlctl("resume", training_id, ok=True, env=secret)
    wait_for_state(dlctl, training_id, "COMPLETED")
    mark = json.loads(swift.get(f"{there}/_complete.json"))
    assert (mark["state"], mark["attempt"]) == ("COMPLETED", 2)
    assert swift.get(f"{there}/how") == b"resumed\n"


TAPE = {
    "templates/stores/tape/store.yml": "description: A tape that is a folder.\n"
    "connection:\n  shelf: {required: true}\n  combination: {secret: true}\n",
    "templates/stores/tape/load.sh.j2": "#!/bin/bash\nset -eu\nmkdir -p \"$STORE_DATA\"\n"
    "[ ${#STORE_COMBINATION} -eq 10 ]\n"
    "cp \"$STORE_SHELF/$STORE_CONTAINER\"/* \"$STORE_DATA\"/\n",
}  # fmt: skip


def on_the_page(script):
    """Return a script of docs/stores.md."""
    page = (Path(__file__).resolve().parents[2] / "docs/stores.md").read_text()
    block = re.search(rf"^`{script}`.*\n\n((?:    .*\n)+)", page, re.MULTILINE)
    return re.sub("^    ", "", block[1], flags=re.MULTILINE)


def test_a_new_type_of_store_is_a_new_folder(dlctl, local_site, tmp_path):
    shelf = tmp_path / "shelf"
    (shelf / "in").mkdir(parents=True)
    (shelf / "out").mkdir()
    (shelf / "in/words").write_text("forty two")
    store = {"id": "t", "type": "tape", "training_data": {"container": "in"},
             "training_results": {"container": "out"},
             "connection": {"shelf": str(shelf), "combination": "opensesame"}}  # fmt: skip
    command = 'cp "$DATA_DIR/words" "$RESULT_DIR/copy"; echo done'
    files = TAPE | {"templates/stores/tape/store.sh.j2": on_the_page("store.sh.j2")}
    folder = write_training(dlctl.cwd, {"command": command}, files, data_stores=[store])
    listed = dlctl("stores", "list", "--json", cwd=folder, ok=True).json
    assert "tape" in [each["type"] for each in listed]
    shown = dlctl("render", "manifest.yml", cwd=folder, ok=True).stdout
    assert "# stores/0/load.sh\n#!/bin/bash" in shown and "opensesame" not in shown
    training_id = complete(dlctl, local_site, folder)
    assert (shelf / f"out/{training_id}/copy").read_text() == "forty two"
    assert "done" in (shelf / f"out/{training_id}/learner-1/training-log.txt").read_text()
    again = dlctl("stores", "save", training_id, "--json", ok=True).json
    assert set(again) == {"training_id", "stored"} and len(again["stored"]) == 1, again
    stored = {path.name for path in (shelf / f"out/{training_id}").iterdir()}
    assert stored == {"copy", "learner-1", "_submitted_code"}, "a second time changes nothing"
    job_dir = local_site.job_dir(training_id)
    assert not [p for p in job_dir.rglob("*") if p.is_file() and b"opensesame" in p.read_bytes()]


def test_a_cache_that_takes_no_more_names_the_command_that_lists_it(dlctl, local_site, swift, xdg):
    name = swift.container("large", {"a": os.urandom(24 << 20)})
    site = change_site(local_site, xdg.config, environment={"setup": ["ulimit -f 16000"]})
    folder, secret = of_commands(dlctl, swift, name, "true")
    training_id = submit(dlctl, site, folder, "--set", "retries=0", env=secret)
    wait_for_state(dlctl, training_id, "FAILED")
    shown = dlctl("show", training_id, "--json", ok=True).json
    assert "File too large" in shown["reason"], shown
    ((command, _),) = commands_in(shown["hint"])
    assert command == "stores cache --site SITE"
    dlctl(*command.replace("SITE", site.name).split(), ok=True)


def test_the_stores_of_a_manifest_are_checked_before_anything_is_sent(
    dlctl, local_site, swift, tmp_path
):
    swift.container("my_training_data", {"digits.csv.gz": b"x" * 2000})
    swift.container("my_training_results", {})
    folder = write_training(dlctl.cwd, {"command": "true"})
    (folder / "manifest.yml").write_text(json.dumps(listing_1(swift)))
    (folder / "train.py").write_text("def build(arguments): ...\n")
    right = {"STORE_USER": swift.user, "STORE_PASS": swift.password}
    good = dlctl("stores", "check", "manifest.yml", "--json", env=right, ok=True).json
    assert [(each["state"], each["container"]) for each in good] == [
        ("ok", "my_training_data"), ("ok", "my_training_results")]  # fmt: skip
    assert good[0]["seen"] == "1 object, 2.0 kB"
    wrong = {**right, "STORE_PASS": "wrong-one"}
    bad = dlctl("stores", "check", "manifest.yml", env=wrong)
    assert bad.exit_code == 4 and "refuses the user name or the password" in bad.stdout
    for place in ("login", "node"):
        asked = dlctl("stores", "check", "manifest.yml", "--json", "--from", place, env=right)
        assert [each["state"] for each in asked.json] == ["ok", "ok"], asked
        asked = dlctl("stores", "check", "manifest.yml", "--from", place, env=wrong)
        assert asked.exit_code == 4 and "wrong-one" not in asked.stdout + asked.stderr
    assert not list((local_site.root / "secrets").iterdir())
    refused = dlctl("submit", "manifest.yml", env=wrong)
    assert refused.exit_code == 5
    ((command, _),) = commands_in(refused.stderr)
    assert command == "stores check manifest.yml"
    assert dlctl(*command.split(), env=wrong).exit_code == 4
    dlctl(*command.split(), env=right, ok=True)
    assert "nothing was sent: The store http://127.0.0.1:" in refused.stderr
    assert "wrong-one" not in refused.stdout + refused.stderr + bad.stdout
    assert not (local_site.root / "jobs").exists()


@pytest.mark.first
def test_no_file_and_no_process_shows_the_password_while_a_training_runs(dlctl, local_site, swift):
    name = swift.container("my_training_data", {"digits.csv.gz": b"x" * 2000})
    hold = 'until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.05; done'
    folder, secret = of_commands(dlctl, swift, name, hold)
    seen = []

    def look():
        seen.extend(line for line in command_lines() if PASSWORD.encode() in line)
        return files_tell(local_site.job_dir(training_id), 1, "TRAINING")

    training_id = submit(dlctl, local_site, folder, env=secret)
    wait_until(look, interval_s=0.01)
    job_dir = local_site.job_dir(training_id)
    (job_dir / "state/go").touch()
    wait_for_state(dlctl, training_id, "COMPLETED")
    look()
    assert seen == []
    kept = [path for path in local_site.root.rglob("*") if path.is_file()
            and PASSWORD.encode() in path.read_bytes()]  # fmt: skip
    assert [(p.name, p.stat().st_mode & 0o777) for p in kept] == [
        ("data_stores.0.password", 0o600)]  # fmt: skip


def test_a_supervisor_that_is_killed_while_it_stores_is_succeeded(dlctl, local_site, swift):
    """The next attempt only stores, although the training has no checkpoint."""
    name = swift.container("interrupted", {"words": b"forty two"})
    storing, killed = threading.Event(), threading.Event()

    def hold(data):
        if data.startswith(b"PUT"):
            storing.set()
            killed.wait(60)

    with faulty_proxy(swift.port) as proxy:
        proxy.on_request = hold
        seen = dataclasses.replace(swift, outside_address=proxy.host)
        command = 'echo trained >>"$RESULT_DIR/times"'
        folder, secret = of_commands(dlctl, seen, name, command)
        training_id = submit(dlctl, local_site, folder, env=secret)
        assert storing.wait(60)
        path = local_site.job_dir(training_id) / contract.status_file(1, "supervisor", 0)
        os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
        killed.set()
        done = dlctl("logs", training_id, "--follow", ok=True)
    assert "retry 1 of 3, which only stores the results" in done.stdout + done.stderr
    known = dlctl("status", training_id, "--json", ok=True).json
    assert (known["state"], known["attempt"]) == ("COMPLETED", 2)
    assert swift.get(f"my_training_results/{training_id}/times") == b"trained\n"


def test_results_are_stored_again_when_they_are_fetched(dlctl, local_site, swift):
    name = swift.container("unstorable", {"words": b"forty two"})
    with faulty_proxy(swift.port) as proxy:
        seen = dataclasses.replace(swift, outside_address=proxy.host)
        command = 'echo trained >>"$RESULT_DIR/times"; cat $DATA_DIR/words'
        folder, secret = of_commands(dlctl, seen, name, command, retries=0)
        secret["DLCTL_STORE_PATIENCE_S"] = "0.1"

        def refuse(data):
            if data.startswith(b"PUT"):
                proxy.answers.append(GONE)

        proxy.on_request = refuse
        training_id = submit(dlctl, local_site, folder, env=secret)
        wait_for_state(dlctl, training_id, "FAILED")
        proxy.on_request = lambda _: None
        fetched = dlctl("fetch", training_id, "--restore", ok=True)
    assert "softlayer-object-storage: my_training_results: " in fetched.stderr
    assert (dlctl.cwd / f"results/{training_id}/times").read_text() == "trained\n"
    mark = json.loads(swift.get(f"my_training_results/{training_id}/_complete.json"))
    assert mark["state"] == "COMPLETED"
    assert swift.get(f"my_training_results/{training_id}/times") == b"trained\n"


def test_a_failed_training_stores_its_logs(dlctl, local_site, swift):
    name = swift.container("my_training_data", {"digits.csv.gz": b"x" * 2000})
    folder, secret = of_commands(dlctl, swift, name, "echo so far; exit 3")
    training_id = submit(dlctl, local_site, folder, env=secret)
    wait_for_state(dlctl, training_id, "FAILED")
    mark = json.loads(swift.get(f"my_training_results/{training_id}/_complete.json"))
    assert mark["state"] == "FAILED"
    log = swift.get(f"my_training_results/{training_id}/learner-1/training-log.txt")
    assert b"so far" in log


def test_the_login_node_moves_the_data_where_nodes_have_no_way_to_the_store(
    dlctl, cluster_site, swift, xdg
):
    """Only the login host reaches Swift here: at its own loopback address."""
    name = swift.container("by_login", {"words": b"forty two"})
    site = change_site(cluster_site, xdg.config, data_via="login")
    with relayed(cluster_site.cluster, swift.port) as address:
        port = address.rpartition(":")[2]
        seen = dataclasses.replace(swift, outside_address=f"127.0.0.1:{port}")
        command = 'cp "$DATA_DIR/words" "$RESULT_DIR/copy"'
        folder, secret = of_commands(dlctl, seen, name, command)
        check = ("stores", "check", "manifest.yml", "--site", site.name, "--json", "--from")
        for place, state in (("here", "unknown"), ("login", "ok"), ("node", "unknown")):
            seen = dlctl(*check, place, cwd=folder, env=secret, ok=True).json
            assert [each["state"] for each in seen] == [state, state], (place, seen)
        training_id = submit(dlctl, site, folder, env=secret)
        wait_for_state(dlctl, training_id, "COMPLETED")
        assert training_id not in str(swift.names("my_training_results"))
        log = (site.job_dir(training_id) / "attempts/1/slurm.out").read_text()
        ((command, _),) = set(commands_in(log))
        assert command == f"stores save {training_id}"
        dlctl(*command.split(), ok=True)
    assert swift.get(f"my_training_results/{training_id}/copy") == b"forty two"


def test_this_machine_moves_the_data_where_the_site_has_no_way_to_the_store(
    dlctl, cluster_site, swift, xdg
):
    """Neither nodes nor login node reach this machine's Swift."""
    site = change_site(cluster_site, xdg.config, data_via="laptop")
    content = os.urandom(20 << 20)
    name = swift.container("by_laptop", {"deep/big": content, "small": b"1", "empty": b""})
    with faulty_proxy(swift.port) as proxy:
        seen = dataclasses.replace(swift, outside_address=proxy.host)
        command = 'cp -rL "$DATA_DIR/." "$RESULT_DIR/"; echo trained'
        folder, secret = of_commands(dlctl, seen, name, command)
        training_id = submit(dlctl, site, folder, env=secret)
        wait_for_state(dlctl, training_id, "COMPLETED")
        assert training_id not in str(swift.names("my_training_results"))
        dlctl("fetch", training_id, "--restore", ok=True)
        there = f"my_training_results/{training_id}"
        assert swift.get(f"{there}/deep/big") == content
        assert b"trained" in swift.get(f"{there}/learner-1/training-log.txt")
        assert json.loads(swift.get(f"{there}/_complete.json"))["state"] == "COMPLETED"
        before = proxy.served_bytes
        again = submit(dlctl, site, folder, env=secret)
        assert proxy.served_bytes - before < 20_000, "the site's cache has it already"
        wait_for_state(dlctl, again, "COMPLETED")
    assert (site.job_dir(again) / "results/deep/big").read_bytes() == content


def test_an_interrupted_submission_loads_when_it_is_resumed(dlctl, local_site, swift, xdg):
    site = change_site(local_site, xdg.config, data_via="login", root=str(local_site.root))
    name = swift.container("interrupted", {"words": b"forty two"})
    with faulty_proxy(swift.port) as proxy:
        seen = dataclasses.replace(swift, outside_address=proxy.host)
        folder, secret = of_commands(dlctl, seen, name, "cat $DATA_DIR/words")
        secret |= {"DLCTL_STORE_PATIENCE_S": "0.1"}

        def refuse(data):
            if b"ytes=" in data:
                proxy.answers.append(GONE)

        proxy.on_request = refuse
        failed = dlctl("submit", "manifest.yml", "--site", site.name, cwd=folder, env=secret)
        assert failed.exit_code != 0 and "can't be used now" in failed.stderr
        proxy.on_request = lambda _: None
        (shown,) = dlctl("list", "--json", ok=True).json
        assert shown["state"] == "QUEUED" and "was interrupted" in shown["reason"]
        dlctl("resume", shown["training_id"], ok=True, env=secret)
    # The proxy is gone: only what was loaded before counts.
    wait_for_state(dlctl, shown["training_id"], "COMPLETED")


@pytest.fixture
def loading(dlctl, local_site, swift):
    """A training whose data comes slowly, through a proxy; and the proxy."""
    name = swift.container("slow", {f"{n}": os.urandom(1 << 20) for n in range(60)})
    with faulty_proxy(swift.port) as proxy:
        proxy.pause_s = 0.1
        seen = dataclasses.replace(swift, outside_address=proxy.host)
        folder, secret = of_commands(dlctl, seen, name, "ls -l $DATA_DIR/")
        training_id = submit(dlctl, local_site, folder, env=secret)
        file = local_site.job_dir(training_id) / contract.status_file(1, "supervisor", 0)

        def status():
            found = contract.read_record(contract.Status, file)
            return found if found and " MB/s, " in found.reason else None

        yield training_id, proxy, wait_until(status, what="progress in the status")
        proxy.pause_s = 0.0


def test_loading_tells_how_far_it_is_and_a_cancel_ends_it(dlctl, local_site, loading):
    """No more data comes, so that nothing but the cancel can end it."""
    training_id, proxy, status = loading
    assert status.state.value == "DOWNLOADING"
    pattern = r"training data of data store 'softlayer-object-storage': [\d.]+ MB of 62.9 MB, "
    assert re.match(pattern + r"[\d.]+ MB/s, \d+ s left", status.reason), status.reason
    may_go_on = threading.Event()
    proxy.rewrite = lambda data: data if may_go_on.wait(600) else b""
    dlctl("cancel", training_id, ok=True)
    wait_for_state(dlctl, training_id, "CANCELLED")
    may_go_on.set()
    told = verdict(local_site.job_dir(training_id), 1)
    assert told.reason == "Cancelled on request, before the learners started.", told
    own = str(local_site.job_dir(training_id)).encode()
    assert not [p for p in Path("/proc").glob("[0-9]*/environ") if own in _read(p)]


def test_a_store_that_dies_while_data_comes_is_told_of_everywhere(dlctl, local_site, loading):
    training_id, proxy, _ = loading
    (row,) = dlctl("list", "--json", ok=True).json
    assert row["state"] == "DOWNLOADING" and 0.0 < row["moved"] < 1.0
    proxy.is_dead = True
    failing = r"MB of 62.9 MB, trying again \(\d+(rd|th) time, in [\d.]+ s\): .*connection"
    log = local_site.job_dir(training_id) / contract.job_output(1)
    wait_until(lambda: re.search(failing, log.read_text()), what="the fault in the job's log")
    shown = wait_until(
        lambda: "trying" in (told := dlctl("show", training_id, "--all").stdout) and told,
        what="the fault in dlctl show",
    )
    assert re.search(failing, " ".join(shown.split())), shown
    proxy.is_dead, proxy.pause_s = False, 0.0
    wait_for_state(dlctl, training_id, "COMPLETED")


def test_a_fetcher_that_is_killed_is_started_again(dlctl, local_site, loading):
    training_id, proxy, _ = loading
    mark = f"/jobs/{training_id}/stores/0".encode()
    (fetcher,) = [p.parent for p in Path("/proc").glob("[0-9]*/environ") if mark in _read(p)]
    assert b"learner.storage" in (fetcher / "cmdline").read_bytes()
    os.kill(int(fetcher.name), signal.SIGKILL)
    proxy.pause_s = 0.0
    wait_for_state(dlctl, training_id, "COMPLETED")


def _read(path):
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


LOCKED = (
    '[ "$STORE_COMBINATION" = "$(cat "$STORE_SHELF/lock")" ] || { echo wrong combination; exit 1; }'
)
LOCKED_TAPE = {
    "templates/stores/tape/store.yml": "description: A tape that is a folder.\n"
    "connection:\n  shelf: {required: true}\n  combination: {required: true, secret: true}\n",
    "templates/stores/tape/load.sh.j2": "#!/bin/bash\nset -eu\nmkdir -p \"$STORE_DATA\"\n"
    f"{LOCKED}\ncp \"$STORE_SHELF/$STORE_CONTAINER\"/* \"$STORE_DATA\"/\n",
    "templates/stores/tape/store.sh.j2": f"#!/bin/bash\nset -eu\n{LOCKED}\n"
    "rm -rf \"$STORE_SHELF/out\"\ncp -rL \"$STORE_SOURCE\" \"$STORE_SHELF/out\"\n",
}  # fmt: skip


def test_a_resumption_takes_the_credentials_of_the_shell_and_keeps_those_that_it_lacks(
    dlctl, local_site, tmp_path
):
    (shelf := tmp_path / "shelf").mkdir()
    (shelf / "in").mkdir()
    (shelf / "in/words").write_text("forty two")
    (shelf / "lock").write_text("new-combination")
    store = {"id": "t", "type": "tape", "training_data": {"container": "in"},
             "training_results": {"container": "out"},
             "connection": {"shelf": str(shelf), "combination": {"from_env": "COMBINATION"}},
             }  # fmt: skip
    folder = write_training(
        dlctl.cwd, {"command": '[ "$TOKEN" = abc ] && cp "$DATA_DIR/words" "$RESULT_DIR/copy"'},
        LOCKED_TAPE, data_stores=[store], env={"TOKEN": {"from_env": "SOME_TOKEN"}},
    )  # fmt: skip
    old = {"COMBINATION": "old-combination", "SOME_TOKEN": "abc"}
    training_id = submit(dlctl, local_site, folder, env=old)
    wait_for_state(dlctl, training_id, "FAILED")
    assert "wrong combination" in dlctl("show", training_id, "--all", ok=True).stdout
    dlctl("resume", training_id, ok=True, env={"COMBINATION": "new-combination"})
    wait_for_state(dlctl, training_id, "COMPLETED")
    assert (shelf / "out/copy").read_text() == "forty two"
    (shelf / "out/copy").unlink()
    (shelf / "lock").write_text("newest-combination")
    refused = dlctl("stores", "save", training_id)
    assert refused.exit_code == 9 and "wrong combination" in refused.stderr
    dlctl("stores", "save", training_id, ok=True, env={"COMBINATION": "newest-combination"})
    assert (shelf / "out/copy").read_text() == "forty two"
    held = [path for path in local_site.root.rglob("*") if path.is_file()
            and b"-combination" in path.read_bytes()]  # fmt: skip
    assert [(p.name, p.stat().st_mode & 0o777) for p in held] == [
        ("data_stores.0.combination", 0o600)]  # fmt: skip
