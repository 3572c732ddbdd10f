"""Submit trainings with nemo-run, by its own Python.

    nemo_program.py HOST PORT USER KEY DIR ACCOUNT COUNT

As its documentation shows it: one experiment, a tunnel over SSH, and the program detached.
"""

from __future__ import annotations

import sys

import nemo_run  # type: ignore[import-not-found]


def main() -> None:
    """Submit as many as the last argument says."""
    host, port, user, key, folder, account, count = sys.argv[1:]
    tunnel = nemo_run.SSHTunnel(host=host, user=user, port=int(port), identity=key, job_dir=folder)
    executor = nemo_run.SlurmExecutor(
        account=account, partition="debug", time="00:10:00", nodes=1, ntasks_per_node=1,
        tunnel=tunnel, packager=nemo_run.Packager(),
    )  # fmt: skip
    with nemo_run.Experiment("peer", executor=executor) as experiment:
        for number in range(int(count)):
            experiment.add(nemo_run.Script(inline="true"), name=f"t{number}")
        experiment.run(detach=True)


if __name__ == "__main__":
    main()
