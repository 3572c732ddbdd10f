"""How fast the dashboard shows curves, in Chromium, beside TensorBoard (part of `metrics`).

The system brings Chromium, the development requirements bring TensorBoard.

    view_start       command → first paint; floor: `http.server` with a blank page
    view_open_20x1m  a page of twenty runs, cold, until the last curve is drawn; peers: TensorBoard
                     from its start until its HTTP interface has each run's last point, as it is and
                     with `--samples_per_plugin` for all points (120 s means: not within 120 s)
    view_spikes      spikes of one point that are not seen, of 100; TensorBoard's are looked for in
                     what it sends to its page
    view_lag         a line is appended on the node → it is on the page, over SSH, 95 of 100 times;
                     peer: TensorBoard beside the file, without SSH, until its interface has it (its
                     page asks every 30 s, and only if that is switched on)
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from canvas import VISIBLE_SPIKES  # type: ignore[import-not-found]

from benchmarks.client import Client
from benchmarks.report import Load, Result
from benchmarks.slurm import slurm
from benchmarks.start_up import dlctl_argv
from dlctl import contract
from dlctl.contract.ground.protobuf import record as event_record
from dlctl.contract.metrics import Source
from dlctl.outputs.metrics.formats import scalar_event, write_events
from dlctl.record import Record, RecordStore
from learner.job.metrics import MetricsFile

_RUNS, _LAGS = (5, 1, 1), (100, 20, 2)
_PATIENCE_S = 600.0
_PEER_S = 120.0
"""A peer that takes longer is given this time."""
_CHROMIUM = shutil.which("chromium") or "chromium"
_DRAWN = "() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))"
_PAINTED = """() => new Promise(found => {
    const look = () => {
        const [paint] = performance.getEntriesByName('first-contentful-paint');
        if (paint) found(performance.timeOrigin + paint.startTime);
        else setTimeout(look, 5);
    };
    look();
})"""


def measure(records: Sequence[Record], folder: Path, points: int, load: Load) -> Iterator[Result]:
    """Yield the results.

    Args:
        records: of runs that have been written, all with the same curve.
        folder: for event files and the user's folders.
        points: of each run.
    """
    from playwright.sync_api import sync_playwright

    runs = _RUNS[load]
    events = _write_events(folder / "events", len(records), points)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        try:
            yield _start(browser, folder, runs)
            yield _open(browser, records, folder, events, points, runs)
            yield _spikes(browser, records[:1], folder, events, points)
            yield from _lag(browser, folder, _LAGS[load])
        finally:
            browser.close()


# Programs ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _dashboard(records: Sequence[Record], folder: Path) -> Iterator[tuple[str, float]]:
    """Yield the URL of a dashboard that has just started, and when it was started."""
    env = _user(folder)
    store = RecordStore(folder / "state/dlctl/record.db")
    known = {record.training_id for record in store.all()}
    for each in records:
        if each.training_id not in known:
            store.add(each)
    began = time.time()
    argv = dlctl_argv("dashboard", "--no-browser")
    with _running(argv, env) as process:
        yield _first_url(process), began


def _user(folder: Path) -> dict[str, str]:
    for name in ("state", "config", "cache"):
        (folder / name / "dlctl").mkdir(parents=True, exist_ok=True)
    return os.environ | {
        f"XDG_{name.upper()}_HOME": str(folder / name) for name in ("state", "config", "cache")
    }


@contextlib.contextmanager
def _running(argv: Sequence[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _first_url(process: subprocess.Popen[str]) -> str:
    """Return the first URL that a program prints."""
    assert process.stdout is not None
    while select.select([process.stdout], [], [], _PATIENCE_S)[0]:
        line = process.stdout.readline()
        if found := re.search(r"http://\S+", line):
            return found.group(0)
        if not line:
            break
    raise RuntimeError(f"{process.args}: no URL")


@contextlib.contextmanager
def _tensorboard(folder: Path, *options: str) -> Iterator[tuple[str, float]]:
    """Yield the URL of a TensorBoard that has just started, and when it was started."""
    argv = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0",
            "--host", "127.0.0.1", *options]  # fmt: skip
    began = time.time()
    with _running(argv, dict(os.environ)) as process:
        yield _first_url(process), began


def _page(url: str, page: str) -> str:
    """Return the URL of another page of the same dashboard."""
    before, _, token = url.partition("#")[0], "", url.partition("token=")[2]
    return f"{before}#{page}{'&' if '?' in page else '?'}token={token}"


# Results -----------------------------------------------------------------------------------------


def _start(browser: Any, folder: Path, runs: int) -> Result:
    def paint_s(program: Callable[[], Any]) -> float:
        with program() as (url, began):
            page = browser.new_page()
            page.goto(url)
            painted_at = page.evaluate(_PAINTED) / 1000
            page.close()
        return float(painted_at - began)

    def blank() -> Any:
        return _blank(folder)

    empty = folder / "no-events"
    empty.mkdir(exist_ok=True)
    candidates = {
        "ours": lambda: _dashboard([], folder / "nobody"), "floor": blank,
        "tensorboard": lambda: _tensorboard(empty),
    }  # fmt: skip
    times = {name: [paint_s(program) for _ in range(runs)] for name, program in candidates.items()}
    middle = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
    return _result("view_start", "s", middle, runs)


@contextlib.contextmanager
def _blank(folder: Path) -> Iterator[tuple[str, float]]:
    page = folder / "blank"
    page.mkdir(exist_ok=True)
    (page / "index.html").write_text("<p>dlctl</p>")
    argv = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "-d", str(page), "0"]
    began = time.time()
    with _running(argv, dict(os.environ)) as process:
        yield _first_url(process).strip("()"), began


def _open(
    browser: Any, records: Sequence[Record], folder: Path, events: Path, points: int, runs: int
) -> Result:
    ids = ",".join(record.training_id for record in records)

    def ours() -> float:
        with _dashboard(records, folder / "us") as (url, _):
            page, arrived = browser.new_page(), []
            page.on("response", lambda r: arrived.append(r) if "/curves" in r.url else None)
            began = time.perf_counter()
            page.goto(_page(url, f"/compare?runs={ids}"))
            _until(lambda: page.wait_for_timeout(5) or len(arrived) >= len(records))
            page.wait_for_selector(".chart canvas")
            page.evaluate(_DRAWN)
            took_s = time.perf_counter() - began
            page.close()
        return took_s

    def theirs(*options: str) -> float:
        with _tensorboard(events, *options) as (url, began), contextlib.suppress(TimeoutError):
            end = began + _PEER_S
            for number in range(len(records)):
                # Its page, too, asks for each run once.
                _until(lambda n=number: _newest(url, f"run-{n}") >= points - 1, 0.5, end)  # type: ignore[misc]
            return time.time() - began
        return _PEER_S

    def floor() -> float:
        begin = time.perf_counter()
        for each in records:
            Path(each.job_dir, contract.metrics_file(1, 0)).read_bytes()
        return time.perf_counter() - begin

    middle = {name: sorted(work() for _ in range(runs))[runs // 2]
              for name, work in (("ours", ours), ("floor", floor))}  # fmt: skip
    middle["tensorboard"] = theirs()
    # Its fast loader can't send so many points at once (a limit of gRPC).
    middle["tensorboard_all"] = theirs(
        f"--samples_per_plugin=scalars={points}", "--load_fast=false"
    )
    return _result("view_open_20x1m", "s", middle, runs)


def _spikes(
    browser: Any, records: Sequence[Record], folder: Path, events: Path, points: int
) -> Result:
    with _dashboard(records, folder / "us") as (url, _):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(_page(url, f"/training/{records[0].training_id}"))
        page.wait_for_selector(".chart canvas")
        page.evaluate(_DRAWN)
        ours = 100 - page.evaluate(VISIBLE_SPIKES)
        page.close()
    with _tensorboard(events) as (url, _):
        _until(lambda: _newest(url, "run-0") >= points - 1)
        theirs = 100 - sum(value > 40 for _, _, value in _scalars(url, "run-0"))
    middle = {"ours": ours, "floor": 0, "tensorboard": theirs}
    return _result("view_spikes", "missed of 100", middle, 1)


def _lag(browser: Any, folder: Path, count: int) -> Iterator[Result]:
    with slurm("view_lag") as cluster:
        if cluster is None:
            return
        client = Client(cluster, folder / "lag")
        client.use_root("bench")
        ours = _lags_of_page(browser, client, count)
    theirs = _lags_of_tensorboard(folder / "lag-events", min(count, 20))
    middle = {"ours": _p95(ours), "floor": 0.0, "tensorboard": _p95(theirs)}
    yield _result("view_lag", "s", middle, count)


def _lags_of_page(browser: Any, client: Client, count: int) -> list[float]:
    """Return how long each line took from the job directory of a real job to the page."""
    work = client.folder / "sleeps"
    work.mkdir()
    manifest = {"name": "sleeps", "framework": {"name": "pytorch", "command": "sleep 900"}}
    (work / "manifest.yml").write_text(json.dumps(manifest))
    submit = dlctl_argv("submit", "manifest.yml", "--site", "testbed")
    done = subprocess.run(
        submit, cwd=work, env=client.env, check=True, stdout=subprocess.PIPE, text=True
    )
    training_id = done.stdout.strip()
    job = client.cluster.home / "bench/jobs" / training_id
    _until((job / contract.claim(1)).exists)
    file = MetricsFile(job / contract.metrics_file(1, 0, Source.PROGRAM))
    file.append(0, 1, {"loss": 0.0})
    draw, lags = random.Random(2), []
    with _running(dlctl_argv("dashboard", "--no-browser"), dict(client.env)) as process:
        page = browser.new_page()
        page.goto(_page(_first_url(process), f"/training/{training_id}"))
        page.wait_for_selector(".chart canvas")
        for number in range(1, count + 1):
            page.wait_for_timeout(1000 * draw.uniform(0.2, 2.0))
            file.append(number, 1, {"loss": float(1000 + number)})
            began = time.perf_counter()
            page.get_by_text(str(1000 + number), exact=True).first.wait_for(state="attached")
            lags.append(time.perf_counter() - began)
        page.close()
    cancel = dlctl_argv("cancel", training_id)
    subprocess.run(cancel, cwd=work, env=client.env, check=False, stdout=subprocess.DEVNULL)
    return lags


def _lags_of_tensorboard(folder: Path, count: int) -> list[float]:
    draw, lags = random.Random(2), []
    path = folder / "run-0/events.out.tfevents.1.bench"
    write_events(path, 1.0, [(1.0, 0, "loss", 0.0)])
    with _tensorboard(folder, "--reload_interval=1") as (url, _), path.open("ab") as file:
        _until(lambda: _newest(url, "run-0") >= 0)
        for number in range(1, count + 1):
            time.sleep(draw.uniform(0.2, 2.0))
            file.write(event_record(scalar_event(time.time(), number, "loss", 1.0)))
            file.flush()
            began = time.perf_counter()
            _until(lambda n=number: _newest(url, "run-0") >= n)  # type: ignore[misc]
            lags.append(time.perf_counter() - began)
    return lags


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def _result(what: str, unit: str, values: dict[str, float], runs: int) -> Result:
    rounded = {name: round(float(value), 3) for name, value in values.items()}
    return Result(what, unit, rounded.pop("ours"), rounded.pop("floor"), rounded, runs)


# TensorBoard -------------------------------------------------------------------------------------


def _write_events(folder: Path, count: int, points: int) -> Path:
    """Write the event files of the same curve for each run."""
    from benchmarks.metrics import curve

    first = folder / "run-0/events.out.tfevents.1.bench"
    write_events(first, 1e9, ((1e9 + s / 10, s, "loss", v) for s, v in enumerate(curve(points))))
    for number in range(1, count):
        shutil.copytree(first.parent, folder / f"run-{number}")
    return folder


def _scalars(url: str, run: str) -> list[list[float]]:
    """Return what TensorBoard would send to its page: time, step and value of each sample."""
    query = urllib.parse.urlencode({"run": run, "tag": "loss"})
    where = f"{url.rstrip('/')}/data/plugin/scalars/scalars?{query}"
    try:
        with urllib.request.urlopen(where, timeout=_PATIENCE_S) as answer:
            return list(json.load(answer))
    except (OSError, ValueError):
        return []


def _newest(url: str, run: str) -> float:
    found = _scalars(url, run)
    return found[-1][1] if found else -1.0


def _until(done: Callable[[], object], pause_s: float = 0.02, end: float = float("inf")) -> None:
    """Wait until something is done.

    Args:
        end: Unix seconds.
    """
    end = min(end, time.time() + _PATIENCE_S)
    while not done():
        if time.time() > end:
            raise TimeoutError("it did not happen in time")
        time.sleep(pause_s)
