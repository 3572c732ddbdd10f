"""Check that the learner's GPUs answer, and that their memory keeps what is written to it.

CUDA runs in a child process: a broken GPU may block any process that asks it, for ever.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import shutil
import subprocess
import sys
from typing import Any

from dlctl.contract import NodeFault, VerdictKind
from dlctl.contract.ground.processes import end_child
from learner.agent.health.node import Findings, Here

_SMI_S = 4.0
_PROGRAM = ("-m", "learner.agent.health.gpu_probe")
_LOAD_S = 30.0
"""To read torch from a shared file system that is busy takes long, and says nothing of a GPU."""
_PROBE_S = 20.0
"""CUDA alone takes seconds to start on a node with many GPUs."""
_QUERY = (
    "--query-gpu=index,ecc.errors.uncorrected.volatile.total",
    "--format=csv,noheader,nounits",
)
_BROKEN = re.compile(
    r"GPU is lost|fallen off the bus|Unable to determine the device handle|No devices were found"
    r"|ERR!|Unknown Error|requires reset|couldn't communicate with the NVIDIA driver",
    re.IGNORECASE,
)


def check_driver(here: Here, found: Findings) -> None:
    """Ask nvidia-smi, where there is one, whether each GPU of the node answers."""
    program = shutil.which("nvidia-smi")
    if here.plan.resources.gpus_per_learner == 0 or program is None or not here.is_first:
        return
    try:
        done = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, errors="replace", timeout=_SMI_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        found.remarks.append(f"nvidia-smi did not answer within {_SMI_S:.0f} s")
        return
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    broken = next((line for line in lines if _BROKEN.search(line)), "")
    if broken or done.returncode:
        problem = broken or (lines[-1] if lines else f"exit code {done.returncode}")
        what = f"has a GPU that does not answer (nvidia-smi: {problem})"
        found.faults.append(NodeFault(VerdictKind.GPU_ERROR, what))
        return
    for line in lines:
        index, _, errors = line.partition(",")
        if errors.strip().isdecimal() and int(errors) > 0:
            found.remarks.append(f"has had {errors.strip()} uncorrected errors on GPU {index}")


def check_memory(here: Here, found: Findings) -> None:
    """Write to the memory of the learner's GPUs and read it back, with torch if it is there."""
    gpus = here.plan.resources.gpus_per_learner
    if gpus == 0 or importlib.util.find_spec("torch") is None:
        return
    numbers = (gpus, here.ranks.local_rank, here.ranks.local_size)
    program = [sys.executable, *_PROGRAM, *map(str, numbers)]
    probe = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        text=True, errors="replace", env=os.environ | {"PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    try:
        if probe.stdout and not select.select([probe.stdout], [], [], _LOAD_S)[0]:
            what = f"could not check its GPUs: torch did not load within {_LOAD_S:.0f} s"
            found.remarks.append(what)
            return
        output, errors = probe.communicate(timeout=_PROBE_S)
    except subprocess.TimeoutExpired:
        what = f"has a GPU that did not answer within {_PROBE_S:.0f} s"
        found.faults.append(NodeFault(VerdictKind.GPU_ERROR, what))
        return
    finally:
        _end(probe)
    judge_probe(_answer(output), probe.returncode, errors, found)


def _end(probe: subprocess.Popen[str]) -> None:
    """Kill the child; one that a broken GPU holds in the kernel outlives this."""
    end_child(probe)
    for stream in (probe.stdout, probe.stderr):
        if stream:
            stream.close()


def _answer(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return answer if isinstance(answer, dict) else {}


def judge_probe(answer: dict[str, Any], exit_code: int, errors: str, found: Findings) -> None:
    """Add what the child process has found: an answer, or how it ended without one. Pure."""
    if answer.get("error"):
        what = f"has a GPU that fails: {answer['error']}"
        found.faults.append(NodeFault(VerdictKind.GPU_ERROR, what))
    elif not answer:
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        found.remarks.append(f"could not check its GPUs (exit code {exit_code}: {last.strip()})")
    for remark in answer.get("remarks", []):
        found.remarks.append(str(remark))
