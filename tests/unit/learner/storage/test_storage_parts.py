"""Parts of storing and loading: the progress, the layout in a store, the index, `data`."""

import errno
import os
import signal
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from node_job import Job
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import DataStore
from dlctl.contract.stores import store_script, storing_dir
from learner import storage
from learner.errors import SiteFault, UserFault
from learner.storage import index, scripted
from learner.storage.index import alone, write_index
from learner.storage.objects import http_client
from learner.storage.progress import Interrupted, Moving, Progress, read_progress
from learner.storage.to_store import lay_out


def test_threads_that_fail_at_once_can_all_say_so(tmp_path):
    progress = Progress(tmp_path / "progress", "results")
    progress.begin(10**9)

    def fail(number):
        progress.notice(f"request {number} failed", 3, 0.8)
        progress.add(1000)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(fail, range(2000)))
    assert (tmp_path / "progress").read_text().startswith("results: ")
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]


class _Impatient(BaseHTTPRequestHandler):
    protocol_version, timeout = "HTTP/1.1", 0.2

    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_the_end_of_a_large_upload_does_not_use_a_connection_that_was_closed(monkeypatch):
    """No pause of `Patient` helps: the next try is idle for as long, until all is read again."""
    monkeypatch.setattr(http_client, "IDLE_S", 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Impatient) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        client, url = http_client.HttpClient(), f"http://127.0.0.1:{server.server_port}/"
        for _ in range(2):
            assert client.request("GET", url).status == 204
            time.sleep(0.6)
        client._connection(url).close()
        server.shutdown()


def test_only_what_fails_more_than_once_is_told_and_only_until_something_moves(tmp_path):
    file = tmp_path / "progress"
    progress = Progress(file, "results")
    progress.begin(10**9)
    progress.notice("it answers 503", 2, 0.2)
    assert read_progress(file).tries == 0
    for tries, told in (3, "3rd"), (12, "12th"):
        progress.notice("it answers 503", tries, 4.0)
        sentence = f"results: 0 B of 1.0 GB, trying again ({told} time, in 4 s): it answers 503"
        assert read_progress(file) == Moving(sentence, 0.0, tries)
    progress.say("all is there")
    assert read_progress(file) == Moving("all is there", 0.0, 0)


@pytest.mark.parametrize(("text", "told"), [
    ("copying\n", Moving("copying")), ("copying\n0.5", Moving("copying", 0.5)),
    ("copying\nhalf\nthrice\nmore", Moving("copying")), ("", Moving()), ("a\n7", Moving("a", 1.0)),
])  # fmt: skip
def test_a_script_of_the_users_may_write_anything(tmp_path, text, told):
    (tmp_path / "progress").write_text(text)
    assert read_progress(tmp_path / "progress") == told


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_attempt_that_only_stores_brings_the_log_of_the_one_that_trained(tmp_path):
    """Its learners never begin: the first attempt's store failed."""
    write(tmp_path / contract.CODE / "train.py", "x = 1\n")
    write(tmp_path / contract.learner_log(1, 0), "trained\n")
    write(tmp_path / contract.learner_log(1, 1), "trained, too\n")
    write(tmp_path / contract.results_dir(2) / "model.pt", "weights")
    write(tmp_path / contract.learner_log(2, 1), "trained again\n")
    (tmp_path / storing_dir(2)).parent.mkdir(parents=True, exist_ok=True)
    folder = lay_out(make_plan(job_dir=str(tmp_path), learners=2), tmp_path, 2)
    assert (folder / "model.pt").read_text() == "weights"
    assert (folder / "learner-1/training-log.txt").read_text() == "trained\n"
    assert (folder / "learner-2/training-log.txt").read_text() == "trained again\n"
    assert (folder / "_submitted_code/model.zip").stat().st_size


def test_what_a_program_has_written_beside_itself_is_stored_once(tmp_path):
    write(tmp_path / contract.CODE / "model.pt", "weights")
    write(tmp_path / contract.CODE / "__pycache__/train.pyc", "compiled")
    (tmp_path / storing_dir(1)).parent.mkdir(parents=True)
    folder = lay_out(make_plan(job_dir=str(tmp_path)), tmp_path, 1)
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert sorted(found) == ["_output/model.pt", "_submitted_code/model.zip"]
    assert zipfile.ZipFile(folder / "_submitted_code/model.zip").namelist() == []


@pytest.fixture
def job_dir(tmp_path):
    (tmp_path / contract.RESULTS).mkdir()
    (tmp_path / contract.RESULTS / "model.pt").write_text("weights")
    return tmp_path


