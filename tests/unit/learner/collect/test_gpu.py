"""GPUs by NVML: the real package nvidia-ml-py calls a fake driver library.

No GPU is at hand here. `fake_nvml.c` is compiled under the name of NVIDIA's library, and a Python
process with it on its library path runs the collector's own code.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import REPOSITORY

CC = shutil.which("cc")
PROGRAM = """\
import json, os, sys
from learner.collect.usage.gpu import open_gpus
from learner.collect.usage.sampler import Window
gpus = open_gpus(os.environ, int(sys.argv[1]))
if gpus is None:
    print("null")
else:
    window = Window()
    for _ in range(3):
        window.add(gpus.sample())
    print(json.dumps([window.take(), gpus.texts(), gpus.texts()]))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if CC is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([CC, "-shared", "-fPIC", "-o", target, source], check=True)
    return folder


@pytest.fixture
def ask(library):
    def run(per_learner, **variables):
        env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        env |= {"LD_LIBRARY_PATH": str(library), **variables}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(per_learner)],
            cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    return run


def test_everything_that_a_gpu_tells(ask):
    values, texts, later = ask(1, CUDA_VISIBLE_DEVICES="0")
    assert values == {
        "gpu0_percent": 31, "gpu0_percent_max": 31,
        "gpu0_memory_bytes": 250, "gpu0_memory_bytes_max": 250, "gpu0_memory_total_bytes": 1000,
        "gpu0_power_w": 123.5, "gpu0_power_w_max": 123.5,
        "gpu0_temperature_c": 61, "gpu0_temperature_c_max": 61,
        "gpu0_throttled_percent": 100, "gpu0_ecc_errors": 2, "gpu0_xid": 79,
    }  # fmt: skip
    assert texts == {"gpu0_throttle_reasons": "power cap, heat"}
    assert later == {}


def test_what_a_gpu_can_not_tell_is_left_out(ask):
    values, texts, _ = ask(1, CUDA_VISIBLE_DEVICES="GPU-1234")
    assert values == {
        "gpu0_percent": 7, "gpu0_percent_max": 7,
        "gpu0_memory_bytes": 251, "gpu0_memory_bytes_max": 251, "gpu0_memory_total_bytes": 1000,
        "gpu0_throttled_percent": 0,
    }  # fmt: skip
    assert texts == {}


def percents(answer):
    return {k: v for k, v in answer[0].items() if k.endswith("_percent") and "thr" not in k}


def test_the_learners_own_gpus(ask):
    assert percents(ask(2)) == {"gpu0_percent": 31, "gpu1_percent": 7}
    assert percents(ask(2, CUDA_VISIBLE_DEVICES="1,0")) == {"gpu0_percent": 7, "gpu1_percent": 31}
    # All learners of the node see all GPUs: the second one has the second.
    assert percents(ask(1, LOCAL_RANK="1")) == {"gpu0_percent": 7}


@pytest.mark.parametrize(
    ("per_learner", "variables"),
    [(0, {}), (1, {"CUDA_VISIBLE_DEVICES": ""}), (1, {"CUDA_VISIBLE_DEVICES": "5"}),
     (1, {"CUDA_VISIBLE_DEVICES": "MIG-7"})],
)  # fmt: skip
def test_no_gpu_of_the_learner_is_none(ask, per_learner, variables):
    assert ask(per_learner, **variables) is None


def test_without_the_library_the_package_is_not_even_imported():
    code = "import sys; from learner.collect.usage.gpu import open_gpus as o; print(o({}, 1))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('pynvml' in sys.modules)"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["None", "False"]
