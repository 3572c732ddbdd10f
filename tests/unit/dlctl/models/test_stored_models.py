"""Versions never change, contents are stored once, and what something refers to stays."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from login_side import BadTransport, make_record
from repository import REPOSITORY
from stored_models import ModelSite, write_folder

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import DlctlError, RecordError, RemoteCommandError, ResultsError, TransferError
from dlctl.models import changes
from dlctl.models.compare import compare
from dlctl.models.known import (
    KnownModel,
    ModelRecord,
    Reference,
    check_alias,
    check_word,
    find_model,
    parse_reference,
    the_site_of,
)
from dlctl.models.pull import pull
from dlctl.models.reading import find_version, read_models, verify
from dlctl.models.use import bring_code, choose_weights, code_of, find_weights
from dlctl.record import RecordStore
from dlctl.request.bundle import collect
from dlctl.request.request import parse_status
from dlctl.transport.local import LocalTransport


def delete(site, store, model_id, number=None):
    models = read_models(site.session)
    model = find_model(models, model_id, "there")
    changes.check_unused(site.session, models, model, number, store)
    changes.delete(site.session, model, number)


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "record.db")


# References ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "meant"), [
    ("digits-3k9f", Reference("digits-3k9f")), ("model:digits@best", Reference("digits", "best")),
    ("d@2/a b/c.pt", Reference("d", "2", "a b/c.pt")), ("d/x@y.pt", Reference("d", "", "x@y.pt")),
    *((text, None) for text in ("", "model:", "@best", "a b", "a@", "../x", "a@b@c", "a;b")),
])  # fmt: skip
def test_a_reference_names_a_model_a_version_and_a_file_and_nothing_else_reaches_a_shell(
    text, meant
):
    if meant:
        assert parse_reference(text) == meant
    else:
        with pytest.raises(RecordError, match="does not name a stored model"):
            parse_reference(text)


def test_an_alias_is_a_word_that_means_nothing_else():
    for word in ("latest", "3", "", "a b", "../x", "-x", "x" * 65):
        with pytest.raises(RecordError):
            check_alias(word)
    assert check_word("best-1.0", "a tag") == "best-1.0"


# Versions -----------------------------------------------------------------------------------------


def test_a_version_holds_what_was_stored_and_shares_its_contents(site, folder):
    first = site.store(folder, tags=["a"], aliases=["best"], description='one "line"\nand two')
    transport = BadTransport()
    again = site.through(transport).store(folder, first.model_id)
    assert (again.version, again.files) == (2, first.files)
    assert transport.calls == 3, "list, ask what is missing, publish: nothing is sent"
    (folder / "words.txt").write_text("goodbye\n")
    (folder / "run.sh").write_text("exit\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("words.txt")
    third = site.store(folder, first.model_id)
    assert (third.version, third.parent) == (3, again.label)
    files = {f.path: f for f in site.version(third.label).files}
    assert {p: (f.part, f.mode, f.link) for p, f in files.items()} == {
        "words.txt": ("code", "644", ""), "model.pt": ("weights", "644", ""),
        "run.sh": ("code", "755", ""), "link": ("code", "644", "words.txt"),
    }  # fmt: skip
    assert len(site.blobs()) == 4  # hello, goodbye, exit, and one content for all models
    assert {oct(path.stat().st_mode & 0o777) for path in site.blobs().values()} == {"0o400"}
    model = site.model(first.model_id)
    assert (model.aliases, model.tags) == ({"best": 1}, ["a"])
    assert (model.description, model.numbers) == ('one "line"\nand two', [1, 2, 3])
    assert model.number_of("latest") == model.number_of("") == 3
    assert site.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_files_take_as_few_round_trips(site, tmp_path, count):
    folder = write_folder(tmp_path / "many")
    for number in range(count):
        (folder / f"{number}.txt").write_text(str(number))
    transport = BadTransport()
    made = site.through(transport).store(folder)
    assert (made.file_count, transport.calls) == (count + 1, 3)
    assert len(site.blobs()) == count + 1
    head = read_models(site.session)[0].version(1)
    assert (head.file_count, head.files) == (count + 1, []), "a list brings no list of files"
    pulled = tmp_path / "pulled"
    transport = BadTransport()
    found = find_version(site.through(transport).session, made.label)
    pull(site.through(transport).session, found, pulled)
    assert transport.calls <= 8
    assert (pulled / "999.txt").read_text() == "999"


def test_a_credential_is_not_stored(site, folder):
    (folder / "manifest.yml").write_text(
        "name: words\nframework: {name: own, command: 'true'}\nenv: {API_TOKEN: hunter2hunter2}\n"
    )
    made = site.store(folder)
    text = (site.root / f"models/versions/{made.model_id}/1.json").read_text()
    assert "hunter2" not in text
    assert "from_secret: API_TOKEN" in made.manifest


def test_the_text_of_a_record_is_what_was_written():
    file = contract.ModelFile("a\udcff\nb", 1, "0" * 64)
    version = contract.ModelVersion("m", 7, "n", manifest='x: "y"\n', files=[file, file])
    text = contract.version_text(version)
    assert contract.from_json(contract.ModelVersion, text) == version
    head = text[: text.index('"files": [') + len('"files": [')]
    assert json.loads(contract.whole_head(head))["version"] == 7


# Two at once, and killed ones ---------------------------------------------------------------------


def test_creates_at_the_same_time_get_numbers_of_their_own(site, folder, tmp_path):
    first = site.store(folder)
    made = []

    def more(number):
        other = write_folder(tmp_path / f"f{number}", words_txt=f"{number}\n")
        own = ModelSite(site.root, LocalTransport())
        made.append(own.store(other, first.model_id).version)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(more, range(8)))
    assert sorted(made) == list(range(2, 10))
    for number in made:
        assert not verify(site.session, site.version(f"{first.model_id}@{number}"))
    assert site.leftovers() == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_connection_that_is_lost_leaves_all_or_nothing(site, folder, call, when):
    with pytest.raises(DlctlError):
        site.through(BadTransport(call, when)).store(folder)
    models = read_models(site.session)
    assert [m.numbers for m in models] == ([[1]] if (call, when) == (3, "after") else [])
    sent_in_vain = (call, when) in ((2, "after"), (3, "before"))
    assert bool(site.leftovers()) == sent_in_vain, "gc removes them a day later"
    again = site.store(folder)
    assert not verify(site.session, again)


PROGRAM = """\
import sys
sys.path[:0] = ["tests/support"]
from pathlib import Path
from stored_models import ModelSite
ModelSite(Path(sys.argv[1])).store(Path(sys.argv[2]))
"""


@pytest.mark.first("0", "5")
@pytest.mark.parametrize("moment", range(6))
def test_a_create_that_is_killed_leaves_no_version_or_a_whole_one(site, folder, moment):
    """Killed with all processes of its own when the site's folder has changed so many times."""
    (folder / "big.bin").write_bytes(os.urandom(30_000_000))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, site.root, folder], cwd=REPOSITORY, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    changed, seen = 0, None
    while process.poll() is None and changed <= moment:
        now = [(path, len(names)) for path, _, names in os.walk(site.root)]
        changed, seen = changed + (now != seen and len(now) > 0), now
    for pid in _descendants(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    models = read_models(site.session)
    for model in models:
        assert not verify(site.session, site.version(model.model_id))
    again = site.store(folder)
    assert not verify(site.session, again)
    for path in [*site.leftovers(), *(site.root / "models/versions").iterdir()]:
        os.utime(path, (0, 0))
    changes.collect_garbage(site.session, 0)
    assert not verify(site.session, again)
    assert {path.name[:14] for path in site.leftovers()} <= {".dlctl-upload."}, "the next a day on"


def _descendants(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        found = [int(child) for child in children.read_text().split()]
    except OSError:
        return []
    return [each for child in found for each in _descendants(child)] + [pid]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(site, folder, monkeypatch):
    """The shell of the site may write no file larger than 2 blocks, as on a disk that is full."""

    class Full(LocalTransport):
        def start(self, script, **options):
            limit = (
                "trap '' XFSZ\nulimit -f 2\n" if "MODEL" in script or "incoming" in script else ""
            )
            return super().start(limit + script, **options)

    with pytest.raises(TransferError) as caught:
        site.through(Full()).store(folder)
    assert "\n" not in caught.value.message
    assert read_models(site.session) == []
    assert site.leftovers() == []


# Damage -------------------------------------------------------------------------------------------


# Deleting, and contents that nobody needs ---------------------------------------------------------


def test_what_something_refers_to_is_not_deleted(site, folder, store, tmp_path):
    first = site.store(folder, aliases=["best"])
    (folder / "words.txt").write_text("two\n")
    site.store(folder, first.model_id)
    with pytest.raises(RecordError, match=r"it is @best; words-\w+@2 was made from it"):
        delete(site, store, first.model_id, 1)
    delete(site, store, first.model_id, 2)
    with pytest.raises(RecordError, match="the only version"):
        delete(site, store, first.model_id, 1)
    assert site.store(folder, first.model_id).version == 3, "a number is never given again"
    other = write_folder(tmp_path / "other")
    (other / contract.PULLED_FROM).write_text(f"{first.label}\n")
    child = site.store(other)
    assert child.parent == first.label
    with pytest.raises(RecordError, match=f"{child.label} was made from it"):
        delete(site, store, first.model_id)
    delete(site, store, child.model_id)
    delete(site, store, first.model_id)
    assert read_models(site.session) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_training_that_has_not_ended_keeps_its_version(site, folder, store, known, monkeypatch):
    """Whether this machine knows the training, or only the site."""
    made = site.store(folder)
    site.store(folder, made.model_id)
    uses = site.root / f"models/versions/{made.model_id}/uses"
    uses.mkdir()
    (uses / "1.t-1").write_text("" if known else "t-1\n")  # empty: the disk was full
    attempt = site.root / "jobs/t-1/attempts/1"
    attempt.mkdir(parents=True)
    states = iter([State.TRAINING, State.COMPLETED])
    if known:
        store.add(make_record(site.root, training_id="t-1"))
        monkeypatch.setattr(
            "dlctl.lifecycle.refresh",
            lambda _session, records, _store: [
                make_record(site.root, training_id=r.training_id, state=next(states))
                for r in records
            ],
        )
    with pytest.raises(RecordError, match="the training t-1 uses it and is"):
        delete(site, store, made.model_id)
    (attempt / "verdict.json").write_text("{}")
    delete(site, store, made.model_id)


def test_gc_removes_what_no_version_has_and_says_the_bytes(site, folder, store):
    first = site.store(folder)
    (folder / "words.txt").write_text("something else\n")
    site.store(folder, first.model_id)
    delete(site, store, first.model_id, 2)
    (site.root / "models/versions" / first.model_id / "2.deleted").rename(
        site.root / "models/versions" / first.model_id / "2.gone"
    )
    assert changes.collect_garbage(site.session, 86400).blobs == 0, "it is young"
    dry = changes.collect_garbage(site.session, 0, dry_run=True)
    assert (dry.blobs, dry.size_bytes, dry.removed) == (1, 15, False)
    assert len(site.blobs()) == 3
    assert changes.collect_garbage(site.session, 0).size_bytes == 15
    assert sorted(site.blobs()) == sorted(f.sha256 for f in first.files)
    assert site.leftovers() == []


def test_gc_spares_a_content_that_a_create_has_just_found(site, folder, store):
    """The create asks, gc removes, the create publishes: what is missing is sent again."""
    made = site.store(folder)
    delete(site, store, made.model_id)

    class Between(BadTransport):
        def start(self, script, **options):
            if self.calls == 1 and "incoming" in script:
                assert changes.collect_garbage(site.session, 0).blobs == 2
            return super().start(script, **options)

    again = site.through(Between()).store(folder)
    assert not verify(site.session, again)


def test_gc_that_was_killed_is_finished_by_the_next(site, folder):
    made = site.store(folder)
    trash = site.root / "models/.gc.1"
    trash.mkdir()
    for name, path in site.blobs().items():
        path.rename(trash / name)
    assert changes.collect_garbage(site.session, 0).blobs == 0
    assert not verify(site.session, made)
    assert site.leftovers() == []


# Use ----------------------------------------------------------------------------------------------


def weights(*paths, part="result"):
    files = [contract.ModelFile(path, 1, str(n) * 64, part=part) for n, path in enumerate(paths)]
    return contract.ModelVersion("m", 1, "m", files=files)


def test_the_weights_of_a_version_are_its_only_ones_or_model_pt():
    assert choose_weights(weights("model.pt", "optimizer.pt", "log.txt")).path == "model.pt"
    assert (
        choose_weights(weights("a/encoder.safetensors", "x.json")).path == "a/encoder.safetensors"
    )
    assert choose_weights(weights("a.pt", "b.pt"), "b.pt").path == "b.pt"
    for found, why in (
        (weights("a.pt", "b.pt"), r"2 files of weights \(a\.pt, b\.pt\)"),
        (weights("x.json"), "no file of weights"),
    ):
        with pytest.raises(RecordError, match=why):
            choose_weights(found)
    with pytest.raises(RecordError, match=r"has no file 'c\.pt'"):
        choose_weights(weights("a.pt"), "c.pt")


def test_a_missing_model_or_version_is_one_sentence(site, folder):
    made = site.store(folder)
    for named, why in (
        ("model:nothing@best", "there is no model 'nothing' at the site testbed"),
        (f"model:{made.model_id}@best", "has no alias best"),
        (f"model:{made.model_id}@7", "has no version 7"),
    ):
        with pytest.raises(RecordError, match=why):
            find_weights(site.session, named)


# Pull and compare ---------------------------------------------------------------------------------


def test_what_was_pulled_is_what_was_stored(site, folder, tmp_path):
    (folder / "sub").mkdir()
    (folder / "link").symlink_to("sub/run me.sh")
    (folder / "sub/run me.sh").write_text("exit\n")
    (folder / "sub/run me.sh").chmod(0o755)
    made = site.store(folder)
    version = site.version(made.label)
    code = code_of(version)
    assert code.index == collect(folder, leave_out=frozenset(["manifest.yml"])).index
    bring_code(site.session, version, code)
    stored = site.root / "store" / code.digest
    before = stored.stat().st_ino
    bring_code(site.session, version, code)
    assert stored.stat().st_ino == before, "it is there already"
    pulled = tmp_path / "pulled"
    files = pull(site.session, find_version(site.session, made.label), pulled)
    assert len(files) == len(made.files) + 2
    for place in (pulled, stored):
        assert (place / "model.pt").read_bytes() == (folder / "model.pt").read_bytes()
        assert (place / "link").readlink() == Path("sub/run me.sh")
        assert os.access(place / "sub/run me.sh", os.X_OK)
    child = site.store(pulled)
    assert child.parent == made.label
    assert {(f.path, f.sha256) for f in child.files} == {(f.path, f.sha256) for f in made.files}
    mine = write_folder(tmp_path / "mine", words_txt="mine\n")
    with pytest.raises(ResultsError, match=r"words\.txt is here already and differs"):
        pull(site.session, find_version(site.session, made.label), mine)
    assert not (mine / "model.pt").exists()


def test_a_record_that_leads_out_of_the_folder_is_refused(site, folder, tmp_path):
    made = site.store(folder)
    path = site.root / f"models/versions/{made.model_id}/1.json"
    path.chmod(0o600)
    path.write_text(path.read_text().replace('"words.txt"', '"../words.txt"'))
    with pytest.raises(TransferError, match="is not inside the folder"):
        pull(site.session, find_version(site.session, made.label), tmp_path / "pulled")
    assert not (tmp_path / "words.txt").exists()


def test_a_link_that_may_be_stored_comes_back_and_one_that_leads_out_is_refused(
    site, folder, tmp_path
):
    (folder / "sub").mkdir()
    (folder / "l").symlink_to("sub/../words.txt")
    (folder / "sub/file").touch()
    made = site.store(folder)
    pull(site.session, find_version(site.session, made.label), tmp_path / "pulled")
    assert str((tmp_path / "pulled/l").readlink()) == "sub/../words.txt"
    path = site.root / f"models/versions/{made.model_id}/1.json"
    path.chmod(0o600)
    path.write_text(path.read_text().replace("sub/../words.txt", "sub/../../words.txt"))
    with pytest.raises(TransferError, match="points outside"):
        pull(site.session, find_version(site.session, made.label), tmp_path / "other")
    assert not (tmp_path / "other/l").is_symlink()


def test_a_comparison_names_what_differs_and_nothing_else(site, folder):
    first = site.store(folder)
    same = compare(first, first)
    assert not any(same[key] for key in ("files", "manifest", "metrics", "origin"))
    (folder / "words.txt").write_text("longer words\n")
    (folder / "model.pt").unlink()
    (folder / "manifest.yml").write_text("name: words\nframework: {name: own, command: 'ls'}\n")
    second = site.store(folder, first.model_id)
    found = compare(first, second)
    assert [(f["path"], f["what"]) for f in found["files"]] == [
        ("model.pt", "removed"), ("words.txt", "changed"),
    ]  # fmt: skip
    assert [line for line in found["manifest"] if line[0] in "+-"] == [
        "-  command: cat words.txt", "+  command: ls",
    ]  # fmt: skip
    assert found["origin"] == [{"what": "parent", "before": "", "after": first.label}]


# The local record, git, and a group ---------------------------------------------------------------


def test_the_record_lists_models_of_a_silent_site_as_stale(tmp_path, site, folder, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = site.store(folder, aliases=["best"])
    record = ModelRecord()
    assert record.all() == []
    record.remember("testbed", read_models(site.session))
    record.remember("other", [])
    [known] = record.all()
    assert (known.model_id, known.aliases, known.stale_since) == (made.model_id, {"best": 1}, None)
    assert the_site_of(made.label) == the_site_of("words") == "testbed"
    assert the_site_of("nothing") is None
    before = time.time()
    [stale] = record.stale("testbed")
    assert stale.stale_since >= before
    assert record.stale("testbed") == [stale], "it stays stale since the first silence"
    record.remember("testbed", [])
    assert record.all() == []


def test_a_model_is_found_by_a_unique_beginning_or_end():
    models = [
        KnownModel(name, "s", {"1": contract.ModelVersion(name, 1, "")})
        for name in ("digits-aaaa", "digits-bbbb")
    ]
    assert find_model(models, "digits-a", "").model_id == "digits-aaaa"
    assert find_model(models, "bbbb", "").model_id == "digits-bbbb"
    for wanted, why in (("digits", "fits 2 models"), ("digit-aaaa", "there is no model")):
        with pytest.raises(RecordError, match=why):
            find_model(models, wanted, "there")


def test_what_git_says():
    clean = "# branch.oid 0123abcd\n# branch.head main\n"
    assert parse_status(clean) == contract.GitState("0123abcd", "main", False)
    assert parse_status(clean + "? new.txt\n") == contract.GitState("0123abcd", "main", True)
    detached = "# branch.oid 0123abcd\n# branch.head (detached)\n"
    assert parse_status(detached) == contract.GitState("0123abcd", "", False)
    assert parse_status("# branch.oid (initial)\n# branch.head main\n") is None
    assert parse_status("") is None


def test_a_group_may_read_models_and_nobody_may_write(tmp_path, folder):
    site = ModelSite(tmp_path / "shared", more="share: group\n")
    site.store(folder, tags=["a"], aliases=["best"])
    for path in (site.root / "models").rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode & 0o040 and not mode & 0o027, (path, oct(mode))


def test_models_that_can_not_be_read_are_not_said_to_be_none(tmp_path):
    site = ModelSite(tmp_path / "odd")
    site.root.mkdir(parents=True, exist_ok=True)
    (site.root / "models").write_text("as unreadable as a folder of somebody else's")
    with pytest.raises(RemoteCommandError, match="the models can't be read: .*[Nn]ot a directory"):
        read_models(site.session)


@pytest.mark.parametrize("content", [b"spoilt weights " * 500, b"weigh"])
def test_a_damaged_content_is_named_and_neither_pulled_nor_trained_until_it_is_sent_again(
    site, folder, tmp_path, content
):
    version = site.version(site.store(folder).label)
    path = site.blobs()[next(f.sha256 for f in version.files if f.path == "model.pt")]
    path.chmod(0o600)
    path.write_bytes(content[: path.stat().st_size])
    assert verify(site.session, version) == ["model.pt"]
    for use in (
        lambda: find_weights(site.session, f"model:{version.label}"),
        lambda: bring_code(site.session, version, code_of(version)),
    ):
        with pytest.raises(ResultsError, match=r"model\.pt of words-\w+@1 is missing or damaged"):
            use()
    with pytest.raises(TransferError, match="damaged"):
        pull(site.session, find_version(site.session, version.label), tmp_path / "pulled")
    assert not (tmp_path / "pulled/model.pt").exists()
    assert not [*(site.root / "store").glob("*")]
    again = site.store(folder, version.model_id)
    assert not verify(site.session, again)
    assert not verify(site.session, version), "all versions that have it are whole again"
    changes.collect_garbage(site.session, 0)
    assert not [name for name in site.blobs() if name.endswith(contract.DAMAGED_BLOB)]
