"""The parameter server over two nodes of the test cluster (`psrv_nodes_2…` of benchmarks.psrv).

Each node has one learner and one server; each is the primary of one of two shards. In an update a
learner pushes a gradient of 102 MB and pulls weights that contain it. Half of both is worked on in
place; the other half goes over the network and back. Only then does the learner begin its next
update, so that two pushes are never combined, as they otherwise may be. It does not wait for the
other learner.

`…_loop` is what a training does. A learner continues with the weights that its node has, as in the
built-in loop, and pushes made while a total is in flight are sent with the next one. The clock
stops when all pushes have reached their primary.

Floor: the link. Bare sockets move the same bytes the same way at the same time: 51 MB there and
back from each node, from the learner's gradient and into its weights, in frames of 512 KiB over as
many connections, as far ahead of the answers; nothing is computed. The nodes are network namespaces
on this machine: their link is its memory, and their processes share its cores, so computing takes
time from sending. Two more measurements therefore limit each node's sending rate to 10 and 5 Gbit/s
(with the kernel's token bucket), as a network card would.

Peer `bare`: the link, and the same arithmetic on each node's own memory, without anything else that
a server does. No program can be faster if learners wait for answers and the processors carry the
link.

Peer `torch_rpc`: torch.distributed.rpc. Each node's process serves one half: the argument is this
half of the gradient, the result that of the weights. It is measured after the others, because its
threads spin even while idle.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from benchmarks.learners import ONE_THREAD, REPOSITORY, Started
from benchmarks.report import Load, Result, compare, main, medians, rounds
from benchmarks.slurm import slurm
from benchmarks.turns import LearnerSet, accept

_NODES = 2
_ROUNDS = rounds(9, 1)
_UPDATES, _LOOP_UPDATES = (4, 4, 1), (16, 16, 2)
"""Per learner and run."""
_BARE, _LOOP = "bare", "loop"
_END_LIMIT_S = 60.0
_TBF = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "burst", "1mb", "limit", "20mb"]
_LINKS = {"psrv_nodes_2": 0, "psrv_nodes_2_10gbit": 10, "psrv_nodes_2_5gbit": 5}
"""In Gbit/s in each direction; 0: as fast as this machine's memory."""


def measure(load: Load) -> Iterator[Result]:
    """Yield each result; nothing if the cluster's programs are missing."""
    with slurm("psrv_nodes_", nodes=_NODES) as cluster:
        if cluster is None:
            return
        for package in ("benchmarks", "learner", "psrv", "dlctl"):
            shutil.copytree(REPOSITORY / package, cluster.folder / "benchmark" / package,
                            ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        for what, gbit in _LINKS.items():
            if gbit:
                _limit(cluster, gbit)
            yield from _measure(cluster, what, load)


def _limit(cluster: Any, gbit: int) -> None:
    """Limit each node's sending rate."""
    for node in range(1, _NODES + 1):
        cluster.exec(*_TBF, "rate", f"{gbit}gbit", node=node)


def _measure(cluster: Any, what: str, load: Load) -> Iterator[Result]:
    with_peers = load is not Load.SMOKE or what not in list(_LINKS)[1:]  # else they have run
    ways = ("ours", "link", *([_BARE] if with_peers else []))
    with _rates(cluster, what, ways, load) as rates:
        others = {name: rates[name] for name in (_BARE, _LOOP) if name in rates}
        result = compare(what, rates["ours"], rates["link"], others, unit="updates/s",
                         rounds=_ROUNDS[load])  # fmt: skip
    peers = dict(result.peers)
    loop = peers.pop(_LOOP)
    if with_peers:
        with _rates(cluster, what, ("torch_rpc",), load) as rates:
            alone = {n: round(v, 4) for n, v in medians(rates, _ROUNDS[load]).items()}
        peers = {**alone, **peers}
    yield replace(result, peers=peers)
    yield replace(result, what=f"{what}_{_LOOP}", ours=loop, peers=peers)


class NodeSet(LearnerSet):
    """The processes of one method, one per node; all methods are started together."""

    def close(self) -> None:
        """Let the processes leave."""
        self.ask("leave", None)


@contextlib.contextmanager
def _rates(
    cluster: Any, what: str, ways: Sequence[str], load: Load
) -> Iterator[dict[str, Callable[[], float]]]:
    """Start the processes of these methods on both nodes; at the end check their weights."""
    with contextlib.ExitStack() as stack:
        folder = cluster.home / "-".join((what, *ways))
        folder.mkdir()
        folder.chmod(0o777)
        listeners = {way: stack.enter_context(_listen(folder / way)) for way in ways}
        started = stack.enter_context(_start(cluster, folder, ways))
        sets = {}
        for way, listener in listeners.items():
            streams: list[TextIOWrapper] = []
            for number in range(_NODES):
                streams.append(stack.enter_context(accept(listener, started)))
                streams[-1].write(f"{number} {_NODES}\n")
                streams[-1].flush()
            sets[way] = NodeSet(way, folder, started, streams)
        rates = {way: _rate(node_set, "update", _UPDATES[load]) for way, node_set in sets.items()}
        if "ours" in sets:
            rates[_LOOP] = _rate(sets["ours"], _LOOP, _LOOP_UPDATES[load])
        yield rates
        for node_set in sets.values():
            node_set.ask("check", None)
            node_set.close()
        if (code := started.wait(_END_LIMIT_S)) != 0:
            raise started.failed(f"exit code {code}")


def _rate(node_set: NodeSet, order: str, updates: int) -> Callable[[], float]:
    return lambda: _NODES * updates / node_set.time_s(order, updates)


@contextlib.contextmanager
def _listen(path: Path) -> Iterator[socket.socket]:
    """Listen in a shared folder, where processes in other network namespaces can connect."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen(_NODES)
        yield listener


@contextlib.contextmanager
def _start(cluster: Any, folder: Path, ways: Sequence[str]) -> Iterator[Started]:
    """Have an ordinary user's srun start a process of each method on each node."""
    home = f"$HOME/{folder.name}"
    settings = {**ONE_THREAD, "PYTHONPATH": str(cluster.folder / "benchmark")}
    program = f"{cluster.node_python} -m benchmarks.psrv_nodes_learner"
    each = "; ".join(f"{program} {way} {home}/{way} &" for way in ways)
    script = "\n".join([
        *(f"export {name}={shlex.quote(value)}" for name, value in settings.items()),
        f"exec srun -N {_NODES} --ntasks-per-node=1 --mem=0 --mpi=none sh -c "
        f"{shlex.quote(each.replace('&;', '&') + ' wait')}",
    ])  # fmt: skip
    argv = ["ssh", "-F", str(cluster.ssh_config), cluster.host, "exec /bin/sh -s"]
    output = folder / "output"
    with output.open("wb") as stream:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=stream, stderr=stream)
        assert process.stdin is not None
        process.stdin.write(script.encode())
        process.stdin.close()
        try:
            yield Started(argv, process, output)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(measure)
