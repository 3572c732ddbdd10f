"""The server of one node: owns the node's shards and connects them to the other nodes' servers.

On a training of one node it opens no port. It lives as long as the attempt. If it is killed, its
successor takes over what lies in shared memory; when it ends, the calling program removes that
memory.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable
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
    refresh,
    server_dir,
    server_file,
    server_secret,
    to_json,
    write_whole,
)
from psrv.errors import ServerError
from psrv.push.snapshots import wanted_request
from psrv.server.shard_files import Settings as Settings
from psrv.server.shard_files import ShardFiles
from psrv.server.shards import NodeShards
from psrv.shard.private_folder import REMOVED_BY, mark_removed
from psrv.solvers.partition import ShardSet
from psrv.transport.base import Greeting, Purpose, UnknownPlaceError
from psrv.transport.reachability import Reachability
from psrv.transport.tcp import Connection, TcpListener, dial

_LOOK_EVERY_S = 0.05
_READ_EVERY_S = 0.3
"""How often files of the job directory are read; other nodes write them."""
_SNAPSHOTS_AGAIN_S = 10.0
"""How soon failed snapshots are tried again."""
R = TypeVar("R")


class NodeServer:
    """One node's server; `run` is its whole life.

    Args:
        job_dir: The training's.
        folder: Where this node's shards are, in shared memory.
        settings: See psrv.server.shard_files.
        log: Gets a line for each event; never a secret.
    """

    def __init__(
        self, job_dir: Path, folder: Path, settings: Settings, log: Callable[[str], None]
    ) -> None:
        self._job_dir = job_dir
        self._folder = folder
        self._settings = settings
        self._log = log
        self._placement = self._read(Homes, homes_file(settings.attempt))
        self._failures: list[BaseException] = []
        self._parameters: Parameters | None = None
        self._digest = 0
        self._files: ShardFiles | None = None
        self._shards: NodeShards | None = None
        self._listener: TcpListener | None = None
        self._secret = b""
        self._reachability = Reachability(settings.timeout_s)
        self._replaces_server = any(folder.glob("shard-*"))
        """Whether an earlier server of this node was killed; it may have reached all nodes."""
        self._snapshots: threading.Thread | None = None
        self._snapshots_due = time.monotonic() + settings.snapshot_every_s
        self._request_tried = 0
        """The newest snapshot request that was tried under the current placement."""
        self._read_error = ""

    def run(self, stopped: Callable[[], bool], beat: Callable[[str], None]) -> None:
        """Serve until stopped, or until this node is given up.

        Args:
            stopped: Returns whether to stop; called often.
            beat: Called often, with what this server is doing.

        Raises:
            ServerError: This server can't continue.
        """
        if self.lost:
            self._log("this node was given up: its server ends")
            return
        try:
            self._live(stopped, beat)
        finally:
            self._close()
            if self._listener is not None:
                self._listener.close()

    @property
    def lost(self) -> bool:
        """Return whether this node was given up."""
        return self._settings.node in self._placement.lost_nodes

    def _live(self, stopped: Callable[[], bool], beat: Callable[[str], None]) -> None:
        self._open_port()
        self._parameters = self._wait_for_parameters(stopped, beat)
        if self._parameters is not None:
            self._digest = digest(self._parameters, self._settings.solver_line)
            self._make_shards()
            self._serve(stopped, beat)

    def has_learners(self) -> bool:
        """Return whether a learner of this node takes part, as far as this server knows."""
        return self._shards is not None and self._shards.has_learners()

    def _open_port(self) -> None:
        """Publish this server's address; a training of one node needs no port."""
        settings = self._settings
        port = 0
        if len(settings.learners_per_node) > 1:
            self._secret = self._read_secret()
            self._listener = TcpListener(
                settings.host, self._secret, self._refuse, self._welcome, self._log
            )
            port = self._listener.port
        place = ServerPlace(
            node=settings.node,
            host=socket.gethostname(),
            address=settings.host,
            port=port,
            pid=os.getpid(),
        )
        path = self._job_dir / server_file(settings.attempt, settings.node)
        write_whole(path, to_json(place))

    def _read_secret(self) -> bytes:
        path = self._job_dir / server_secret(self._settings.attempt)
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise ServerError(f"{path} can't be read: {error.strerror}") from error
        if not secret:  # anybody would know it
            raise ServerError(f"{path} is empty: the disk was full when it was written")
        return secret

    def _wait_for_parameters(
        self, stopped: Callable[[], bool], beat: Callable[[str], None]
    ) -> Parameters | None:
        """Return what learner 0 says the shards hold; None if stopped before it says so.

        There is no time limit on learner 0's `build`: the supervisor ends this server if learner 0
        is given up.
        """
        path = self._job_dir / parameters_file(self._settings.attempt)
        timeout_s, readable_at = self._settings.timeout_s, time.monotonic()
        while not stopped():
            beat("waits for learner 0 to build the model")
            refresh(path.parent)
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
        shards = ShardSet(
            self._folder,
            parameters,
            len(self._placement.shard_nodes),
            settings.attempt,
            self._job_dir,
        )
        self._files = files = ShardFiles(shards, settings)
        self._shards = NodeShards(
            files,
            self._placement,
            settings,
            dial=self._dial,
            log=self._log,
            fail=self._failures.append,
        )
        if self._listener is not None:
            self._listener.start()

    def _serve(self, stopped: Callable[[], bool], beat: Callable[[str], None]) -> None:
        assert self._shards is not None
        read_due = 0.0
        while not stopped():
            beat("serves")
            if self._failures:
                raise self._failures[0]
            self._shards.poll()
            if time.monotonic() > read_due:
                read_due = time.monotonic() + _READ_EVERY_S
                refresh(self._job_dir / server_dir(self._settings.attempt))
                self._read_placement()
                self._watch_files()
                if self.lost:
                    self._log("this node was given up: its server ends")
                    return
                self._take_snapshots(stopped)
            time.sleep(_LOOK_EVERY_S)

    def _watch_files(self) -> None:
        """Warn once if somebody has removed the shards' files.

        Processes that have mapped them continue; new ones can't join.
        """
        if self._files is not None and not self._files.exist():
            self._files = None
            mark_removed(self._folder)
            self._log(
                f"somebody has removed {self._folder}: the training continues until a learner or "
                f"the server of this node dies ({REMOVED_BY})"
            )

    def _read_placement(self) -> None:
        """Read the shard placement; apply it if shards have moved or nodes were given up."""
        try:
            placement = self._read(Homes, homes_file(self._settings.attempt))
        except ServerError as error:  # a file system that is away for a moment
            if error.message != self._read_error:
                self._read_error = error.message
                self._log(error.message)
            return
        self._read_error = ""
        if placement.generation > self._placement.generation and not placement.ended:
            if lost := set(placement.lost_nodes) - set(self._placement.lost_nodes):
                self._log(f"node {', '.join(map(str, sorted(lost)))} was given up")
            moved = placement.shard_nodes != self._placement.shard_nodes
            self._placement = placement
            if not self.lost and self._shards is not None:
                self._shards.apply_placement(placement)
            if moved:  # learner 0 may still wait for snapshots that the lost primaries owed
                self._request_tried = 0

    def _take_snapshots(self, stopped: Callable[[], bool]) -> None:
        """Write snapshots in a thread, when they are due or requested."""
        if self._snapshots is not None and self._snapshots.is_alive():
            return
        wanted = wanted_request(self._job_dir, self._settings.attempt)
        if wanted == self._request_tried and time.monotonic() < self._snapshots_due:
            return
        self._request_tried = wanted
        self._snapshots_due = time.monotonic() + self._settings.snapshot_every_s
        self._snapshots = threading.Thread(
            target=self._write_snapshots, args=(wanted, stopped), name="snapshots"
        )
        self._snapshots.start()

    def _write_snapshots(self, wanted: int, stopped: Callable[[], bool]) -> None:
        assert self._shards is not None
        try:
            if not self._shards.write_snapshots(wanted, stopped, self._is_primary):
                again = time.monotonic() + _SNAPSHOTS_AGAIN_S
                self._snapshots_due = min(self._snapshots_due, again)
        except BaseException as error:
            self._failures.append(error)

    def _is_primary(self, shard: int) -> bool:
        """Return whether this node is still a shard's primary, as the newest placement says."""
        refresh(self._job_dir / server_dir(self._settings.attempt))
        try:
            placement = self._read(Homes, homes_file(self._settings.attempt))
        except ServerError:
            return False
        return placement.shard_nodes[shard] == self._settings.node

    def _refuse(self, greeting: Greeting) -> str:
        settings = self._settings
        if greeting.attempt != settings.attempt:
            return (
                f"it belongs to attempt {greeting.attempt}, and this is attempt {settings.attempt}"
            )
        if greeting.node in self._placement.lost_nodes:
            return f"node {greeting.node} was given up"
        if greeting.to_node != settings.node or greeting.node >= len(settings.learners_per_node):
            return f"node {greeting.node} wants node {greeting.to_node}: this is another one"
        if greeting.digest != self._digest:
            return f"node {greeting.node} has another model, or another solver"
        return ""

    def _welcome(self, greeting: Greeting, connection: Connection) -> None:
        assert self._shards is not None
        try:
            self._shards.connections.serve(greeting, connection)
        except BaseException as error:
            self._failures.append(error)

    def _dial(self, node: int, purpose: Purpose) -> Connection:
        settings = self._settings
        greeting = Greeting(settings.attempt, settings.node, node, purpose, self._digest)
        may_be_gone = self._replaces_server or bool(self._placement.lost_nodes)
        return self._reachability.dial(
            node, lambda: dial(*self._find(node), greeting, self._secret), may_be_gone=may_be_gone
        )

    def _find(self, node: int) -> tuple[str, int]:
        """Return the address and port of another node's server."""
        path = self._job_dir / server_file(self._settings.attempt, node)
        refresh(path.parent)
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
    """Return a digest of the parameters and the solver, to tell different ones apart."""
    text = (
        f"{parameters.count} {parameters.dtype} {parameters.rows} {parameters.model} {solver_line}"
    )
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
