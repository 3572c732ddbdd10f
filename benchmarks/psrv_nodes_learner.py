"""One node's process of a method to serve parameters: `… WAY SOCKET` (see psrv_nodes.py)."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.psrv_learner import ELEMENTS, GRADIENT, LR, Way
from benchmarks.turns import Place
from psrv.server.link import AHEAD
from psrv.shard.format import BLOCK_BYTES
from psrv.shard.shard import GROUP
from psrv.transport.sockets import connect, listen

NODE = int(os.environ.get("SLURM_NODEID", "0"))
OTHER = 1 - NODE
_LOOK_S, _PATIENCE_S = 1e-3, 60.0
_ATTEMPT = 1
_BLOCK_ELEMENTS = BLOCK_BYTES // 4


def _wait_for(path: Path) -> Path:
    """Wait until another process has written a file."""
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} is not there")
        time.sleep(0.05)
    return path


def _tell(path: Path, words: Any) -> None:
    """Write such a file."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(words))
    new.rename(path)


class Ours(Way):
    """psrv, with a server of its own on each node."""

    def join(self) -> None:
        """Start this node's server, act as learner 0 on node 0, and join."""
        from dlctl.contract import Parameters
        from psrv.client import join
        from psrv.push.push import replicas
        from psrv.push.waiting import WaitPolicy
        from psrv.solvers.partition import ShardSet
        from psrv.solvers.solver import Downpour

        self._job_dir = self.place.folder / "job"
        self._memory = Path(f"/dev/shm/dlctl-bench-{os.getpid()}")
        self._memory.mkdir()
        parameters = Parameters(ELEMENTS, "float32", 1, "resnet50")
        if NODE == 0:
            self._prepare(parameters)
        _wait_for(self.place.folder / "prepared")
        argv = [sys.executable, "-m", "benchmarks.psrv_nodes_learner", "server"]
        self._server = subprocess.Popen([*argv, str(self._job_dir), str(self._memory)])
        shards = ShardSet(self._memory, parameters, 2, _ATTEMPT)
        self._client = join(shards, Downpour(), WaitPolicy(_PATIENCE_S), rank=NODE, learners=2)
        self._replicas = [shard.all_added() for shard in replicas(self._client._shards)]
        self._client.refresh(_PATIENCE_S)  # the servers are connected

    def _prepare(self, parameters: Any) -> None:
        """Write what the supervisor and learner 0 would write."""
        from dlctl import contract
        from psrv.push.snapshots import write_snapshot
        from psrv.solvers.partition import ranges_of

        secret = self._job_dir / contract.server_secret(_ATTEMPT)
        secret.parent.mkdir(parents=True)
        secret.write_text(secrets.token_hex(32))
        records = {
            contract.homes_file(_ATTEMPT): contract.Homes(1, [0, 1]),
            contract.parameters_file(_ATTEMPT): parameters,
        }
        for shard, (start, stop) in enumerate(ranges_of(parameters, 2)):
            path = self._job_dir / contract.snapshot_file(_ATTEMPT, shard)
            write_snapshot(path, [(0, [torch.zeros(stop - start)])], stop - start)
        for name, record in records.items():
            contract.write_whole(self._job_dir / name, contract.to_json(record))
        (self.place.folder / "prepared").touch()

    def update(self) -> None:
        """Push; pull once the primary of the other half has answered."""
        self._client.push(self.gradient, LR)
        self._wait_for_home()
        self._client.pull(self.weights)

    def loop(self, updates: int) -> None:
        """Update like the built-in loop: wait for nothing but the last update."""
        self.updates += updates
        for _ in range(updates):
            self._client.wait_for_others()
            self._client.push_pull(self.gradient, self.weights, LR)
        self._wait_for_home()

    def _wait_for_home(self) -> None:
        while any(added.any() for added in self._replicas):
            time.sleep(_LOOK_S)

    def pull(self) -> None:
        """Pull what all have pushed."""
        self._client.refresh(_PATIENCE_S)
        self._client.pull(self.weights)

    def leave(self) -> None:
        """End this node's server once the other node has left, too."""
        self._client.leave()
        _tell(self.place.folder / f"left-{NODE}", True)
        _wait_for(self.place.folder / f"left-{OTHER}")
        self._server.terminate()
        self._server.wait()
        shutil.rmtree(self._memory)


