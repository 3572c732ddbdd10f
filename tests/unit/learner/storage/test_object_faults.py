"""Faults between a node and a real Swift, through both of its interfaces: each has its sentence."""

import hashlib
import json
import os
import re
import signal
import time

import pytest
from faulty_proxy import faulty_proxy
from store_program import StoreProgram

BIG = os.urandom(40 << 20)
KINDS = ["swift", "s3"]
RETRY = (
    b"HTTP/1.1 503 Slow Down\r\nRetry-After: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)
BROKEN = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def container(swift):
    return swift.container("faults", {"big.bin": BIG, "small.txt": b"small", "empty": b""})


@pytest.fixture
def proxy(swift):
    with faulty_proxy(swift.port) as made:
        yield made


@pytest.fixture(params=KINDS)
def program(request, tmp_path, swift, proxy, container):
    return program_of(request.param, tmp_path, swift, proxy, container)


def program_of(kind, tmp_path, swift, proxy, container):
    url = f"http://{proxy.host}" + ("/auth/v1.0" if kind == "swift" else "")
    return StoreProgram(tmp_path, kind, url, swift, container)


def loaded(program):
    assert program.load() == {"big.bin": BIG, "small.txt": b"small", "empty": b""}


def test_a_cut_connection_costs_what_was_on_its_way_and_no_more(program, proxy):
    proxy.cut_after_bytes = 5 << 20
    loaded(program)
    assert proxy.cuts == 1
    assert len(BIG) < proxy.served_bytes < len(BIG) + (3 << 20), "what had arrived came again"


def test_a_server_that_asks_for_a_pause_gets_it(program, proxy):
    proxy.answers = [RETRY, BROKEN]
    began = time.monotonic()
    assert program.done("check") == "3 objects, 41.9 MB\n"
    assert proxy.answers == []
    if program.kind == "swift":  # obstore hides the header of S3
        assert time.monotonic() - began >= 2.0


def test_a_server_that_fails_for_good_is_the_infrastructures_fault(program, proxy):
    proxy.answers = [BROKEN] * 200
    code, told = program.run("load", DLCTL_STORE_PATIENCE_S="1")
    assert code == 75
    assert "of data store 'mine' can't be used now: it answers 500" in told
    assert "HINT: Try again later" in told


@pytest.mark.parametrize("harmed", [1, 3])
def test_a_changed_byte_is_found_and_fetched_again(program, proxy, harmed):
    proxy.corrupts = harmed
    loaded(program)
    assert proxy.corrupts == 0


def test_data_that_always_arrives_damaged_is_never_given_to_learners(program, proxy):
    proxy.corrupts = 10**6
    code, told = program.run("load")
    assert code == 75 and "'big.bin' arrived damaged 3 times" in told
    assert not program.data.exists()
    assert not [p for p in program.folder.glob("cache/*/objects/*/*") if p.stat().st_size > 9 << 20]


def test_wrong_credentials_a_missing_container_and_no_server_are_told_apart(program):
    code, told = program.run("check", STORE_PASSWORD="wrong-one")
    assert code == 1 and "refuses the user name or the password of data store 'mine'" in told
    assert "wrong-one" not in told
    code, told = program.run("check", STORE_CONTAINER="no_such")
    assert code == 1 and "has no container 'no_such', which data store 'mine' names" in told
    nowhere = {"STORE_AUTH_URL": "http://127.0.0.1:9/auth/v1.0", "DLCTL_STORE_PATIENCE_S": "0.1"}
    code, told = program.run("check", **nowhere)
    assert code == 75 and "can't be used now: the connection failed" in told


def test_an_object_that_changes_while_it_is_read_is_named(program, proxy, swift):
    name = swift.container(f"changing_{program.kind}", {"a.bin": BIG})

    def change(data):
        if b"ytes=" in data and b"a.bin" in data:
            proxy.on_request = lambda _: None
            swift.put(f"{name}/a.bin", b"other" * (6 << 20))

    proxy.on_request = change
    code, told = program.run("load", STORE_CONTAINER=name)
    assert code == 1
    assert f"The object 'a.bin' in the container '{name}' of data store 'mine' has changed" in told
    assert "submit a new training" in told


def test_a_missing_object_is_named(program, swift):
    name = swift.container(f"missing_{program.kind}", {"a": b"1", "b": b"2"})
    program.load(name)
    listing = program.job / "stores/0/listing.json"
    text = listing.read_text().replace('"key": "a"', '"key": "gone"')
    listing.write_text(text)
    code, told = program.run("load", STORE_CONTAINER=name)
    assert code == 1 and f"has no object 'gone' in the container '{name}'" in told


@pytest.mark.first("s3")
def test_a_killed_fetcher_is_taken_over_and_only_chunks_in_flight_come_again(
    program, proxy, swift, wait_until
):
    size_bytes = 160 << 20  # 20 chunks, 8 of which are in flight at a time
    name = swift.container(f"killed_{program.kind}", {"big.bin": BIG * 4})
    proxy.pause_s = 0.002
    process = program.start("load", STORE_CONTAINER=name)
    wait_until(lambda: proxy.served_bytes > size_bytes // 2, what="half of it")
    process.kill()
    process.communicate()
    before, proxy.pause_s = proxy.served_bytes, 0.0
    assert program.load(name) == {"big.bin": BIG * 4}
    assert proxy.served_bytes < size_bytes + 8 * (8 << 20) + (1 << 20)
    assert proxy.served_bytes - before < size_bytes - 3 * (8 << 20), "it began anew"
    assert not list(program.folder.glob("cache/*/objects/*/*.*")), "private files are left"


def test_two_jobs_at_once_fetch_one_copy(program, proxy, tmp_path, swift):
    url = program.env["STORE_AUTH_URL"]
    other = StoreProgram(tmp_path / "b", program.kind, url, swift, "faults")
    other.env["STORE_CACHE"] = program.env["STORE_CACHE"]
    proxy.pause_s = 0.002
    both = [each.start("load") for each in (program, other)]
    for process in both:
        told, _ = process.communicate(timeout=100)
        assert process.returncode == 0, told
    assert program.contents() == other.contents()
    assert len(BIG) <= proxy.served_bytes < len(BIG) + (1 << 20)


def test_the_next_training_asks_for_a_listing_and_no_more(program, proxy):
    loaded(program)
    proxy.served_bytes = 0
    loaded(program)  # the next attempt
    assert proxy.served_bytes == 0, "an attempt uses the frozen listing"
    (program.job / "stores/0/listing.json").unlink()  # the next training
    loaded(program)
    assert 0 < proxy.served_bytes < 10_000
    assert re.search(r"3 objects, 41\.9 MB, from faults at http\S+: 0 B fetched", program.sentence)


def test_a_stopped_fetcher_that_wakes_up_late_harms_nothing(program, proxy, wait_until):
    proxy.pause_s = 0.005
    late = program.start("load")
    wait_until(lambda: proxy.served_bytes > len(BIG) // 4, what="a quarter of it")
    os.kill(late.pid, signal.SIGSTOP)
    proxy.pause_s = 0.0
    program.load(DLCTL_STORE_LAPSE_S="1")
    os.kill(late.pid, signal.SIGCONT)
    told, _ = late.communicate(timeout=60)
    assert late.returncode == 0, told
    loaded(program)


def test_an_expired_token_is_renewed(tmp_path, swift, proxy, container):
    program = StoreProgram(tmp_path, "swift", f"http://{proxy.host}/auth/v1.0", swift, container)
    forgot = []

    def forget(data):
        if b"ytes=" in data and not forgot:
            forgot.append(1)
            swift.forget_tokens()

    proxy.on_request = forget
    loaded(program)
    assert forgot


ELSEWHERE = b"<Error><Code>PermanentRedirect</Code></Error>"
FULL = b"<Error><Code>QuotaExceeded</Code></Error>"


def _answer(status, body=b""):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status, len(body), body)  # fmt: skip


def test_a_bucket_of_another_region_is_no_fault_of_the_network(tmp_path, swift, proxy, container):
    program = StoreProgram(tmp_path, "s3", f"http://{proxy.host}", swift, container)
    proxy.answers = [_answer(b"301 Moved Permanently", ELSEWHERE)]
    code, told = program.run("check", DLCTL_STORE_PATIENCE_S="0")
    assert code == 1 and "in another region" in told and "connection.region" in told


def test_a_quota_that_is_used_up_is_named(program, swift, proxy):
    program.env["STORE_CONTAINER"] = swift.container(f"quota_{program.kind}", {})

    def refuse(data):
        if data.startswith(b"PUT"):
            said = (b"413 Too Large",) if program.kind == "swift" else (b"403 Forbidden", FULL)
            proxy.answers = [_answer(*said)]

    proxy.on_request = refuse
    more = program.saving(program.results({"a": b"1"}), DLCTL_STORE_PATIENCE_S="0")
    code, told = program.run("save", **more)
    assert code == 1 and "the quota is used up" in told, told


def _lines(program):
    """Return what is told of the progress now: sentence, share, tries."""
    try:
        return (program.job / "stores/0/progress").read_text().splitlines()
    except OSError:
        return []


def test_bytes_are_told_before_the_first_chunk_is_there(program, proxy, wait_until):
    proxy.pause_s = 0.1  # 5 MB/s over eight connections: no chunk of 8 MiB is there for 12 s
    with program.start("load") as process:
        first = r"training data of data store 'mine': \S+ [kM]B of 41.9 MB"
        wait_until(lambda: re.match(first, "".join(_lines(program)[:1])), what=first)
        sentence, share, tries = _lines(program)
        (chunks,) = program.folder.glob("cache/*/objects/*/*.chunks")
        assert chunks.read_text() == "", "whole chunks are there: the test proves nothing"
        assert 0.0 < float(share) < 0.5 and tries == ""
        proxy.pause_s = 0.0
        assert process.wait(60) == 0


def test_a_store_that_dies_while_it_sends_is_told_until_it_is_back(program, proxy, wait_until):
    proxy.pause_s = 0.01
    with program.start("load", DLCTL_STORE_PATIENCE_S="60") as process:
        wait_until(lambda: proxy.served_bytes > 10 << 20, what="bytes")
        proxy.is_dead = True
        failing = wait_until(
            lambda: [line for line in _lines(program)[:1] if "(3rd time" in line], what="the fault"
        )
        assert re.search(r"'mine': [\d.]+ MB of 41.9 MB, trying again \(3rd time, in [\d.]+ s\): "
                         r".*connection", failing[0]), failing  # fmt: skip
        assert _lines(program)[2] == "3"
        proxy.is_dead, proxy.pause_s = False, 0.0
        assert process.wait(60) == 0
    assert program.contents()["big.bin"] == BIG
    assert _lines(program)[2] == "", "it is over"


def test_a_file_that_changes_while_it_is_stored_is_named(program, proxy, swift):
    name = swift.container(f"torn_{program.kind}", {})
    source = program.results({"model.pt": BIG})
    proxy.on_request = lambda _: os.utime(source / "model.pt")
    code, told = program.run("save", **program.saving(source, STORE_CONTAINER=name))
    assert code == 1 and "The file 'model.pt' changed while it was being stored." in told
    assert "t-1/_complete.json" not in swift.names(name)


FILES = ("a", "deep/b", "empty")
WRITES = len(FILES) + 2
"""The marker STORING, the files, the marker that names them."""


@pytest.mark.first("True")
@pytest.mark.parametrize("arrives", [True, False])
def test_a_kill_at_any_write_leaves_no_marker_that_names_what_is_not_there(
    tmp_path, swift, arrives
):
    """The killed program's write arrives at the server, or it does not."""
    name = swift.container(f"killed_{arrives}", {})
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    with faulty_proxy(swift.port) as proxy:
        program = StoreProgram(tmp_path, "swift", f"http://{proxy.host}/auth/v1.0", swift, name)

        def save(attempt, killed_at):
            writes = 0

            def kill(data):
                nonlocal writes
                if data.startswith(b"PUT"):
                    writes += 1
                    if writes == killed_at:
                        os.kill(process.pid, signal.SIGKILL)
                        if not arrives:
                            raise ConnectionResetError

            for file in FILES[:2]:
                (source / file).write_text(f"{file} of attempt {attempt}")
            # Each is another one: a file that the killed attempt left as it was is not sent again.
            (source / "empty").write_text("" if attempt % 2 else f"no more in {attempt}")
            proxy.on_request = kill
            more = program.saving(source, attempt, "HALTED")
            with program.start("save", **more) as process:
                told = process.communicate(timeout=60)
            assert process.returncode in (0, -signal.SIGKILL), told
            return process.returncode

        def mark():
            found = json.loads(swift.get(f"{name}/t-1/_complete.json"))
            for file in found["files"]:
                content = swift.get(f"{name}/t-1/{file['name']}")
                assert len(content) == file["size_bytes"], found
                assert hashlib.sha256(content).hexdigest() == file["sha256"], found
            return found

        assert save(1, 0) == 0
        assert (mark()["state"], len(mark()["files"])) == ("HALTED", len(FILES))
        for attempt in range(2, 2 + WRITES):
            assert save(attempt, attempt - 1) == -signal.SIGKILL, attempt
            found = mark()  # the killed program's last write may arrive after this
            if found["state"] == "STORING":
                assert found["files"] == []
        assert save(2 + WRITES, 0) == 0
        assert (mark()["attempt"], len(mark()["files"])) == (2 + WRITES, len(FILES))