def test_the_index_waits_for_an_export_and_has_its_file(job_dir):
    results, ticks = job_dir / contract.RESULTS, []
    export = alone(results)
    export.__enter__()

    def tick():
        ticks.append(1)
        if len(ticks) == 1:
            assert not (job_dir / contract.RESULTS_INDEX).exists()
            (results / "model.onnx").write_text("exported")
            export.__exit__(None, None, None)

    written = write_index(job_dir, tick)
    assert ticks
    assert [file.path for file in written.files] == ["model.onnx", "model.pt"]
    assert contract.read_record(contract.ResultsIndex, job_dir / contract.RESULTS_INDEX) == written


def test_an_export_that_hangs_delays_the_index_but_does_not_prevent_it(job_dir, monkeypatch):
    monkeypatch.setattr(index, "_PATIENCE_S", 0.1)
    with alone(job_dir / contract.RESULTS):
        assert [file.path for file in write_index(job_dir).files] == ["model.pt"]


def test_a_file_system_without_locks_has_an_index_too(job_dir, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(index.fcntl, "flock", refuse)
    assert [file.path for file in write_index(job_dir).files] == ["model.pt"]


@pytest.fixture
def load(tmp_path):
    """Load a job's data from stores of these names, as each attempt does."""

    def load(*names):
        stores = []
        for name in names:
            (tmp_path / "mounted" / name).mkdir(parents=True, exist_ok=True)
            stores.append(
                DataStore(name, "mount_volume", path=str(tmp_path), training_data=f"mounted/{name}")
            )
        job.write_plan(data_stores=stores)
        storage.load(job.plan, job.dir, lambda: None)

    job = Job(tmp_path / "site", "true")
    load.data = job.dir / "data"
    return load


def test_what_a_program_has_downloaded_there_is_there_for_the_next_attempt(load):
    """`datasets.MNIST("../data", download=True)`: no halted training could be resumed."""
    load()
    (load.data / "MNIST").mkdir()
    (load.data / "MNIST/raw").write_text("images")
    (load.data / "link").symlink_to("MNIST")
    load()
    assert (load.data / "link/raw").read_text() == "images"


def test_beside_the_links_of_several_stores_too(load, tmp_path):
    load("a", "b")
    (load.data / "own").write_text("1")
    load("a", "b")
    assert (load.data / "own").read_text() == "1"
    assert (load.data / "b").readlink() == tmp_path / "mounted/b"


def test_a_programs_files_never_go_for_a_link(load):
    load()
    (load.data / "own").write_text("1")
    with pytest.raises(UserFault, match="holds files of the program"):
        load("a")
    assert (load.data / "own").read_text() == "1"


def test_an_earlier_attempts_links_are_replaced_and_what_they_lead_to_stays(load, tmp_path):
    load("a")
    (load.data / "x").write_text("in the store")
    load("a")
    assert load.data.readlink() == tmp_path / "mounted/a"
    load("a", "b")
    assert sorted(path.name for path in load.data.iterdir()) == ["a", "b"]
    assert (load.data / "a/x").read_text() == "in the store"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a script as the store script of a training."""
    secret = tmp_path / "secret"
    secret.write_text("opensesame")
    secret.chmod(0o600)
    store = DataStore("mine", "tape", training_results="out", position=0, scripts=["store"],
                      secrets={"password": f"file:{secret}"})  # fmt: skip
    script = tmp_path / store_script(0, "store")
    script.parent.mkdir(parents=True)

    def run(text, tick=lambda: None):
        script.write_text(text)
        return scripted.save(store, tmp_path, tmp_path, tmp_path, {}, tick, lambda _: None)

    return run


def test_a_script_gets_its_credentials_and_its_last_line_is_told_without_them(run):
    with pytest.raises(UserFault) as caught:
        run('echo "curl: refused https://me:$STORE_PASSWORD@tape"; exit 3')
    assert caught.value.message == (
        "The store script of data store 'mine' ended with exit code 3: curl: refused "
        "https://me:***@tape"
    )


def test_a_script_of_an_earlier_attempt_has_not_failed(run):
    with pytest.raises(Interrupted):
        run("exit 76")


@pytest.mark.parametrize("ends", ["exit 75", "kill -9 $$"])
def test_what_another_try_may_heal_is_the_sites_fault(run, ends):
    with pytest.raises(SiteFault):
        run(f"echo try >>tries; {ends}")


def test_a_script_that_something_kills_runs_again(run, tmp_path):
    run('[ -e once ] || { touch once; kill -9 $$; }; echo 3 files >"$STORE_PROGRESS"')
    assert (tmp_path / "stores/0/once").exists()


def test_a_script_ends_with_a_supervisor_that_is_killed(run, tmp_path, wait_until):
    told = tmp_path / "stores/0/pid"
    supervisor = os.fork()
    if not supervisor:
        run("echo $$ >pid.new; mv pid.new pid; exec sleep 60")
        os._exit(0)
    wait_until(told.exists)
    script = Path("/proc", told.read_text().strip(), "stat")
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    wait_until(lambda: not script.exists() or ") Z " in script.read_text(), 60)
