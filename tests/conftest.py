"""Fixtures for every rung: the real cluster, isolated user folders, sites, the real command."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import cost
import pytest
import tiers
import waiting
from cluster import Cluster, missing_programs, one_at_a_time, wipe_leftovers
from command_server import CommandServer
from hypothesis import Phase, settings
from leftovers import SESSION_VARIABLE, common_files, left_behind
from site_text import CLUSTER_SITE

from dlctl.record import Record, RecordStore

REPOSITORY = Path(__file__).resolve().parent.parent
LONG_TESTS_END = 0.85
"""When the last test on the cluster is given out, as a share of all tests: it must not begin when
no others are left to run beside it."""
IN_CI = os.environ.get("CI") == "true"
T = TypeVar("T")

# How long an example takes says more about the machine's load than about the code.
settings.register_profile("tests", deadline=None)
settings.register_profile("first", deadline=None, max_examples=20)
# For tests/mutants.py, which asks whether a test fails, and not by what example.
settings.register_profile(
    "no-shrinking", settings.get_profile("first"), phases=set(Phase) - {Phase.shrink, Phase.explain}
)
settings.load_profile("first" if os.environ.get(tiers.TIER_VARIABLE) == "first" else "tests")


def pytest_configure(config: pytest.Config) -> None:
    # On a busy machine the threads of torch busy-wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for plugin in (cost, tiers):  # both are imported, too, which pytest_plugins does not like
        config.pluginmanager.register(plugin)


# Waiting -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """`wait_until(condition, timeout_s=120, what="…")`: its limit is for hopeless cases."""
    return waiting.wait_until


@pytest.fixture(scope="session")
def zygote() -> Iterator[Any]:
    """A process that has loaded torch, and forks what needs it: see tests/support/zygote.py."""
    from zygote import Zygote

    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def _light_zygote() -> Iterator[None]:
    """End the process that forks supervisors, if a test has started it."""
    yield
    if "zygote" in sys.modules:
        sys.modules["zygote"].close_light()


# What a session may not leave behind -------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    """Give the session a token that all of its processes inherit, pytest-xdist's workers first."""
    # A shell that starts the tests with `&` has them ignore Ctrl-C, which they send to commands.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _end_well_at(signal.SIGTERM, signal.SIGHUP)
    if not _is_worker():
        token = os.environ[SESSION_VARIABLE] = secrets.token_hex(8)
        session.stash[_BEFORE] = common_files()
        session.stash[_SEGMENTS] = segments = _mpi_segments(token)
        segments.__enter__()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Fail the run if a process, port, job, mount or shared memory of this session is left.

    At the very end, after pytest-xdist's workers.
    """
    yield
    if _is_worker() or _SEGMENTS not in session.stash:
        return
    session.stash[_SEGMENTS].__exit__(None, None, None)
    token, before = os.environ[SESSION_VARIABLE], session.stash[_BEFORE]
    deadline = time.monotonic() + 60
    while (left := left_behind(token, before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    del os.environ[SESSION_VARIABLE]
    if left:
        print("\nthe tests left behind:", *left, sep="\n", file=sys.stderr)
        tiers.note_fault()
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _end_well_at(*numbers: signal.Signals) -> None:
    """Let these signals end the session as Ctrl-C does, once; forks of it end at once."""
    own = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() == own:
            for each in numbers:
                signal.signal(each, signal.SIG_IGN)
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for each in numbers:
        signal.signal(each, end)


_BEFORE = pytest.StashKey[set[str]]()
_SEGMENTS = pytest.StashKey[AbstractContextManager[None]]()


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


@contextmanager
def _mpi_segments(token: str) -> Iterator[None]:
    """Lead the MPI of tests to a folder that goes at the end: ranks that are killed leave theirs.

    What runs under dlctl's own launcher gets a folder from that instead, and is checked for it.
    """
    folder = Path(f"/dev/shm/dlctl-test-{token}")
    variables = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")
    if folder.parent.is_dir():
        folder.mkdir()
        os.environ.update(dict.fromkeys(variables, str(folder)))
    yield
    for name in variables:
        os.environ.pop(name, None)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shm_folder() -> Iterator[Path]:
    """An empty folder in shared memory, where shards and their servers' files belong."""
    folder = Path(tempfile.mkdtemp(prefix="dlctl-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


# The cluster -------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix all folders evenly.

    pytest-xdist gives out one test at a time in this order. Tests on the cluster mostly wait, while
    others compute: side by side they use the cores best.
    """
    folders: dict[Path, list[pytest.Item]] = {}
    for item in items:
        folders.setdefault(item.path.parent, []).append(item)
    place = {
        item: (LONG_TESTS_END if folder.name == "cluster" else 1.0) * number / len(inside)
        for folder, inside in folders.items()
        for number, item in enumerate(inside)
    }
    items.sort(key=place.__getitem__)


def _lacks(reason: str) -> None:
    """Skip, but never in CI: there the cluster must be."""
    if IN_CI:
        pytest.fail(f"CI=true, and {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster_programs() -> None:
    """The programs that a test cluster is made of."""
    if missing := missing_programs():
        _lacks(f"no test cluster without {', '.join(missing)}: run `make cluster-deps`")


@pytest.fixture(scope="session")
def _started_cluster(cluster_programs: None) -> Iterator[Cluster]:
    cluster = Cluster(venv=Path(sys.prefix), hide=REPOSITORY)
    try:
        with one_at_a_time():
            wipe_leftovers()
            cluster.start()
        # torch itself takes seconds; that its folder can be read is enough.
        find = "import h5py, mpi4py, numpy, watchdog, pathlib, importlib.util as u; " + (
            "pathlib.Path(u.find_spec('torch').origin).read_text()"
        )
        check = cluster.ssh(f'{cluster.node_python} -c "{find}"')
        if check.returncode != 0:
            _lacks(
                f"{cluster.user_name} can't use {sys.prefix} ({check.stderr.strip()[-300:]}): "
                "run `rm -r .venv` and `make test`, and see .ci/make-venv"
            )
        yield cluster
    finally:
        cluster.wipe()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Add to a failed test what its cluster was doing at that moment."""
    report: pytest.TestReport = yield
    if call.when == "call" and report.failed:
        arguments = getattr(item, "funcargs", {})
        sites = [arguments.get(name) for name in ("site", "cluster_site")]
        seen = [arguments.get("cluster"), *(getattr(each, "cluster", None) for each in sites)]
        if found := next(filter(None, seen), None):
            report.sections.append(("the test cluster", found.story()))
    return report


@pytest.fixture
def cluster(_started_cluster: Cluster) -> Iterator[Cluster]:
    """The session's one cluster, whole and without jobs; faults of a test end with it."""
    yield _started_cluster
    _started_cluster.heal()


# Object stores -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Swift with its S3 interface, on this machine; started by the first test that asks."""
    from swift_server import running_swift

    with running_swift(tmp_path_factory.mktemp("swift")) as server:
        yield server


@pytest.fixture
def swift_for(site: TestSite, swift: Any) -> Iterator[Any]:
    """Swift, as the nodes of the test's site reach it."""
    from relay import relayed

    if site.cluster is None:
        yield swift
        return
    with relayed(site.cluster, swift.port) as address:
        yield replace(swift, outside_address=address)


# The user's folders ------------------------------------------------------------------------------


@dataclass(frozen=True)
class UserFolders:
    """One test's own home, configuration, state and data folders."""

    home: Path
    config: Path
    state: Path
    data: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment that leads to them, without this session's own settings."""
        dropped = ("SLURM_", "SBATCH_", "DLCTL_", "SSH_", "XDG_", "OMPI_", "PMIX_", "PRTE_")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
        kept.pop("VIRTUAL_ENV", None)
        return kept | {
            SESSION_VARIABLE: os.environ[SESSION_VARIABLE],
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.config),
            "XDG_STATE_HOME": str(self.state),
            "XDG_DATA_HOME": str(self.data),
            "PYTHONPATH": str(REPOSITORY),
            "DLCTL_SSH_CONFIG": "/dev/null",
            "NO_COLOR": "1",
            "COLUMNS": "200",
            "LC_ALL": "C.UTF-8",
        }


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests in this process keep nothing in the cache of the person who runs them."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def xdg(tmp_path: Path) -> UserFolders:
    """Folders that no other test and no real user shares."""
    folders = UserFolders(*(tmp_path / name for name in ("home", "config", "state", "data")))
    for folder in (folders.home, folders.config, folders.state, folders.data):
        folder.mkdir()
    return folders


# Sites -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TestSite:
    """A site that this test's dlctl knows."""

    __test__ = False  # its name begins like a test's

    name: str
    root: Path
    """The site's root folder, readable from here."""
    python: Path
    """The nodes' Python."""
    env: Mapping[str, str] = field(default_factory=dict)
    cluster: Cluster | None = None
    """None for this machine."""

    @property
    def is_cluster(self) -> bool:
        """Whether jobs run under a real Slurm, over SSH."""
        return self.cluster is not None

    def job_dir(self, training_id: str) -> Path:
        """Return a training's job directory."""
        return self.root / "jobs" / training_id


@pytest.fixture
def local_site(xdg: UserFolders) -> TestSite:
    """This machine, as the shipped site `local` has it."""
    return TestSite("local", xdg.data / "dlctl", Path(sys.executable))


@pytest.fixture
def cluster_site(cluster: Cluster, xdg: UserFolders) -> TestSite:
    """The cluster over SSH as the ordinary user, with a root folder of this test's own."""
    root = cluster.home / f"dl-{secrets.token_hex(4)}"
    text = CLUSTER_SITE.format(host=cluster.host, root=root, python=cluster.node_python)
    file = xdg.config / "dlctl/sites/testbed.yml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return TestSite("testbed", root, cluster.node_python, cluster.env, cluster)


@pytest.fixture(params=["local", pytest.param("cluster", marks=pytest.mark.cluster)])
def site(request: pytest.FixtureRequest) -> TestSite:
    """Both sites in turn: neither scheduler can lie about the other."""
    found: TestSite = request.getfixturevalue(f"{request.param}_site")
    return found


# The command -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How one run of the command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """What a `--json` command printed."""
        return json.loads(self.stdout)


@dataclass
class Dlctl:
    """The real command, each time in a process of its own: see tests/support/command_server.py."""

    env: dict[str, str]
    cwd: Path
    server: CommandServer

    def __call__(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float = 300,
        ok: bool = False,
    ) -> Result:
        """Run `dlctl ARGUMENTS` to its end; with `ok`, fail unless it exits with 0."""
        done = self.server.run_command(
            [str(argument) for argument in arguments],
            cwd=cwd or self.cwd,
            env=self.env | dict(env or {}),
            stdin=stdin,
            timeout_s=timeout_s,
        )
        result = Result(done.returncode, done.stdout, done.stderr)
        assert not ok or result.exit_code == 0, f"dlctl {arguments}: {result}"
        return result

    def start(
        self, *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start `dlctl ARGUMENTS` from scratch; the caller ends it (`with` and `kill`)."""
        return subprocess.Popen(
            [sys.executable, "-m", "dlctl", *map(str, arguments)],
            cwd=cwd or self.cwd,
            env=self.env | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def record(self, training_id: str) -> Record:
        """Return what dlctl has written down about a training; no site is asked."""
        return self._store().find(training_id)

    def records(self) -> list[Record]:
        """Return all that dlctl has written down; no site is asked."""
        return self._store().all()

    def _store(self) -> RecordStore:
        return RecordStore(Path(self.env["XDG_STATE_HOME"], "dlctl/record.db"))


@pytest.fixture(scope="session")
def _command_server() -> Iterator[CommandServer]:
    server = CommandServer()
    yield server
    server.close()


@pytest.fixture
def dlctl(
    request: pytest.FixtureRequest, xdg: UserFolders, tmp_path: Path, _command_server: CommandServer
) -> Dlctl:
    """`dlctl("submit", "manifest.yml")` → exit code, stdout, stderr; knows the test's site."""
    env = dict(xdg.env)
    for name in ("site", "cluster_site", "local_site"):
        if name in request.fixturenames:
            env |= request.getfixturevalue(name).env
    work = tmp_path / "work"
    work.mkdir()
    return Dlctl(env, work, _command_server)
