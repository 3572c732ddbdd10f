"""Programs as strangers write them, which know nothing of dlctl: no file of theirs is lost.

Each is trained, halted, resumed, fetched and deleted. They save where their frameworks' first
examples do: into the folder that they run in, and beside it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from third_party import python_of
from trainings import REPOSITORY, begin, change_site, halt, write_training
from waiting import wait_until


class Stranger(NamedTuple):
    """A program in `strangers/`."""

    command: str
    saved: str
    """What its first attempt has printed before the halt."""
    goes_on: str
    """What its next attempt prints when it has found what the first one has left."""
    files: tuple[str, ...]
    """Some of what it leaves in the end, as patterns of where it is fetched to."""
    venv: str = ""


STRANGERS = {
    "mnist": Stranger("mnist.py --epochs 3 --save-model", "Train Epoch: 1", "Train Epoch: 3",
                      ("mnist_cnn.pt", "samples/epoch_1_first.pt", "samples/epoch_3.pt",
                       "_beside/data/DIGITS/raw/images.pt")),
    "nanogpt": Stranger("nanogpt.py", "saving checkpoint", "Resuming training from out: iter 10",
                        ("out/ckpt.pt", "out/log.txt")),
    "lightning": Stranger("lit.py", "saved two epochs", "4 epochs, 32 steps",
                          ("final.ckpt", "lightning_logs/*/checkpoints/epoch=0-step=8.ckpt",
                           "lightning_logs/*/checkpoints/last.ckpt",
                           "lightning_logs/*/hparams.yaml"), "pt"),
    "huggingface": Stranger("hf.py", "saved step 4", "resumed from out/checkpoint-4 at 8",
                            ("out/model.safetensors", "out/checkpoint-2/optimizer.pt",
                             "out/checkpoint-8/trainer_state.json"), "pt"),
}  # fmt: skip


def left_by(job_dir: Path, sent: set[str]) -> dict[str, bytes]:
    """Return what a program has written, by where it is fetched to; asks nothing of dlctl."""
    found = {}
    for place, name in {job_dir / "code": "", job_dir / "data": "_beside/data/"}.items():
        for folder, _, files in os.walk(place):
            for path in (Path(folder, file) for file in files):
                inside = path.relative_to(place).as_posix()
                if "__pycache__" not in inside and inside not in {*sent, ".dlctl-index"}:
                    found[name + inside] = path.read_bytes()
    return found


def fetched(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, links followed."""
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.frameworks if each.venv else pytest.mark.slow)
     for name, each in STRANGERS.items()],
)  # fmt: skip
def test_no_file_of_a_stranger_is_lost(name, dlctl, site, xdg, tmp_path):
    stranger = STRANGERS[name]
    if stranger.venv:
        python = python_of(stranger.venv, site)
        site = change_site(site, xdg.config, environment={"python": str(python)})
    program = stranger.command.split()[0]
    command = {"command": f"exec python {stranger.command}"}
    folder = write_training(tmp_path / "job", command, memory="1GiB")
    shutil.copy(REPOSITORY / "tests/cluster/strangers" / program, folder)
    sent = {"manifest.yml", program}
    training_id, job_dir = begin(dlctl, site, folder)
    log = job_dir / "attempts/1/learner-0.log"
    wait_until(lambda: log.exists() and stranger.saved in log.read_text(), 120)
    halt(dlctl, training_id)

    halted = left_by(job_dir, sent)
    dlctl("fetch", "all", training_id, "--to", tmp_path / "halted", ok=True)
    assert halted
    assert fetched(tmp_path / "halted/output") == halted
    dlctl("resume", training_id, "--follow", timeout_s=200, ok=True)
    again = (job_dir / "attempts/2/learner-0.log").read_text()
    assert stranger.goes_on in again
    assert "downloading" not in again

    left = left_by(job_dir, sent)
    assert halted.keys() <= left.keys()
    refused = dlctl("delete", training_id)
    assert (refused.exit_code, "were NOT fetched" in refused.stderr) == (2, True)
    dlctl("fetch", training_id, "--to", tmp_path / "end", ok=True)
    brought = fetched(tmp_path / "end/output")
    assert brought == left
    for pattern in stranger.files:
        assert list((tmp_path / "end/output").glob(pattern)), pattern
    assert "were fetched" in dlctl("delete", training_id, "--dry-run", ok=True).stdout
    dlctl("delete", training_id, "--yes", ok=True)
    assert not job_dir.exists()
    assert fetched(tmp_path / "end/output") == brought
