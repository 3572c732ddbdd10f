"""What counts as a program's output: the node and the login side, each on its own, see the same."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from unprivileged import unprivileged

from dlctl import contract
from dlctl.contract import CACHES, Amount, OutputPlace
from dlctl.files.made import look_at_made
from dlctl.transport.local import LocalTransport

SENT = {"train.py": b"train", "data/a b.npy": b"1234", "old.pt": b"weights"}
BEFORE, AFTER = 1_000_000, 2_000_000


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job directory as a program finds it."""
    code = tmp_path / "job/code"
    files = []
    for name, content in SENT.items():
        write(code / name, content, BEFORE)
        files.append(
            contract.SentFile(hashlib.sha256(content).hexdigest(), len(content), "f", name)
        )
    write(code / contract.SENT_INDEX, contract.index_text(files), BEFORE)
    write(tmp_path / "job" / contract.claim(1), b"7", BEFORE + 1)
    return tmp_path / "job"


def write(path: Path, content: bytes, at: float = AFTER) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))


def seen(job: Path) -> contract.Made:
    made = contract.look_at_made(job)
    found, files = look_at_made(LocalTransport(), str(job))
    assert found == made
    assert made is not None
    own = {f.path[5:]: f.size_bytes for f in files if f.path[:5] == "code/" and f.kind == "f"}
    assert own == contract.own_output(job)
    return made


def test_nothing_is_output_of_a_program_that_writes_nothing(job):
    assert seen(job) == contract.Made()
    shutil.rmtree(job / "code")
    assert seen(job) == contract.Made()


def test_new_and_changed_files_are_output_and_caches_are_not(job):
    write(job / "code/model.pt", b"m" * 9)
    write(job / "code/out/1/é\n.txt", b"22")
    write(job / "code/out/2.txt", b"333")
    write(job / "code/old.pt", b"WEIGHTS")  # as large as before
    write(job / "code/train.py", SENT["train.py"])  # written anew, and the same
    for cache in ("__pycache__/a.pyc", "lib/.cache/x", "wandb/run-1/files/y", ".dlctl-model"):
        write(job / "code" / cache, b"c")
    write(job / "code/wandb/offline-run-1/z", b"z")
    write(job / "results/r", b"1")
    write(job / "checkpoints/step-1/c", b"12")
    made = seen(job)
    assert made.output == [
        OutputPlace("model.pt", 1, 9), OutputPlace("old.pt", 1, 7), OutputPlace("out/", 2, 5),
        OutputPlace("wandb/", 1, 1),
    ]  # fmt: skip
    assert (made.results, made.checkpoints) == (Amount(1, 1), Amount(1, 2))


def test_what_is_beside_the_programs_folder_is_output_but_for_dlctls_own(job, tmp_path):
    """`../data` of pytorch/examples, and JOB_STATE_DIR: they were lost in silence."""
    for name in ("data/MNIST/raw", "state/s", "old.pt", "data/.cache/x", ".hidden"):
        write(job / name, b"22")
    for name in {*contract.DLCTLS} - {contract.RESULTS, contract.CHECKPOINTS, contract.CODE}:
        write(job / name / "x" if "." not in name else job / name, b"")
    (job / "linked").symlink_to(tmp_path)
    made = seen(job)
    assert [place.path for place in made.output] == ["../.hidden", "../data/", "../old.pt",
                                                     "../state/"]  # fmt: skip
    (job / contract.PLAN).write_text('{"output_caches": ["data"]}')
    made, _ = look_at_made(LocalTransport(), str(job))
    assert made == contract.look_at_made(job, ["data"])
    assert "../data/" not in [place.path for place in made.output]
    write(job / "code/data/big.bin", b"1")
    write(job / "code/__pycache__/a.pyc", b"1")
    assert contract.own_output(job, ["data"]) == {"__pycache__/a.pyc": 1}


def test_links_count_as_nothing_and_are_named_to_whoever_fetches(job, tmp_path):
    (job / "code/last.pt").symlink_to("old.pt")
    (job / "code/away").symlink_to(tmp_path)
    sent = (job / "code" / contract.SENT_INDEX).read_text()
    (job / "code/sent").symlink_to("old.pt")
    (job / "code" / contract.SENT_INDEX).write_text(
        contract.index_text([*contract.parse_index(sent.encode()),
                             contract.SentFile("0" * 64, 6, "l", "sent")]).decode()
    )  # fmt: skip
    write(job / "state/sent", b"1")
    assert seen(job) == contract.Made(output=[OutputPlace("../state/", 1, 1)])
    _, files = look_at_made(LocalTransport(), str(job))
    assert [(file.path, file.kind) for file in files] == [
        ("state/sent", "f"), ("code/away", "l"), ("code/last.pt", "l"),
    ]  # fmt: skip


def test_a_folder_that_cannot_be_read_is_named(job):
    closed = (
        "code/out/closed",
        "state",
        "results/mine",
        "checkpoints/x",
        "code/__pycache__",
        "results/.cache",
    )
    for name in closed:
        write(job / name / "model.pt", b"1")
    write(job / "code/model.pt", b"12")
    with unprivileged(job) as job:
        for name in closed:
            (job / name).chmod(0)
        made = seen(job)
    named = (
        "../checkpoints/x/",
        "../results/.cache/",
        "../results/mine/",
        "../state/",
        "out/closed/",
    )
    assert sorted(p.path for p in made.output if not p.files) == [*named]
    assert made.output[-1] == OutputPlace("model.pt", 1, 2)
    told = contract.tell_output([OutputPlace("out/closed/", 0, 0)])
    assert told == "out/closed/: can't be read"


def test_a_change_that_hides_its_time_is_output(job):
    """As large as it was sent, with the mtime that it had: the ctime tells."""
    claim = job / contract.claim(1)
    os.utime(claim, ((job / "code/old.pt").stat().st_ctime - 1,) * 2)
    write(job / "code/old.pt", b"WEIGHTS", BEFORE)
    assert seen(job).output == [OutputPlace("old.pt", 1, 7)]


def test_many_places_are_summed_up():
    places = contract.output_places({f"{n:02}.pt": 100 - n for n in range(12)})
    assert [place.path for place in places] == [*(f"{n:02}.pt" for n in range(10)), ""]
    told = contract.tell_output(places)
    assert told.startswith("00.pt: 100 B; 01.pt: 99 B;")
    assert told.endswith("more: 2 files, 179 B; not in RESULT_DIR")
    assert contract.tell_output([]) == ""
    told = contract.tell_output(contract.output_places({"out\nnext: rm -rf/x": 1}))
    assert told == "out\\nnext: rm -rf/: 1 file, 1 B; not in RESULT_DIR"


def test_a_look_that_takes_too_long_is_given_up(job):
    with pytest.raises(TimeoutError):
        contract.own_output(job, CACHES, until=0.0)
