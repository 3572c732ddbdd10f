"""What a program does itself: train alone, start its processes, save its own checkpoints."""

import pytest

from dlctl.contract.own_checkpoints import SavedFile, own_checkpoints
from dlctl.contract.programs.lone_program import (
    saves_beside_itself,
    starts_processes_itself,
    warn_if_alone,
)

ALONE = "import torch\ntorch.save({}, 'model.pt')  # of each epoch\n"


@pytest.fixture
def code(tmp_path):
    (tmp_path / "main.py").write_text(ALONE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import json\n")
    (tmp_path / "README.md").write_text("RANK\n")
    return tmp_path


@pytest.mark.parametrize("command", [
    "python main.py --epochs 3",
    "cd . && python3 -u main.py",
    "python $MODEL_DIR/main.py; echo done",
    "python -m package.train",
    "python main.py --text \"it's",
])  # fmt: skip
def test_a_program_that_knows_nothing_of_learners_is_told(code, command):
    told = warn_if_alone(command, 2, code)
    assert told.startswith("nothing in the program reads RANK or LEARNER_ID")
    assert "each of the 2 learners trains alone" in told
    assert warn_if_alone(command, 1, code) == ""


@pytest.mark.parametrize("text", [
    "rank = int(os.environ['RANK'])",
    "os.environ.get('LEARNER_ID')",
    "import torch.distributed as dist",
    "from mpi4py import MPI",
    "import pytorch_lightning as pl",
    "import lightning as L",
    "from accelerate import Accelerator",
    "import deepspeed",
    "import horovod.torch as hvd",
    "from transformers import Trainer",
    "from learner import ddl",
    "from learner.parameter_server import join",
    "rank = os.environ['SLURM_PROCID']",
])  # fmt: skip
def test_a_program_that_finds_the_other_learners_is_not(code, text):
    (code / "package" / "util.py").write_text(text)
    assert warn_if_alone("python main.py", 4, code) == ""


@pytest.mark.parametrize("command", [
    "python main.py --shard $LEARNER_ID",
    "./solver input.dat",
    "my-training --epochs 3",
    "python /opt/programs/main.py",
    "python -m somebody.train",
    "",
])  # fmt: skip
def test_what_cannot_be_judged_is_not_told(code, command):
    assert warn_if_alone(command, 2, code) == ""
    assert warn_if_alone(None, 2, code) == ""


def test_many_files_are_not_judged_and_an_environment_in_the_folder_is_not_the_program(
    code, monkeypatch
):
    for name in (".venv", "venv"):
        (code / name).mkdir()
        (code / name / "torch.py").write_text("import torch.distributed")
    assert warn_if_alone("python main.py", 2, code)
    monkeypatch.setattr("dlctl.contract.programs.lone_program._MOST_FILES", 3)
    assert warn_if_alone("python main.py", 2, code) == ""


@pytest.mark.parametrize(("command", "told"), [
    ("torchrun --nnodes 2 --nproc-per-node 1 train.py", True),
    ("python -m torch.distributed.run --standalone train.py", True),
    ("torchrun --nnodes 2 --node-rank $NODE_RANK --master-addr $MASTER_ADDR train.py", False),
    ("python train.py", False),
])  # fmt: skip
def test_torchrun_in_a_command_is_told(code, command, told):
    assert starts_processes_itself(command) is told
    assert ("torchrun in each of the 2 learners" in warn_if_alone(command, 2, code)) is told
    assert "torchrun" not in warn_if_alone(command, 1, code)


@pytest.mark.parametrize(
    ("command", "program", "beside"),
    [
        ("python main.py", 'torch.save(model, "model.pt")', True),
        ("python main.py", 'torch.save(model, os.environ["RESULT_DIR"])', False),
        ("python main.py --out $CHECKPOINT_DIR", "", False),
        ("python main.py", "from learner import adapters", False),
    ],
)
def test_a_program_that_names_no_folder_to_save_in_saves_beside_itself(
    tmp_path, command, program, beside
):
    (tmp_path / "main.py").write_text(program)
    assert saves_beside_itself([command], tmp_path) is beside


# Its own checkpoints: by the names that each framework gives them ---------------------------------


def found(names, pattern):
    files = [SavedFile(name, 10, float(n)) for n, name in enumerate(names)]
    return own_checkpoints(files, pattern)


@pytest.mark.parametrize(("pattern", "names", "steps"), [
    ("ckpt-*", ["ckpt-9", "ckpt-10", "other-11"], [10, 9]),
    ("*.ckpt", ["epoch=3-step=120.ckpt", "val=0.12-step=50.ckpt"], [120, 50]),  # Lightning
    ("checkpoint-*", ["checkpoint-500/model.safetensors", "checkpoint-500/trainer_state.json",
                      "runs/log-7"], [500]),  # Hugging Face
    ("**/ckpt-*.index", ["backup/chief/checkpoint", "backup/chief/ckpt-13.index",
                         "backup/chief/ckpt-13.data-00000-of-00001"], [13]),  # tf_keras
    ("[0-9]*", ["20/default/a", "20/_CHECKPOINT_METADATA", "40/default/a",
                "60.orbax-checkpoint-tmp/default/a"], [40, 20]),  # Orbax
    ("*.ubj", ["digits_29.ubj"], [29]),  # XGBoost
    ("*.solverstate", ["lenet_iter_300.solverstate", "lenet_iter_300.caffemodel"], [300]),
    ("model.pt", ["model.pt", "model.pt.tmp"], [None]),
    (None, ["step-3/a", "notes.txt", "weights-5.npy"], [5, 3]),
    ("ckpt-*", ["ckpt-1.part", ".ckpt-2", "ckpt-3.tmp/a"], []),
])  # fmt: skip
def test_the_step_is_the_last_number_of_the_name(pattern, names, steps):
    assert [each.step for each in found(names, pattern)] == steps


def test_files_beside_one_with_the_same_stem_belong_to_it():
    (only,) = found(["b/ckpt-1.index", "b/ckpt-1.data-00000-of-00001", "b/ckpt-10.x"], "b/*.index")
    assert (only.size_bytes, only.written_at, len(only.files)) == (20, 1.0, 2)


def test_with_a_marker_only_folders_that_have_it_are_complete():
    names = ["s-1/a", "s-1/complete.json", "s-2/a"]
    assert [(c.step, c.complete) for c in found(names, "s-*")] == [(2, False), (1, True)]
    assert all(c.complete for c in found(["s-1/a", "s-2/a"], "s-*"))
