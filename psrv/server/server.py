"""The server of one node: owns the node's shards, and stands between them and other nodes' servers.

On a training of one node it opens no port. It comes and goes with the attempt: killed, it is
started again and takes over what lies in shared memory; ended, it leaves the removal of that to its
program.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from dlctl.contract import (
    ContractError,
    Homes,
    Parameters,
    ServerPlace,
    homes_file,
    parameters_file,
    read_record,
    server_dir,
    server_file,
    server_secret,
    to_json,
    write_whole,
)
from psrv.errors import ServerError
from psrv.push.snapshots import wanted_request
from psrv.server.link import stripes_for
from psrv.server.shard_files import OwnShards
from psrv.server.shards import NodeShards
from psrv.shard.private_folder import REMOVED_BY, tell_removed
from psrv.solvers.solver import RoundSolver, Solver
from psrv.transport.base import Connection, Greeting, Purpose, Transport, UnknownPlaceError
from psrv.transport.reachability import Reach
from psrv.transport.tcp import TcpTransport

_LOOK_EVERY_S = 0.05
_READ_EVERY_S = 0.3
"""Files of the job directory are read so often: other nodes write them."""
_SNAPSHOTS_AGAIN_S = 10.0
"""After so long those are tried again that could not all be written."""
R = TypeVar("R")


@dataclass(frozen=True)
class Settings:
    """What a node's server has to know.

    See dlctl.contract.ParameterServer for what is not said here.
    """

    attempt: int
    node: int
    learners_per_node: list[int]
    solver: Solver | RoundSolver
    host: str
    """This node's address on the job's network."""
    timeout_s: float = 120.0
    snapshot_every_s: float = 60.0
    gated: bool = False
    """Whether learners wait for one another's clocks."""
    transport: Transport | None = None
    """How to reach the other nodes, if there are any; None: by TCP."""
    solver_line: str = ""
    """What must be the same of the solver on all servers."""
    cpus: int = 1
    """That the job has on this node: the same each time that its server is started."""
    takes_over: bool = False
    """Whether learners of this node work in what a server before this one has made."""
    memory_left: Callable[[], int | None] = lambda: None
    """Return how many bytes this process may still take; None: nobody limits it."""