def serve(job_dir: Path, memory: Path) -> None:
    """Run this node's server until SIGTERM."""
    from psrv.server.server import NodeServer, Settings
    from psrv.solvers.solver import Downpour

    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    settings = Settings(_ATTEMPT, NODE, [1, 1], Downpour(), socket.gethostname(), 60, 10**6)
    server = NodeServer(job_dir, memory, settings, lambda line: print(line, flush=True))
    server.run(lambda: bool(ended), lambda _: None)


class Link(Way):
    """Bare sockets with our options: the same bytes there and back, nothing computed."""

    def join(self) -> None:
        """Open a connection, as ours does, and send back what comes over the other node's."""
        size, half = GROUP * BLOCK_BYTES, 4 * (ELEMENTS // 2)
        self._frames = [slice(at, min(at + size, half)) for at in range(0, half, size)]
        """The byte ranges of the other node's half that travel together."""
        name, listener = type(self).__name__, listen(socket.gethostname())
        _tell(self.place.folder / f"{name}-{NODE}", listener.getsockname())
        threading.Thread(target=self._send_back, args=(listener,), daemon=True).start()
        other = _wait_for(self.place.folder / f"{name}-{OTHER}")
        host, port = json.loads(other.read_text())[:2]
        self._end = connect(host, port, _PATIENCE_S)
        self._threads = ThreadPoolExecutor(2)

    def _send_back(self, listener: socket.socket) -> None:
        end, _ = listener.accept()
        room = memoryview(bytearray(GROUP * BLOCK_BYTES))
        while True:
            for frame in self._frames:
                if not _receive(end, part := room[: frame.stop - frame.start]):
                    return
                end.sendall(self.answer(frame, part))

    def answer(self, frame: slice, received: memoryview) -> memoryview:
        """Return what to send back."""
        del frame
        return received

    def update(self) -> None:
        """Send and receive as much as ours."""
        gradient, weights = (
            tensor.view(2, -1)[OTHER].numpy().data.cast("B")
            for tensor in (self.gradient, self.weights)
        )
        room = threading.Semaphore(AHEAD // GROUP)
        sent, taken = ([whole[frame] for frame in self._frames] for whole in (gradient, weights))
        tasks = [
            self._threads.submit(self._send, sent, room),
            self._threads.submit(self._take, taken, room),
        ]
        self.work()
        for task in tasks:
            task.result()

    def work(self) -> None:
        """Do nothing meanwhile; a subclass computes."""

    def _send(self, frames: Sequence[memoryview], room: threading.Semaphore) -> None:
        for frame in frames:
            room.acquire()
            self._end.sendall(frame)

    def _take(self, frames: Sequence[memoryview], room: threading.Semaphore) -> None:
        for frame in frames:
            if not _receive(self._end, frame):
                raise ConnectionError("the other node has gone")
            room.release()

    def check(self, _: Any) -> None:
        """Do nothing: there are no weights."""

    def leave(self) -> None:
        """Close the connection."""
        self._end.close()


def _receive(end: socket.socket, room: memoryview) -> bool:
    """Fill a buffer; return False at the end of the connection."""
    done = 0
    while done < len(room):
        try:
            count = end.recv_into(room[done:], 0, socket.MSG_WAITALL)
        except ConnectionError:
            return False
        if count == 0:
            return False
        done += count
    return True


class Bare(Link):
    """The same sockets and the same arithmetic on private memory: the least any program must do.

    One step for each update on each half's primary, in C, as in the floor of `psrv_2`. There is no
    total, no replica and no shared memory, and nothing from which to resume after a disconnection.
    """

    def join(self) -> None:
        """Compile the C functions, and connect."""
        from psrv.solvers import native
        from psrv.solvers.solver import Downpour

        memory = Path(f"/dev/shm/dlctl-bench-{os.getpid()}")
        memory.mkdir(mode=0o700)
        native.build(memory, Downpour())
        library = native.load(memory / native.LIBRARY)
        shutil.rmtree(memory)
        if library is None:
            raise RuntimeError("no compiler: there is no bare program")
        self._step = library.dlctl_step
        self._home = self.zeros().view(2, -1)[NODE]
        self._scratch = _Scratch()
        self._locks = [threading.Lock() for _ in self._home.split(_BLOCK_ELEMENTS)]
        super().join()

    def answer(self, frame: slice, received: memoryview) -> memoryview:
        """Take the step, and return the new weights."""
        weights = self._scratch.weights
        gradient = torch.frombuffer(received, dtype=torch.float32)
        self._take_step(frame, gradient.data_ptr(), weights.data_ptr(), past_caches=False)
        return weights.numpy().data.cast("B")[: len(received)]

    def work(self) -> None:
        """Step on the half of which this node is the primary."""
        gradient, weights = (x.view(2, -1)[NODE].data_ptr() for x in (self.gradient, self.weights))
        self._take_step(slice(0, 4 * len(self._home)), gradient, weights, past_caches=True)

    def _take_step(self, frame: slice, gradient: int, into: int, past_caches: bool) -> None:
        aside, kept = self._scratch.aside.data_ptr(), self._scratch.kept.data_ptr()
        home = self._home.data_ptr()
        for start in range(frame.start, frame.stop, 4 * _BLOCK_ELEMENTS):
            count, at = min(_BLOCK_ELEMENTS, (frame.stop - start) // 4), start - frame.start
            with self._locks[start // (4 * _BLOCK_ELEMENTS)]:
                self._step(
                    home + start, 0, 0, gradient + at, into + at, aside, 0, kept, count, 1, LR,
                    0.0, past_caches,
                )  # fmt: skip

    def check(self, _: Any) -> None:
        """Check the half of which this node is the primary: both learners have updated it."""
        if not self._home.eq(expected := -LR * GRADIENT * self.updates * 2).all():
            raise RuntimeError(f"weights from {self._home.min()} to {self._home.max()}, "
                               f"not {expected}")  # fmt: skip


class _Scratch(threading.local):
    """Each thread's own buffers."""

    def __init__(self) -> None:
        self.aside = torch.empty(_BLOCK_ELEMENTS)
        self.weights = torch.empty(GROUP * _BLOCK_ELEMENTS)
        self.kept = torch.zeros(1, dtype=torch.int64)


_half = torch.zeros(0)
_half_lock = threading.Lock()


def _step(gradient: torch.Tensor) -> torch.Tensor:
    """Take a step on this node's half (also called over the network)."""
    with _half_lock:
        return _half.add_(gradient, alpha=-LR).clone()


class TorchRpc(Way):
    """torch.distributed.rpc: a function on the other node."""

    def join(self) -> None:
        """Start RPC; node 0 picks a port."""
        import torch.distributed.rpc as rpc

        global _half
        cut = ELEMENTS // 2
        self._parts = [slice(0, cut), slice(cut, ELEMENTS)]
        _half = torch.zeros(len(range(*self._parts[NODE].indices(ELEMENTS))))
        meeting = self.place.folder / "rpc-address"
        if NODE == 0:
            with socket.create_server((socket.gethostname(), 0)) as probe:
                port = probe.getsockname()[1]
            _tell(meeting, [socket.gethostname(), port])
        host, port = json.loads(_wait_for(meeting).read_text())
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://{host}:{port}", num_worker_threads=1
        )
        self._rpc = rpc
        rpc.init_rpc(f"node{NODE}", rank=NODE, world_size=2, rpc_backend_options=options)

    def update(self) -> None:
        """Step on both halves."""
        ours, theirs = self._parts[NODE], self._parts[OTHER]
        answer = self._rpc.rpc_async(f"node{OTHER}", _step, args=(self.gradient[theirs],))
        self.weights[ours] = _step(self.gradient[ours])
        self.weights[theirs] = answer.wait()

    def pull(self) -> None:
        """Pull both halves, unchanged."""
        nothing = torch.zeros(1)
        self.weights[self._parts[NODE]] = _step(nothing)
        other = self._rpc.rpc_sync(f"node{OTHER}", _step, args=(nothing,))
        self.weights[self._parts[OTHER]] = other

    def leave(self) -> None:
        """Wait for the other process, and end."""
        self._rpc.shutdown()


WAYS: dict[str, Callable[[Place], Way]] = {
    "ours": Ours, "link": Link, "bare": Bare, "torch_rpc": TorchRpc,
}  # fmt: skip


def main() -> None:
    """Update with the method that the arguments name, on each order."""
    name, path, *more = sys.argv[1:]
    torch.set_num_threads(1)
    if name == "server":
        serve(Path(path), Path(more[0]))
        return
    way = WAYS[name](place := Place(path))
    orders = {"update": way.run, "check": way.check}
    if isinstance(way, Ours):
        orders["loop"] = way.loop
    place.obey(orders)
    way.leave()


if __name__ == "__main__":
    main()
