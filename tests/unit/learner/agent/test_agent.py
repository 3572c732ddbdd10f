"""The agent: ranks, environment, secrets, and one learner's start without a supervisor."""

import os
import shlex
import signal
import subprocess
import sys

import pytest
from node_job import REPO, SAVER, SLEEPER, TRAINING_ID, Job, alive, kill, printed_pid, wait_until
from zygote import light

from dlctl import contract
from dlctl.contract import Directive, Preflight, State
from dlctl.contract.launchers import Ranks
from learner.errors import UserFault
from learner.frameworks.script import PRELUDE, users_python_path
from learner.job.context import find_ranks
from learner.job.directives import SUPERVISOR_LOST_VARIABLE
from learner.job.environment import quiet_mpi
from learner.system.files import resolve_secret

PY = shlex.quote(sys.executable)


def launch(job, **env):
    report = Preflight(0, "h", "3", 1, None, None, port=1234, address="here")
    contract.write_whole(job.dir / contract.preflight_file(1, 0), contract.to_json(report))
    return light().start(
        "-m", "learner.agent", job.dir, "1", env={**job.env, "PYTHONPATH": str(REPO), **env}
    )


def test_the_plans_launcher_decides_which_variables_are_read(tmp_path):
    env = {
        "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1,3", "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }  # fmt: skip
    job = Job(tmp_path, "true", launch=contract.Launch("mpirun", ["mpirun"]))
    assert find_ranks(job.plan, env) == Ranks(3, 4, 1, 2, 0)
    job.write_plan(launch=contract.Launch("srun", ["srun"]))
    assert find_ranks(job.plan, env) == Ranks(0, 4, 0, 3, 1)
    job.write_plan(launch=contract.Launch("direct", []))
    assert find_ranks(job.plan, env) == Ranks(0, 1, 0, 1, 0)
    job.write_plan(launch=contract.Launch("mpirun", ["mpirun"]))
    with pytest.raises(UserFault, match="OMPI_COMM_WORLD_RANK"):
        find_ranks(job.plan, {"SLURM_PROCID": "0"})


def test_learners_that_seem_to_train_alone_are_told_in_log_and_status(tmp_path):
    job = Job(tmp_path, f"{PY} train.py", resources={"learners": 2})
    job.write("train.py", "print('epoch 1')")
    assert launch(job).wait() == 0
    told = "nothing in the program reads RANK or LEARNER_ID"
    first, second = job.log().splitlines()
    assert first.startswith(f"dlctl: WARNING: {told}") and second == "epoch 1"
    assert job.status().reason.startswith(told)


def test_the_users_python_path_comes_before_dlctls():
    assert users_python_path("/run:/a::/b", "/run") == "/a:/b:/run"
    assert users_python_path("", "/run") == "/run"


def test_mpi_is_quiet_about_ucx_only_without_a_fast_network(tmp_path):
    quiet = {"OMPI_MCA_opal_common_ucx_verbose": "-1"}
    assert quiet_mpi({"OMPI_MCA_btl": "self", "UCX_TLS": "any"}, tmp_path / "none") == quiet
    assert quiet_mpi({}, tmp_path) == quiet
    assert quiet_mpi({"OMPI_MCA_pml": "ucx"}, tmp_path) == {}
    assert quiet_mpi({"OMPI_MCA_osc_ucx_verbose": "3"}, tmp_path) == {}
    (tmp_path / "mlx5_0").mkdir()
    assert quiet_mpi({}, tmp_path) == {}


def test_secrets_are_resolved_or_refused(tmp_path):
    path = tmp_path / "key"
    path.write_text("geheim\n")
    path.chmod(0o600)
    assert resolve_secret("K", "file:key", tmp_path, {}) == "geheim"
    assert resolve_secret("K", "env:A", tmp_path, {"A": "b"}) == "b"
    path.chmod(0o644)
    for reference, words in [
        ("file:key", "others may read"), ("file:none", "No such file"), ("env:N", "'N'"),
        ("web:x", "unknown kind"),
    ]:  # fmt: skip
        with pytest.raises(UserFault, match=words):
            resolve_secret("K", reference, tmp_path, {})


def test_a_learners_environment_is_complete(tmp_path):
    command, threads = "env; ulimit -a >/dev/null; echo err >&2; cat", {"threads_per_learner": 3}
    job = Job(tmp_path, command, env={"MINE": "a b"}, resources=threads)
    job.write_plan(secret_env={"TOKEN": "env:SRC"})
    assert launch(job, SRC="geheim", PYTHONSAFEPATH="1").wait() == 0
    seen = dict(line.split("=", 1) for line in job.log().splitlines() if "=" in line)
    expected = {
        "DATA_DIR": "data", "RESULT_DIR": "attempts/1/results", "MODEL_DIR": "code",
        "CHECKPOINT_DIR": "checkpoints", "LOG_DIR": "logs", "JOB_STATE_DIR": "state",
    }  # fmt: skip
    assert {name: seen[name] for name in expected} == {
        name: str(job.dir / folder) for name, folder in expected.items()
    }
    words = {
        "LEARNER_ID": "1", "NUM_LEARNERS": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1234", "MINE": "a b",
        "TOKEN": "geheim", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3", "NUMEXPR_NUM_THREADS": "3",
        "PWD": str(job.code), "PYTHONPATH": str(REPO), "TRAINING_ID": TRAINING_ID,
        "LEARNER_NAME_PREFIX": f"learner-{TRAINING_ID}", "GPU_COUNT": "0.000000",
        "RESULT_BUCKET_DIR": str(job.dir / "attempts/1/results"),
    }  # fmt: skip
    assert {name: seen.get(name) for name in words} == words
    assert "PYTHONSAFEPATH" not in seen
    assert job.log().endswith("err\n")


def test_a_secret_stays_out_of_the_status(tmp_path):
    job = Job(tmp_path, 'echo "the token is $TOKEN"; exit 1')
    job.write_plan(secret_env={"TOKEN": "env:SRC"})
    assert launch(job, SRC="geheim").wait() == 1
    assert job.status().last_lines == ["the token is ***"]


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_halt_stops_compound_commands(tmp_path, shell):
    (tmp_path / "s.py").write_text(SAVER.replace('os.environ["CHECKPOINT_DIR"]', '"."'))
    command = f"{PRELUDE}cd . && {PY} s.py && touch more\ntouch evenmore"
    with subprocess.Popen(
        [shell, "-c", command], cwd=tmp_path, env={**os.environ, "RANK": "0"},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert "ready" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGUSR2)
        assert process.wait() == 85
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.py", "saved-0"]


def test_a_halted_learner_counts_as_success_for_the_launcher(tmp_path):
    job = Job(tmp_path, f"{PY} t.py")
    job.write("t.py", SAVER)
    (job.dir / contract.CHECKPOINTS).mkdir()
    process = launch(job)
    printed_pid(job)
    directive = contract.to_json(Directive("halt", "asked", 0.0, 60.0))
    contract.write_whole(job.dir / contract.directive_file(1), directive)
    assert process.wait() == 0
    status = job.status()
    assert (status.state, status.exit_code) == (State.HALTED, 85)


def test_sigterm_is_passed_on(tmp_path):
    job = Job(tmp_path, f'{PY} -c "{SLEEPER}"')
    process = launch(job)
    pid = printed_pid(job)
    process.send_signal(signal.SIGTERM)
    assert process.wait() != 0
    assert not alive(pid)
    assert job.status().state is State.CANCELLED


def test_a_killed_agent_leaves_no_orphan(tmp_path):
    job = Job(tmp_path, f'{PY} -c "{SLEEPER}"; true')
    process = launch(job)
    pid = printed_pid(job)
    kill(process.pid)
    process.wait()
    wait_until(lambda: not alive(pid))


def test_background_processes_are_ended_with_the_learner(tmp_path):
    job = Job(tmp_path, "setsid sleep 600 & echo pid $! ready; exit 0")
    process = launch(job)
    pid = printed_pid(job)
    assert process.wait() == 0
    assert not alive(pid)
    assert job.status().state is State.COMPLETED


def test_a_learner_ends_when_the_supervisor_falls_silent(tmp_path):
    job = Job(tmp_path, f'{PY} -c "{SLEEPER}"')
    contract.write_whole(job.dir / contract.status_file(1, "supervisor", 0), "{}")
    process = launch(job, **{SUPERVISOR_LOST_VARIABLE: "1"})
    pid = printed_pid(job)
    process.wait()
    assert not alive(pid)
    assert job.status().state is State.CANCELLED
