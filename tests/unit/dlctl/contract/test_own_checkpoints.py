"""Which files are a program's own checkpoints: by the names that each framework gives them."""

import pytest

from dlctl.contract.own_checkpoints import SavedFile, own_checkpoints


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
