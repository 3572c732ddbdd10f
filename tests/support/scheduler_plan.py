"""A plan for the tests of schedulers: only what a scheduler reads matters."""

import sys

from dlctl import contract


def make_plan(*, training_id="t-1", job_dir="/jobs/t-1", root="/root", runtime_dir="/runtime",
              learners=1, cpus=1, time_s=None, halt_margin_s=0, kind="slurm"):  # fmt: skip
    return contract.Plan(
        training_id=training_id, name="n", version="1", description="", site="s", root=root,
        job_dir=job_dir, runtime_dir=runtime_dir, code_digest="", created_at="",
        dlctl_version="0",
        resources=contract.Resources(
            learners=learners, nodes=1, learners_per_node=[learners], first_ranks=[0],
            cpus_per_learner=cpus,
            threads_per_learner=1, gpus_per_learner=0, memory_bytes_per_learner=None,
            memory_bytes_per_node=None, gpus_per_node=0, time_s=time_s,
            halt_margin_s=halt_margin_s,
        ),
        batch=contract.Batch(scheduler=kind), launch=contract.Launch("direct", []),
        environment=contract.Environment(python=sys.executable),
        framework=contract.Framework("f", None, "true", None),
        training=contract.Training(), checkpoint=contract.CheckpointPolicy(),
    )  # fmt: skip
