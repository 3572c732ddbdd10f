"""Whole batch scripts, as files in `scripts/`: what a Slurm user would read."""

import dataclasses
from pathlib import Path

import pytest
from login_side import MANIFEST, make_site, plan_of
from shell_check import check_script

from dlctl.plan.render import render

SCRIPTS = Path(__file__).with_name("scripts")
WEIRD = 'a b\'s "c" $(touch pwned) `id` é; #SBATCH --x'
SECRET = "hunter2-hunter2-hunter2"

CASES = {
    "local": lambda: plan_of(learners=2, time="10m", site=make_site(
        scheduler="{kind: local}", launcher="{kind: mpirun}",
        environment="{python: auto, variables: {OMPI_MCA_mpi_yield_when_idle: 1}}")),
    "slurm-modules": lambda: plan_of(
        MANIFEST + f"env: {{API_TOKEN: {SECRET}, PLAIN: seen}}\n",
        learners=4, cpus=2, gpus=1, memory="2GiB", time="4h",
        site=make_site(
            scheduler="{kind: slurm, account: proj}",
            environment="{python: /opt/py/bin/python, modules: [gcc/13, openmpi/5.0],"
            " setup: ['source /opt/venv/bin/activate', 'ulimit -l unlimited']}",
            more="partitions: {gpu: {cpus_per_node: 8, gpus_per_node: 2, gpu_type: a100}}")),
    "slurm-requirements": lambda: plan_of(MANIFEST + "requirements: [boto3]\n"),
    "slurm-container": lambda: plan_of(site=make_site(
        environment="{python: /usr/bin/python3,"
        " container: [apptainer, exec, --nv, '/images/my torch.sif']}")),
    "slurm-extra-options": lambda: plan_of(
        MANIFEST + "scheduler: {qos: high, constraint: 'a100&ib', gres: 'lustre:1',"
        " extra: [--exclusive, '--mail-user=me@example.org']}\n",
        site=make_site(scheduler="{kind: slurm, extra: [--nice=100]}")),
    "slurm-parameter-server": lambda: plan_of(
        MANIFEST + "parameter_server: {}\n", learners=4, memory="2GiB", time="1h",
        site=make_site(more="partitions: {two: {cpus_per_node: 2}}")),
    "slurm-weird-characters": lambda: dataclasses.replace(plan_of(
        f"name: |-\n  {WEIRD}\nframework: {{name: pytorch, job: train.py}}\n"
        "scheduler: {constraint: \"it's [a|b]\"}\n",
        site=make_site(root='"/data/it\'s $HOME `x` \\"é\\""',
                       environment="{python: '/opt/my py/$x/python', modules: [\"a b's\"],"
                       " variables: {GREETING: \"it's $(id)\"}}")), dlctl_version="0.1.0"),
}  # fmt: skip


def script_of(case):
    return render(dataclasses.replace(CASES[case](), dlctl_version="0.1.0"))


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_the_expected_one(case, request):
    path, script = SCRIPTS / f"{case}.sbatch", script_of(case)
    if request.config.getoption("--update-golden", default=False):
        path.write_text(script)
    assert path.exists(), f"{path} is missing: pytest tests/golden --update-golden writes it"
    assert script == path.read_text()


def test_no_expected_script_is_without_its_case():
    assert {path.stem for path in SCRIPTS.iterdir()} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_bash_and_shellcheck_find_no_fault(case):
    check_script(script_of(case), "bash", "SC1091,SC2016")


@pytest.mark.parametrize("case", CASES)
def test_options_come_first_and_no_line_is_smuggled_in(case):
    lines = script_of(case).split("\n")
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    begin = 0 if case == "local" else options[0]  # dlctl's own queue reads none
    assert options == list(range(begin, begin if case == "local" else first))
    assert not any("pwned" in line for line in lines if not line.startswith("# Training"))


def test_no_script_holds_a_secret():
    script = script_of("slurm-modules")
    assert SECRET not in script
    assert "API_TOKEN" not in script
