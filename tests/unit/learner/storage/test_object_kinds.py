"""What each implementation of object stores can do: names, sizes, large objects, other servers."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from faulty_proxy import faulty_proxy
from keystone_server import MANAGE, running_keystone
from moto_server import running_moto
from served_folder import served_folder
from store_program import StoreProgram

from dlctl.contract.stores import ListedObject
from learner.errors import UserFault
from learner.storage.cache import Cache
from learner.storage.fetch import Wanted, _agrees
from learner.storage.objects import Place, open_store
from learner.storage.objects.base import part_bytes_of
from learner.storage.objects.bucket import guessed_parts

MIB = 1 << 20
ODD = {
    "with space/a b": b"1", "hash#tag": b"2", "ünïcode/雪": b"3", "percent%20": b"4",
    "..dots": b"5", "empty": b"", "plus+and&": b"6", "new": b"7",
}  # fmt: skip


@pytest.fixture(params=["swift", "s3"])
def program(request, tmp_path, swift):
    url = swift.auth_url if request.param == "swift" else swift.s3_url
    return StoreProgram(tmp_path, request.param, url, swift, "none")


def test_odd_names_become_files_that_no_training_may_change(program, swift):
    """Web consoles make an empty object, of a folder's name and a slash, for a folder."""
    marked = {**ODD, "with space/": b""}
    name = swift.container("odd #" if program.kind == "swift" else "odd_s3", marked)
    assert program.load(name) == ODD
    assert (program.data / "new").stat().st_mode & 0o222 == 0


@pytest.mark.parametrize("key", ["../escape", "a/../../b", "a//b", "a/./b", "fine/more"])
def test_a_name_that_can_t_be_a_file_is_refused(program, swift, key):
    """It would lead out of the folder, or lie in what is a file."""
    name = swift.container(f"bad_{program.kind}", {"fine": b"1", key: b"2"})
    code, told = program.run("load", STORE_CONTAINER=name)
    swift.request("DELETE", f"{name}/{key}")
    assert code == 1 and "can't become a file of DATA_DIR" in told
    if key == "fine/more":
        key = "fine"
        assert "other objects need a folder of this name" in told
    assert repr(key) in told
    assert not program.data.exists()


def test_a_prefix_names_a_part_of_a_container(program, swift):
    name = swift.container(f"parts_{program.kind}", {"x/a": b"1", "x/b/c": b"2", "y/d": b"3"})
    assert program.load(f"{name}/x") == {"a": b"1", "b/c": b"2"}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_thousand_objects(tmp_path, swift):
    """Some minutes: a real Swift takes 5 ms to store one, and as long to read it."""
    objects = {f"d{n % 100}/{n}": b"%d" % n for n in range(10_002)}
    name = swift.container("many", objects)
    program = StoreProgram(tmp_path, "swift", swift.auth_url, swift, name)
    program.done("load", timeout_s=600)
    assert program.contents() == objects


def test_nothing_stays_of_a_killed_fetcher_of_other_data(program, swift):
    name = swift.container(f"swept_{program.kind}", {"a": b"1"})
    program.load(name)
    (content,) = [p for p in program.folder.glob("cache/*/objects/*/*")]
    for suffix in (".part", ".chunks"):
        content.with_name(f"{'0' * 62}.killed.host.example{suffix}").write_bytes(b"x")
    swift.put(f"{name}/b", b"2")
    (program.job / "stores/0/listing.json").unlink()
    assert program.load(name) == {"a": b"1", "b": b"2"}
    left = [p.name for p in program.folder.glob("cache/*/objects/*/*.*")]
    assert left == []


@pytest.mark.unmeasured
def test_a_disk_that_takes_no_more_is_the_sites_fault(program, swift):
    name = swift.container(f"full_{program.kind}", {"a": os.urandom(200_000)})
    limited = ["bash", "-c", f"ulimit -f 100; exec {sys.executable} -m learner.storage load $0",
               program.kind]  # fmt: skip
    env = {**program.env, "STORE_CONTAINER": name}
    done = subprocess.run(limited, env=env, capture_output=True, text=True)
    assert done.returncode == 75
    assert "The files of data store 'mine' can't be moved on " in done.stderr
    assert "File too large" in done.stderr and "Traceback" not in done.stderr


