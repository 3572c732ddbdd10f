"""All arithmetic on nodes, CPUs, memory, GPUs and limits."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from login_side import MANIFEST, make_manifest, make_site, plan_of

from dlctl.errors import PlanError
from dlctl.plan.placement import _spread, place
from dlctl.plan.render import render
from dlctl.sites.model import Partition

TWO = """partitions:
  small: {nodes: 2, cpus_per_node: 4, memory_per_node: 8GiB, max_time: 1h}
  big: {nodes: 8, cpus_per_node: 16, memory_per_node: 64GiB, gpus_per_node: 4, gpu_type: a100, max_nodes: 4, default: true}
"""  # noqa: E501
SITE = make_site(more=TWO)


@given(st.integers(1, 2000), st.integers(1, 64))
def test_learners_are_spread_evenly_over_as_few_nodes_as_can_be(learners, most):
    nodes = _spread(learners, most)
    assert sum(nodes) == learners
    assert max(nodes) <= most
    assert max(nodes) - min(nodes) <= 1
    assert len(nodes) == -(-learners // most)
    assert nodes == sorted(nodes, reverse=True)


@pytest.mark.parametrize(("asked", "partition", "nodes"), [
    ({"learners": 5, "cpus": 8}, "big", [2, 2, 1]),
    ({"learners": 4}, "big", [4]),
    ({"learners": 4, "memory": "30GiB"}, "big", [2, 2]),
    ({"learners": 6, "gpus": 2}, "big", [2, 2, 2]),
    ({"learners": 2, "cpus": 0.5, "set": ("scheduler.partition=small",)}, "small", [2]),
    ({"learners": 5, "set": ("scheduler.partition=small",)}, "small", [3, 2]),
    ({"learners": 33, "cpus": 2, "set": ("scheduler.partition=small,big",)}, None, None),
])  # fmt: skip
def test_the_first_partition_that_fits_is_taken(asked, partition, nodes):
    manifest = make_manifest(**asked)
    if partition is None:
        with pytest.raises(PlanError, match="33 learners need 17 nodes"):
            place(manifest, SITE)
        return
    placed = place(manifest, SITE)
    assert (placed.partition, placed.learners_per_node) == (partition, nodes)


@pytest.mark.parametrize(("asked", "partition", "nodes"), [
    ({"nodes": 2}, "big", [1, 1]),
    ({"learners": 4, "nodes": 2}, "big", [2, 2]),
    ({"nodes": 2, "learners_per_node": 3}, "big", [3, 3]),
    ({"learners": 4, "learners_per_node": 1}, "big", [1, 1, 1, 1]),
    ({"nodes": 2, "partition": "small"}, "small", [1, 1]),
])  # fmt: skip
def test_a_manifest_that_asks_for_nodes_gets_them(asked, partition, nodes):
    placed = place(make_manifest(**asked), SITE)
    assert (placed.partition, placed.learners_per_node) == (partition, nodes)
    assert place(make_manifest(**asked), make_site()).learners_per_node == nodes


def test_nodes_that_are_asked_for_are_in_the_script():
    plan = plan_of(site=SITE, learners=4, nodes=2)
    resources = plan.resources
    assert (resources.nodes, resources.learners_per_node, resources.first_ranks) == (
        2, [2, 2], [0, 2],
    )  # fmt: skip
    assert plan.launch.argv[2:4] == ["--nodes=2", "--ntasks=4"]
    for option in ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2"):
        assert f"#SBATCH {option}\n" in render(plan)


@pytest.mark.parametrize(("asked", "reason"), [
    ({"learners_per_node": 6, "partition": "small"}, "6 learners on a node need 6 CPUs, a node"),
    ({"learners_per_node": 2, "gpus": 3}, "2 learners on a node need 6 GPUs, a node has 4"),
    ({"learners_per_node": 2, "memory": "40GiB"}, "2 learners on a node need 80GiB, a node"),
    ({"nodes": 5}, "big: 5 learners need 5 nodes, a job may have 4"),
])  # fmt: skip
def test_nodes_that_no_partition_has_are_refused(asked, reason):
    with pytest.raises(PlanError) as refused:
        place(make_manifest(**asked), SITE)
    assert reason in refused.value.message


def test_a_site_of_one_machine_refuses_two_nodes():
    local = make_site(scheduler="{kind: local}", launcher="{kind: mpirun}")
    with pytest.raises(PlanError, match="asks for 2 nodes, and the site testbed is one machine"):
        place(make_manifest(nodes=2), local, MACHINE)
    assert place(make_manifest(nodes=1, learners=9), local, MACHINE).learners_per_node == [9]


CONTAINER = "{python: /usr/bin/python3, container: [apptainer, exec, a.sif]}"


@pytest.mark.parametrize(("site", "asked", "said", "hint"), [
    (SITE, {"cpus": 32, "gpus": 8, "memory": "100GiB", "time": "2h"},
     r"(?s)big: a learner needs 32 CPUs, a node has 16.*needs 8 GPUs, a node has 4"
     r".*small: a learner needs 32 CPUs, a node has 4; a learner needs 100GiB", ""),
    (SITE, {"set": ("scheduler.partition=bigg",)}, "no partition 'bigg'; did you mean 'big'", ""),
    (make_site(more="partitions: {a: {}}"), {"gpus": 1}, "needs 1 GPU, a node has 0", ""),
    (make_site(environment="{}"), {}, "no Python for its nodes yet", "dlctl sites setup testbed"),
])  # fmt: skip
def test_what_a_site_can_not_give_is_refused_with_each_reason(site, asked, said, hint):
    with pytest.raises(PlanError, match=said) as refused:
        plan_of(site=site, **asked)
    assert hint in (refused.value.hint or "")
    assert refused.value.exit_code == 5


def test_each_image_has_an_environment_of_its_own_for_the_same_requirements():
    images = [CONTAINER, CONTAINER.replace("exec", "exec --nv")]
    plans = [plan_of(MANIFEST + "requirements: [boto3]\n", site=make_site(environment=each))
             for each in images]  # fmt: skip
    pythons = {plan.environment.python for plan in plans}
    assert len(pythons) == 2
    assert all(each.startswith("/data/dl/environments/") for each in pythons)
    assert {plan.environment.site_python for plan in plans} == {"/usr/bin/python3"}


@pytest.mark.parametrize(("more", "mtbf_s"), [
    ("", 30 * 86400 / 3),
    ("failures: {node_mtbf: 6d}\n", 2 * 86400),
    ("failures: {node_mtbf: unlimited}\n", None),
])  # fmt: skip
def test_a_job_of_n_nodes_fails_n_times_as_often_as_one(more, mtbf_s):
    plan = plan_of(site=make_site(more=TWO + more), learners=6, gpus=2)
    assert plan.resources.nodes == 3
    assert plan.checkpoint.mtbf_s == mtbf_s


MACHINE = Partition(cpus_per_node=2, memory_per_node="8GiB", gpus_per_node=1)


@pytest.mark.parametrize(("asked", "reason"), [
    ({"cpus": 900}, "a learner needs 900 CPUs, a node has 2"),
    ({"memory": "9TiB"}, "a learner needs 9TiB, a node has 8GiB"),
    ({"learners": 4, "memory": "3GiB"}, "4 learners need 12GiB in total, it has 8GiB"),
    ({"gpus": 2}, "a learner needs 2 GPUs, a node has 1"),
    ({"learners": 2, "gpus": 1}, "2 learners need 2 GPUs in total, it has 1"),
])  # fmt: skip
def test_one_machine_refuses_what_it_does_not_have(asked, reason):
    with pytest.raises(PlanError) as refused:
        place(make_manifest(**asked), make_site(), MACHINE)
    assert refused.value.message == (
        f"the request does not fit the site testbed:\n  this machine: {reason}"
    )


def test_learners_may_share_the_cpus_of_one_machine():
    placed = place(make_manifest(learners=50, cpus=2, memory="100MiB"), make_site(), MACHINE)
    assert (placed.partition, placed.learners_per_node) == (None, [50])
    assert plan_of(learners=1000, gpus=8).resources.learners == 1000, "nothing is known"


def test_numbers_are_decided_once():
    plan = plan_of(site=SITE, learners=5, cpus=2.5, gpus=2, memory="3GiB", time="10m")
    resources = plan.resources
    assert resources.learners_per_node == [2, 2, 1]
    assert (resources.cpus_per_learner, resources.threads_per_learner) == (3, 3)
    assert resources.memory_bytes_per_node == 2 * resources.memory_bytes_per_learner == 6 << 30
    assert (resources.gpus_per_node, plan.batch.gres) == (4, "gpu:a100:4")
    assert (resources.time_s, resources.halt_margin_s) == (600, 120)
    assert plan.job_dir == "/data/dl/jobs/digits-abcdefgh"
    assert plan.runtime_dir == "/data/dl/runtime/ba5e"


@pytest.mark.parametrize(("time", "margin_s"), [("10s", 5), ("1m", 15), ("4h", 120)])
def test_short_jobs_are_halted_later(time, margin_s):
    assert plan_of(time=time).resources.halt_margin_s == margin_s


def test_the_launcher():
    assert plan_of().launch.kind == "direct"
    srun = plan_of(site=SITE, learners=5, cpus=8).launch
    assert srun.argv == ["srun", "--mpi=pmix", "--nodes=3", "--ntasks=5", "--cpus-per-task=8",
                         "--kill-on-bad-exit=1"]  # fmt: skip
    site = make_site(launcher="{kind: mpirun, executable: /opt/mpi run, extra: [--bind-to, none]}")
    assert plan_of(site=site, learners=2).launch.argv == [
        "/opt/mpi run", "-n", "2", "--bind-to", "none"
    ]  # fmt: skip


def test_the_manifest_comes_before_the_site():
    site = make_site(scheduler="{kind: slurm, account: theirs, qos: low, extra: [--nice=1]}")
    asked = MANIFEST + "scheduler: {account: mine, extra: [--exclusive]}\n"
    batch = plan_of(asked, site=site).batch
    assert (batch.account, batch.qos, batch.extra) == ("mine", "low", ["--nice=1", "--exclusive"])


def test_requirements_have_an_environment_for_each_list_and_each_python():
    text = MANIFEST + "requirements: [boto3]\n"
    plan = plan_of(text)
    assert plan.environment.site_python == "/opt/py/bin/python"
    assert re.fullmatch(r"/data/dl/environments/[0-9a-f]{32}/bin/python", plan.environment.python)
    auto = make_site(environment="{python: auto}")
    assert plan_of(site=auto).environment.python == "/me/python"
    pythons = {
        plan_of(asked, site).environment.python
        for asked in (text, MANIFEST + "requirements: [boto3, rich]\n")
        for site in (None, auto)
    }
    assert len(pythons) == 4
    assert plan.environment.python in pythons
    assert plan_of(text, auto).environment.site_python == "/me/python"
    assert plan_of(MANIFEST).environment.site_python is None


def test_a_plan_names_where_a_secret_is_and_never_holds_it():
    text = (
        "name: a\nframework: {name: x, command: 'true'}\nenv: {API_TOKEN: hunter2hunter2, A: b}\n"
    )
    plan = plan_of(text)
    assert plan.env == {"A": "b"}
    assert plan.secret_env == {"API_TOKEN": "file:/data/dl/secrets/digits-abcdefgh/API_TOKEN"}
    assert "hunter2" not in repr(plan)


SERVER = MANIFEST + "parameter_server: {}\n"


def test_with_a_parameter_server_each_learner_is_a_step_of_its_own():
    site = make_site(more=TWO, launcher="{kind: srun, mpi: pmix, executable: /s/srun, extra: [-v]}")
    plan = plan_of(SERVER, site=site, learners=6, gpus=2, cpus=2, memory="3GiB")
    assert plan.launch.step_per_learner
    alone = ["/s/srun", "--mpi=none", "--nodes=1", "--ntasks=1", "--no-kill", "--mem=0"]
    assert plan.launch.argv == [*alone, "--cpus-per-task=2", "--exact", "--gres=gpu:2", "-v"]
    assert plan.parameter_server.argv == [
        *alone, "--overlap", "--cpu-bind=none", "--gres=none", "-v"
    ]  # fmt: skip


@pytest.mark.parametrize(("scheduler", "program"), [
    ("{kind: slurm}", "srun"), ("{kind: slurm, path: /opt/slurm/bin}", "/opt/slurm/bin/srun"),
])  # fmt: skip
def test_where_mpirun_starts_worlds_srun_starts_single_learners(scheduler, program):
    launcher = "{kind: mpirun, executable: /opt/mpirun, extra: [--bind-to, none]}"
    plan = plan_of(SERVER, site=make_site(scheduler=scheduler, launcher=launcher), learners=2)
    for argv in (plan.launch.argv, plan.parameter_server.argv):
        assert argv[0] == program
        assert "--mpi=none" in argv
        assert "--gres=none" in argv
        assert "none" not in argv


def test_a_node_has_memory_for_its_server_beside_its_learners():
    plan = plan_of(SERVER, site=SITE, learners=4, memory="30GiB")  # of nodes with 64 GiB
    assert plan.resources.learners_per_node == [2, 2]
    assert plan.resources.memory_bytes_per_node == 60 * 2**30 + 512 * 2**20
    plan = plan_of(SERVER, site=SITE, learners=4, memory="32GiB")
    assert plan.resources.learners_per_node == [1, 1, 1, 1]
    with pytest.raises(PlanError, match="needs 64GiB and the parameter server 512MiB, a node has"):
        plan_of(SERVER, site=SITE, learners=2, memory="64GiB")
    assert plan_of(SERVER, site=SITE, learners=2).resources.memory_bytes_per_node is None


def test_the_local_queue_starts_each_learner_itself():
    site = make_site(scheduler="{kind: local}", launcher="{kind: mpirun}")
    plan = plan_of(SERVER, site=site, learners=3)
    assert (plan.launch.kind, plan.launch.argv) == ("direct", [])
    assert plan.parameter_server.argv == []
    assert plan.parameter_server.shard_nodes == [0]


def test_a_site_without_slurm_says_what_it_does_not_use():
    asked = {"set": ("scheduler.partition=gpu", "scheduler.account=ab12")}
    local = make_site(scheduler="{kind: local}", launcher="{kind: mpirun}")
    plan = plan_of(site=local, **asked)
    assert plan.batch.partition is None
    assert plan.not_in_this_version == [
        "The site testbed has no Slurm and ignores scheduler.partition, scheduler.account; "
        "--site selects another site."
    ]
    assert plan_of(**asked).not_in_this_version == []


@pytest.mark.parametrize(("shards", "homes"), [
    ("", [0, 1, 2]), ("shards: 2", [0, 1]), ("shards: 7", [0, 1, 2, 0, 1, 2, 0]),
])  # fmt: skip
def test_shards_go_round_the_nodes(shards, homes):
    text = MANIFEST + f"parameter_server: {{{shards}}}\n"
    assert plan_of(text, site=SITE, learners=5, cpus=8).parameter_server.shard_nodes == homes


@pytest.mark.parametrize(("partitions", "time", "partition", "time_s", "links"), [
    # Each link loses two minutes for saving, and ten seconds to start.
    ("day: {nodes: 9, max_time: 4h}, hour: {nodes: 9, max_time: 1h}", "14d", "day", 4 * 3600, 85),
    ("day: {nodes: 9, max_time: 4h}, hour: {nodes: 9, max_time: 1h}", "30m", "day", 1800, 1),
    # A partition in which one job is enough comes first.
    ("a: {nodes: 9, max_time: 1h, default: true}, b: {max_time: 7d}", "2d", "b", 2 * 86400, 1),
    ("a: {nodes: 9, max_time: 1h, default: true}, b: {max_time: 7d}", "30m", "a", 1800, 1),
])  # fmt: skip
def test_a_training_that_is_longer_than_a_partition_takes_a_chain_of_jobs(
    partitions, time, partition, time_s, links
):
    plan = plan_of(site=make_site(more=f"partitions: {{{partitions}}}\n"), time=time)
    assert (plan.batch.partition, plan.resources.time_s) == (partition, time_s)
    assert plan.lifecycle.links == links
    if time == "14d":
        assert plan.lifecycle.total_time_s == 14 * 86400


def test_the_log_of_a_program_of_the_users_own_is_read_for_metrics_by_default():
    own = "name: t\nframework: {command: python train.py}\n"
    loop = "name: t\nframework: {name: pytorch, job: train.py}\n"
    assert plan_of(own).evaluation_metrics == {"type": "auto", "default": True}
    none = plan_of(f"{own}evaluation_metrics: {{type: none}}\n").evaluation_metrics
    assert none == {"type": "logger"}
    assert plan_of(loop).evaluation_metrics is None