class NodeServer:
    """One node's server; `run` is its whole life.

    Args:
        job_dir: Of the training.
        folder: For its shards, in shared memory.
        settings: See there.
        log: Gets a line for each thing that is new; never a secret.
    """

    def __init__(
        self, job_dir: Path, folder: Path, settings: Settings, log: Callable[[str], None]
    ) -> None:
        self._job_dir = job_dir
        self._folder = folder
        self._settings = settings
        self._log = log
        self._homes = self._read(Homes, homes_file(settings.attempt))
        self._failures: list[BaseException] = []
        self._parameters: Parameters | None = None
        self._digest = 0
        self._files: OwnShards | None = None
        self._shards: NodeShards | None = None
        self._transport: Transport | None = None
        self._reach = Reach(settings.timeout_s)
        self._after_another = any(folder.glob("shard-*"))
        """Whether a server before this one was killed, who may have reached all nodes."""
        self._snapshots: threading.Thread | None = None
        self._snapshots_due = time.monotonic() + settings.snapshot_every_s
        self._tried = 0
        """The newest request that snapshots were begun for, with the homes of now."""
        self._said = ""

    def run(self, stopped: Callable[[], bool], beat: Callable[[str], None]) -> None:
        """Serve until stopped, or until this node is given up.

        Args:
            stopped: Asked often.
            beat: Called often, with what this server is doing.

        Raises:
            ServerError: it can't go on.
        """
        if self.lost:
            self._log("this node was given up: its server ends")
            return
        try:
            self._live(stopped, beat)
        finally:
            self._close()
        # Not after an error: MPI's end waits for all servers, and only the caller knows of it.
        if self._transport is not None:
            self._transport.close()

    @property
    def lost(self) -> bool:
        """Whether this node was given up."""
        return self._settings.node in self._homes.lost_nodes

    def _live(self, stopped: Callable[[], bool], beat: Callable[[str], None]) -> None:
        self._open_port()
        self._parameters = self._wait_for_parameters(stopped, beat)
        if self._parameters is not None:
            self._digest = digest(self._parameters, self._settings.solver_line)
            self._make_shards()
            self._serve(stopped, beat)

    def has_learners(self) -> bool:
        """Return whether a learner of this node takes part, as far as is known."""
        return self._shards is not None and self._shards.has_learners()

    def _open_port(self) -> None:
        """Say where this server is; a training of one node needs no port."""
        settings = self._settings
        port = 0
        if len(settings.learners_per_node) > 1:
            self._transport = settings.transport or self._tcp()
            port = self._transport.open(self._refuse, self._welcome)
        place = ServerPlace(
            node=settings.node,
            host=socket.gethostname(),
            address=settings.host,
            port=port,
            pid=os.getpid(),
        )
        path = self._job_dir / server_file(settings.attempt, settings.node)
        write_whole(path, to_json(place))

    def _tcp(self) -> TcpTransport:
        path = self._job_dir / server_secret(self._settings.attempt)
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise ServerError(f"{path} can't be read: {error.strerror}") from error
        if not secret:  # anybody would know it
            raise ServerError(f"{path} is empty: the disk was full when it was written")
        return TcpTransport(self._settings.host, secret, self._find, self._log)

    def _wait_for_parameters(
        self, stopped: Callable[[], bool], beat: Callable[[str], None]
    ) -> Parameters | None:
        """Return what learner 0 says that all shards hold; None: stopped before.

        However long its `build` takes: who started this server ends it if learner 0 is given up.
        """
        path = self._job_dir / parameters_file(self._settings.attempt)
        timeout_s, readable_at = self._settings.timeout_s, time.monotonic()
        while not stopped():
            beat("waits for learner 0 to build the model")
            _refresh(path.parent)
            try:
                if (found := read_record(Parameters, path)) is not None:
                    return found
                readable_at = time.monotonic()
            except (OSError, ContractError) as error:  # a file system that is away for a moment
                if time.monotonic() > readable_at + timeout_s:
                    raise ServerError(
                        f"{path} can't be read for {timeout_s:g} s: {error}",
                        hint="see to the file system of the job directory, and resume",
                    ) from error
            time.sleep(_LOOK_EVERY_S)
        return None

    def _make_shards(self) -> None:
        settings, parameters = self._settings, self._parameters
        assert parameters is not None
        self._files = files = OwnShards(
            self._job_dir,
            self._folder,
            settings.attempt,
            parameters,
            len(self._homes.shard_nodes),
            settings.solver,
            sum(settings.learners_per_node),
            settings.learners_per_node[settings.node],
            takes_over=settings.takes_over,
            memory_left_bytes=settings.memory_left(),
        )
        self._shards = NodeShards(
            files,
            self._homes,
            settings.node,
            settings.learners_per_node,
            settings.solver,
            gated=settings.gated,
            stripes=stripes_for(settings.cpus),
            dial=self._dial,
            log=self._log,
            fail=self._failures.append,
        )
        if self._transport is not None:
            self._transport.start()

    def _serve(self, stopped: Callable[[], bool], beat: Callable[[str], None]) -> None:
        assert self._shards is not None
        read_due = 0.0
        while not stopped():
            beat("serves")
            if self._failures:
                raise self._failures[0]
            self._shards.look_around()
            if time.monotonic() > read_due:
                read_due = time.monotonic() + _READ_EVERY_S
                _refresh(self._job_dir / server_dir(self._settings.attempt))
                self._follow()
                self._watch_files()
                if self.lost:
                    self._log("this node was given up: its server ends")
                    return
                self._take_snapshots(stopped)
            time.sleep(_LOOK_EVERY_S)

    def _watch_files(self) -> None:
        """Say once that somebody has removed the files: what maps them goes on, nobody can join."""
        if self._files is not None and not self._files.are_there():
            self._files = None
            tell_removed(self._folder)
            self._log(
                f"somebody has removed {self._folder}: the training goes on until a learner or "
                f"the server of this node dies ({REMOVED_BY})"
            )

    def _follow(self) -> None:
        """See whether homes have moved, or nodes were given up."""
        try:
            homes = self._read(Homes, homes_file(self._settings.attempt))
        except ServerError as error:  # a file system that is away for a moment
            if error.message != self._said:
                self._said = error.message
                self._log(error.message)
            return
        self._said = ""
        if homes.generation > self._homes.generation and not homes.ended:
            if lost := set(homes.lost_nodes) - set(self._homes.lost_nodes):
                self._log(f"node {', '.join(map(str, sorted(lost)))} was given up")
            moved = homes.shard_nodes != self._homes.shard_nodes
            self._homes = homes
            if not self.lost and self._shards is not None:
                self._shards.follow(homes)
            if moved:  # who asked for snapshots still waits for those of the lost homes
                self._tried = 0

    def _take_snapshots(self, stopped: Callable[[], bool]) -> None:
        """Write snapshots, in a thread of their own, when they are due or wanted."""
        if self._snapshots is not None and self._snapshots.is_alive():
            return
        wanted = wanted_request(self._job_dir, self._settings.attempt)
        if wanted == self._tried and time.monotonic() < self._snapshots_due:
            return
        self._tried = wanted
        self._snapshots_due = time.monotonic() + self._settings.snapshot_every_s
        self._snapshots = threading.Thread(
            target=self._write_snapshots, args=(wanted, stopped), name="snapshots"
        )
        self._snapshots.start()

    def _write_snapshots(self, wanted: int, stopped: Callable[[], bool]) -> None:
        assert self._shards is not None
        try:
            if not self._shards.write_snapshots(wanted, stopped, self._is_home):
                again = time.monotonic() + _SNAPSHOTS_AGAIN_S
                self._snapshots_due = min(self._snapshots_due, again)
        except BaseException as error:
            self._failures.append(error)

    def _is_home(self, shard: int) -> bool:
        """Return whether this node is the home of a shard still, as far as it can be known."""
        _refresh(self._job_dir / server_dir(self._settings.attempt))
        try:
            homes = self._read(Homes, homes_file(self._settings.attempt))
        except ServerError:
            return False
        return homes.shard_nodes[shard] == self._settings.node

    def _refuse(self, greeting: Greeting) -> str:
        settings = self._settings
        if greeting.attempt != settings.attempt:
            return f"it is of attempt {greeting.attempt}, and this is attempt {settings.attempt}"
        if greeting.node in self._homes.lost_nodes:
            return f"node {greeting.node} was given up"
        if greeting.to_node != settings.node or greeting.node >= len(settings.learners_per_node):
            return f"node {greeting.node} looks for node {greeting.to_node}: this is another one"
        if greeting.digest != self._digest:
            return f"node {greeting.node} has another model, or another solver"
        return ""

    def _welcome(self, greeting: Greeting, connection: Connection) -> None:
        assert self._shards is not None
        try:
            self._shards.serving.serve(greeting, connection)
        except BaseException as error:
            self._failures.append(error)

    def _dial(self, node: int, purpose: Purpose, stripe: int) -> Connection:
        settings = self._settings
        assert self._transport is not None
        greeting = Greeting(settings.attempt, settings.node, node, purpose, self._digest, stripe)
        dial = partial(self._transport.dial, greeting)
        may_be_gone = self._after_another or bool(self._homes.lost_nodes)
        return self._reach.dial(node, dial, may_be_gone=may_be_gone)

    def _find(self, node: int) -> tuple[str, int]:
        """Return where another node's server is now."""
        path = self._job_dir / server_file(self._settings.attempt, node)
        _refresh(path.parent)
        try:
            place = read_record(ServerPlace, path)
        except (OSError, ContractError) as error:
            raise UnknownPlaceError(f"{path} can't be read: {error}") from error
        if place is None:
            raise UnknownPlaceError(f"the server of node {node} has not said where it is")
        return place.address, place.port

    def _close(self) -> None:
        if self._snapshots is not None:
            self._snapshots.join()
        if self._shards is not None:
            self._shards.close()

    def _read(self, kind: type[R], name: str) -> R:
        path = self._job_dir / name
        try:
            found = read_record(kind, path)
        except (OSError, ContractError) as error:
            raise ServerError(f"{path} can't be read: {error}") from error
        if found is None:
            raise ServerError(f"there is no {path}", hint="the supervisor writes it first")
        return found


def digest(parameters: Parameters, solver_line: str) -> int:
    """Return a number that tells other parameters apart, and servers with another solver."""
    text = (
        f"{parameters.count} {parameters.dtype} {parameters.rows} {parameters.model} {solver_line}"
    )
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _refresh(folder: Path) -> None:
    """Make a network file system look again: it may remember for long that a file is absent."""
    with suppress(OSError), os.scandir(folder):
        pass