def test_a_machine_without_packages_reaches_swift_and_says_what_s3_needs(program, swift):
    """A laptop without it must not refuse a training: its nodes may have it."""
    bare = [sys.executable, "-S", "-m", "learner.storage", "check", program.kind]
    env = {**program.env, "STORE_CONTAINER": swift.container("bare", {"a": b"1"})}
    done = subprocess.run(bare, env=env, capture_output=True, text=True)
    if program.kind == "swift":
        assert (done.returncode, done.stdout) == (0, "1 object, 1 B\n")
    else:
        assert done.returncode == 75
        assert done.stderr.startswith("The package obstore is missing on ")
        assert f"HINT: Install it there: {sys.executable} -m pip install obstore" in done.stderr


def test_a_server_that_is_no_keystone_is_named(tmp_path, swift):
    page = b"HTTP/1.1 201 Created\r\nContent-Length: 6\r\n\r\n<html>"
    with faulty_proxy(swift.port) as proxy:
        proxy.answers = [page]
        program = StoreProgram(tmp_path, "swift", f"http://{proxy.host}/v3", swift, "any")
        code, told = program.run("check")
    assert code == 1 and "does not answer as the type of data store 'mine' demands" in told
    assert "Traceback" not in told


def test_two_servers_with_the_same_path_are_not_one_store(tmp_path):
    def folder(**settings):
        return Cache(tmp_path, Place("mine", "/data", "", settings)).folder

    assert folder(host="a.example") == folder(host="a.example")
    assert len({folder(host="a"), folder(host="b"), folder(host="a", port="23"), folder()}) == 4


def test_results_go_in_parts_and_come_back_whole(program, swift):
    name = swift.container(f"large_{program.kind}", {})
    content = os.urandom(70 * MIB + 5)
    program.env["STORE_CONTAINER"] = name
    program.done("save", **program.saving(program.results({"model.pt": content})))
    assert swift.get(f"{name}/t-1/model.pt") == content
    mark = json.loads(swift.get(f"{name}/t-1/_complete.json"))
    assert mark["files"] == [{"name": "model.pt", "size_bytes": len(content),
                              "sha256": hashlib.sha256(content).hexdigest()}]  # fmt: skip
    assert program.load(f"{name}/t-1")["model.pt"] == content


