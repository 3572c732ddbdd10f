"""Unauthenticated peers of a parameter server in a real cluster, and who may read its secret."""

from __future__ import annotations

import json
from pathlib import Path

from served import (
    SLOW_EPOCHS,
    SLOW_SAMPLES,
    assert_each_sample_was_done_once,
    hurry,
    last_words,
    shared_memory,
    wait_for_learners,
    write_slow,
)
from trainings import submit, wait_for_state

from dlctl import contract

STRANGER = """
import contextlib, socket, sys
from psrv.errors import ServerError
from psrv.transport.base import Greeting, Purpose
from psrv.transport.tcp import dial

host, port = sys.argv[1], int(sys.argv[2])
with socket.create_connection((host, port), 10) as stranger:
    stranger.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n" + b"x" * 200)
    with contextlib.suppress(ConnectionResetError):
        assert not stranger.recv(100)
for attempt in (1, 2):
    try:
        dial(host, port, Greeting(attempt, 1, 0, Purpose.EXCHANGE, 0), b"another" * 4)
    except ServerError as error:
        print(error.message)
"""
"""In a job's runtime: arguments are the address and the port of a home."""


def is_bound_to(cluster, port, node):
    """Return the addresses of a node at which something listens at a port."""
    lines = cluster.exec("cat", "/proc/net/tcp", node=node).splitlines()[1:]
    local = [line.split()[1] for line in lines if line.split()[3] == "0A"]
    found = [address for address, _, at in (one.partition(":") for one in local)
             if int(at, 16) == port]  # fmt: skip
    return [".".join(str(byte) for byte in bytes.fromhex(one)[::-1]) for one in found]


def command_lines():
    """Return those of all processes, the cluster's too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


def test_a_stranger_that_connects_to_the_port(dlctl, cluster_site, cluster, wait_until):
    """From a node that is none of the job's; the training continues, and its log has it."""
    training_id = submit(dlctl, cluster_site, write_slow(dlctl.cwd / "job", learners=2, cpus=2))
    job_dir = cluster_site.job_dir(training_id)
    wait_for_learners(wait_until, job_dir, 2)
    places = [
        contract.read_record(contract.ServerPlace, job_dir / contract.server_file(1, node))
        for node in (0, 1)
    ]
    hosts = {place.host for place in places}
    (other,) = {f"n{node}" for node in range(1, 4)} - hosts
    for place in places:
        bound = is_bound_to(cluster, place.port, int(place.host[1:]))
        assert len(bound) == 1 and not bound[0].startswith(("127.", "0."))
    runtime = json.loads((job_dir / contract.plan_file(1)).read_text())["runtime_dir"]
    said = cluster.user(
        "env", f"PYTHONPATH={runtime}", str(cluster.node_python), "-c", STRANGER,
        places[0].address, str(places[0].port), node=int(other[1:]),
    )  # fmt: skip
    assert said.splitlines() == [
        "it does not know the secret of this training's attempt "
        f"(and says it is node 1 of attempt {attempt})"
        for attempt in (1, 2)
    ]
    log = (job_dir / contract.server_log(1, 0)).read_text()
    assert log.count("does not know the secret") == 2 and log.count("another language") == 1

    kept = job_dir / contract.server_secret(1)
    secret = kept.read_bytes()
    assert len(secret) == 64 and kept.stat().st_mode & 0o777 == 0o600
    assert not any(secret in line for line in command_lines())
    hurry(job_dir)
    wait_for_state(dlctl, wait_until, training_id, "COMPLETED", timeout_s=120)
    files = [path for path in job_dir.rglob("*") if path.is_file()]
    assert files and not any(secret in path.read_bytes() for path in files), last_words(job_dir)
    assert_each_sample_was_done_once(job_dir, SLOW_SAMPLES, SLOW_EPOCHS)
    assert shared_memory(training_id, cluster_site) == []