@pytest.mark.parametrize(("size_gib", "part_mib"), [(0.1, 16), (14, 16), (100, 114), (4000, 4552)])
def test_the_largest_file_has_no_more_parts_than_servers_take(size_gib, part_mib):
    size_bytes = int(size_gib * 1024) * MIB
    assert part_bytes_of(size_bytes) == part_mib * MIB
    assert -(-size_bytes // part_bytes_of(size_bytes)) <= 900


def test_an_earlier_attempt_overwrites_nothing_of_a_later_one(program, swift):
    name = swift.container(f"fence_{program.kind}", {})
    program.env["STORE_CONTAINER"] = name
    program.done("save", **program.saving(program.results({"a": b"second"}), 2))
    source = program.results({"a": b"first"})
    (program.job / "attempts/4").mkdir(parents=True)
    for attempt in (1, 3):  # after attempt 2 was stored; since attempt 4 has begun
        code, told = program.run("save", **program.saving(source, attempt))
        assert (code, swift.get(f"{name}/t-1/a")) == (76, b"second"), told
        (program.job / "attempts/4/submit.begin").touch()


def test_a_dynamic_large_object_is_whole(tmp_path, swift):
    swift.container("dlo_segments", {"big/1": b"a" * MIB, "big/2": b"b" * MIB})
    name = swift.container("dlo", {})
    swift.request("PUT", f"{name}/big", b"", {"X-Object-Manifest": "dlo_segments/big/"})
    program = StoreProgram(tmp_path, "swift", swift.auth_url, swift, name)
    assert program.load() == {"big": b"a" * MIB + b"b" * MIB}


@pytest.mark.skipif(not MANAGE.exists(), reason="`make test-all` installs keystone (Python 3.11)")
@pytest.mark.long
def test_keystone_names_the_store_of_the_region(tmp_path, swift):
    """Ten seconds: a real keystone makes its database first."""
    with running_keystone(tmp_path / "keystone", swift) as keystone:
        keystone.put("by_keystone")
        keystone.put("by_keystone/t-0/a", b"1")
        program = StoreProgram(tmp_path, "swift", keystone.url, swift, "by_keystone")
        v3 = {"STORE_PROJECT_ID": keystone.project_id, "STORE_DOMAIN_NAME": keystone.domain,
              "STORE_REGION": keystone.region}  # fmt: skip
        source = program.results({"b": b"2" * (65 * MIB)})
        program.done("save", **v3, **program.saving(source))
        found = program.load(**v3)
        assert set(found) == {"t-0/a", "t-1/b", "t-1/_complete.json"}
        assert found["t-1/b"] == b"2" * (65 * MIB)
        code, told = program.run("check", **v3 | {"STORE_DOMAIN_NAME": "other"})
        assert code == 1 and "refuses the user name or the password" in told
        code, told = program.run("check", **v3 | {"STORE_REGION": "paris"})
        assert code == 1 and "no object store in the region 'paris'" in told
        code, told = program.run("check", **v3 | {"STORE_PROJECT_ID": ""})
        assert code == 1 and "`project_id` says whose" in told, "a project has a catalog"


def test_a_site_reaches_the_store_at_another_address(tmp_path, swift):
    name = swift.container("rewritten", {"a": b"1"})
    program = StoreProgram(tmp_path, "swift", swift.auth_url, swift, name)
    wrong = {"STORE_ENDPOINTS": f"http://127.0.0.1:{swift.port} http://127.0.0.1:9"}
    code, told = program.run("check", **wrong, DLCTL_STORE_PATIENCE_S="0.1")
    assert code == 75, "the address of the account is rewritten, too"


@pytest.fixture(scope="module")
def moto():
    with running_moto() as server:
        yield server


def test_etags_that_are_no_checksums_are_not_taken_for_any(tmp_path, moto):
    """Where S3 encrypts with a key of KMS, an etag looks like an MD5 and is none."""
    mirror = bytes.maketrans(b"0123456789abcdef", b"fedcba9876543210")

    def rewrite(data):
        pattern = rb'(?i)(etag(?:>|: )(?:&quot;|")|if-match: ")([0-9a-f]{32})'
        return re.sub(pattern, lambda found: found[1] + found[2].translate(mirror), data)

    with faulty_proxy(int(moto.url.rpartition(":")[2])) as proxy:
        proxy.rewrite = rewrite
        url = f"http://{proxy.host}"
        program = StoreProgram(tmp_path, "s3", url, moto, "encrypted")
        moto.bucket("encrypted", {})
        contents = {"small": b"small", "large": os.urandom(9 * MIB)}
        source = program.results(contents)
        code, told = program.run("save", **program.saving(source), DLCTL_STORE_PATIENCE_S="0")
        assert code == 75 and "add `etags: opaque` to `connection`" in told
        program.env["STORE_ETAGS"] = "opaque"
        program.done("save", **program.saving(source))
        found = program.load("encrypted/t-1")
        assert {name: found[name] for name in contents} == contents


def test_a_folder_of_a_web_server(tmp_path):
    folder = tmp_path / "web"
    (folder / "data/deep").mkdir(parents=True)
    (folder / "data/a b.txt").write_bytes(b"one")
    (folder / "data/deep/b.bin").write_bytes(big := os.urandom(20 * MIB))
    nobody = SimpleNamespace(user="", password="")
    program = StoreProgram(tmp_path, "http", "", nobody, "data")
    with served_folder(folder) as program.env["STORE_URL"]:
        assert program.load() == {"data/a b.txt": b"one", "data/deep/b.bin": big}
        code, told = program.run("check", STORE_CONTAINER="gone")
        assert code == 1 and "has no container 'gone'" in told


@pytest.mark.parametrize("of", [lambda md5: md5.digest(), lambda md5: md5.hexdigest().encode()])
@pytest.mark.parametrize("parts", [[], [5, 5, 3], [13], [4, 9]])
def test_an_etag_agrees_with_its_content_only(tmp_path, parts, of):
    content = b"some content."
    cuts = [content[sum(parts[:n]) : sum(parts[: n + 1])] for n in range(len(parts))]
    etag = hashlib.md5(b"".join(of(hashlib.md5(cut)) for cut in cuts) if parts else content)
    wanted = Wanted(ListedObject("k", len(content), etag.hexdigest(), parts), tmp_path)
    assert _agrees(io.BytesIO(content), wanted)
    assert not _agrees(io.BytesIO(b"some Content."), wanted)


def test_parts_are_guessed_only_when_one_size_fits():
    etag = "0" * 32
    assert guessed_parts(5, etag) == []
    assert guessed_parts(5, f"{etag}-1") == [5]
    assert guessed_parts(160 * MIB + 1, f"{etag}-21") == [*[8 * MIB] * 20, 1]
    assert guessed_parts(100 * MIB, f"{etag}-2") == [], "50 MiB, or any other size up to 99"


def test_an_unknown_implementation_is_named():
    with pytest.raises(UserFault, match="no implementation 'tape'"):
        open_store("tape", Place("mine", "c", "", {}))
