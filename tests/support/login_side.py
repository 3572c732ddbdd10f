"""What the tests of the login side share: manifests, sites, a scheduler, bad connections."""

import contextlib
import itertools
import shlex
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlctl import contract
from dlctl.errors import ConnectionLost, SchedulerUnavailable, SubmitRejected, SubmitUnknown
from dlctl.lifecycle import cancel_all, halt_all, refresh, resume, submit
from dlctl.lifecycle.end import only
from dlctl.lifecycle.session import Session
from dlctl.manifest.load import parse_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.plan.decide import Identity, make_plan
from dlctl.record import Record, RecordStore
from dlctl.request.build import prepare, prepare_again
from dlctl.scheduler.rows import parse_rows
from dlctl.sites.files import parse_site
from dlctl.transport.local import LocalTransport

MANIFEST = "name: digits\nframework: {name: pytorch, job: train.py}\n"


def make_site(root="/data/dl", name="testbed", scheduler="{kind: slurm}", more="",
              launcher="{kind: srun, mpi: pmix}", environment="{python: /opt/py/bin/python}",
              transport="{kind: local}"):  # fmt: skip
    return parse_site(name, f"transport: {transport}\nroot: {root}\nscheduler: {scheduler}\n"
                      f"launcher: {launcher}\nenvironment: {environment}\n{more}")  # fmt: skip


def make_manifest(text=MANIFEST, **overrides):
    return parse_manifest(text.encode(), "manifest.yml", Overrides(**overrides))


IDENTITY = Identity(
    "digits-abcdefgh", "2026-01-02T03:04:05.678+00:00", "c0de", "ba5e", "/me/python"
)


def plan_of(text=MANIFEST, site=None, **overrides):
    return make_plan(make_manifest(text, **overrides), site or make_site(), IDENTITY, [])


def make_record(root=Path("/data/dl"), **values):
    given = {"training_id": "t-1", "name": "t", "site": "testbed", "folder": "/home/me/t",
             "job_dir": f"{root}/jobs/t-1",
             "created_at": "2026-01-02T03:04:05.678+00:00"}  # fmt: skip
    return Record(**(given | values))


def session_of(name="testbed", transport=None):
    """An open site that nothing is asked of, or only its transport."""
    site = SimpleNamespace(name=name)
    return SimpleNamespace(site=site, transport=transport, close=lambda: None)


class ScriptedScheduler:
    """A scheduler of a few shell lines: `queue/<id>` holds a job's state, `names/<id>` its token.

    `mode` is a file that makes it misbehave: `reject`, `lost` (submitted, but nothing is said).
    """

    kind = "scripted"
    not_now = answer_lost = ""

    def prologue(self):
        return ""

    lack_here = prologue

    def __init__(self, root):
        self.folder = Path(root) / "scripted"
        for name in ("queue", "names"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.silent = False

    def submit_script(self, plan, attempt):
        folder, token = shlex.quote(str(self.folder)), contract.token(plan.training_id, attempt)
        return f"""
mode=$(cat {folder}/mode 2>/dev/null)
[ "$mode" = reject ] && {{ echo 'no such partition' >&2; exit 1; }}
id=$(($(ls {folder}/queue | wc -l) + 1))
echo {shlex.quote(token)} >{folder}/names/$id; echo PENDING >{folder}/queue/$id
[ "$mode" = lost ] && exit 0
echo $id
"""

    def parse_submit(self, exit_code, stdout, stderr):
        if exit_code == 0 and stdout.strip().isdigit():
            return stdout.strip()
        if exit_code == 1:
            raise SubmitRejected(f"refused: {stderr.strip()}", hint="ask for another")
        raise SubmitUnknown("the answer was lost")

    def queue_script(self, root):
        if self.silent:
            return "echo 'no controller' >&2; exit 1"
        folder = shlex.quote(str(self.folder))
        return (
            f"cd {folder}/queue && for id in *; do [ -f $id ] || continue\n"
            "name=$(cat ../names/$id); printf '\\036%s\\037%s\\037%s\\037\\037\\037dlctl:%s'"
            ' $id "$name" "$(cat $id)" "$name"; done; :'
        )

    def parse_queue(self, exit_code, stdout, stderr):
        if exit_code:
            raise SchedulerUnavailable(stderr.strip())
        return parse_rows(stdout)

    def history_script(self, job_ids):
        return None

    def parse_history(self, exit_code, stdout, stderr):
        return []

    def usage_script(self, job_ids):
        return None

    def parse_usage(self, stdout):
        return {}

    def cancel_script(self, job_id, root):
        assert job_id.isdigit(), f"scancel of {job_id!r}"
        return f"echo CANCELLED >{shlex.quote(str(self.folder))}/queue/{job_id}"

    def halt_script(self, job_id, root):
        return f"echo HALTING >{shlex.quote(str(self.folder))}/signalled-{job_id}"

    def parse_cancel(self, exit_code, stdout, stderr):
        assert exit_code == 0, stderr

    def mode(self, word):
        (self.folder / "mode").write_text(word)

    def jobs(self):
        """Id → token and state."""
        return {
            int(path.name): (
                (self.folder / "names" / path.name).read_text().strip(),
                path.read_text().strip(),
            )
            for path in sorted((self.folder / "queue").iterdir(), key=lambda p: int(p.name))
        }

    def set_state(self, job_id, word):
        (self.folder / "queue" / str(job_id)).write_text(word)

    def forget(self, job_id):
        (self.folder / "queue" / str(job_id)).unlink()


class BadTransport(LocalTransport):
    """Breaks at one call: `before` it happens, or `after` it happened and before its answer."""

    def __init__(self, call=0, when="before"):
        super().__init__()
        self.call, self.when, self.calls = call, when, 0

    def _breaks(self):
        self.calls += 1
        return self.calls == self.call

    def start(self, script, **options):
        breaks = self._breaks()
        if breaks and self.when == "before":
            raise ConnectionLost("the connection was lost")
        process = super().start(script, **options)
        if breaks:
            wait, stream = process.wait, process.stdout

            def lose(*_):
                wait(60.0)
                raise ConnectionLost("the connection was lost")

            process.wait = lose
            process.stdout = SimpleNamespace(readline=lose, read=lose, close=stream.close)
        return process


class Overtaken(BadTransport):
    """Does something once, before the first call whose script has all of these words."""

    def __init__(self, action, *words):
        super().__init__()
        self.action, self.words = action, words

    def start(self, script, **options):
        if self.action and all(word in script for word in self.words):
            action, self.action = self.action, None
            action()
        return super().start(script, **options)


class Vanishing(LocalTransport):
    """Removes a job directory before one of its calls, as `dlctl delete` elsewhere does."""

    def __init__(self, folder, call):
        super().__init__()
        self.folder, self.left = folder, call

    def start(self, script, **how):
        self.left -= 1
        if self.left == 0:
            shutil.rmtree(self.folder)
        return super().start(script, **how)


class Scene:
    """A user's folder, a site on this machine with a scripted scheduler, and a record."""

    def __init__(self, folder, manifest=MANIFEST, root=None, more=""):
        self.root, self.work = root or folder / "root", folder / "my training"
        self.store = RecordStore(folder / "record.db")
        self.root.mkdir(exist_ok=True)
        self.work.mkdir()
        self.python = folder / "python"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)
        (self.work / "train.py").write_text("print('hi')\n")
        (self.work / "manifest.yml").write_text(manifest)
        self.scheduler = ScriptedScheduler(self.root)
        self.settle(more)

    def settle(self, more=""):
        """Read the site's file anew: with other lines, or after the root has become another."""
        python = f"{{python: {self.python}}}"
        self.site = make_site(str(self.root), environment=python, more=more)
        self.session = self.connect(LocalTransport())

    def connect(self, transport):
        return Session(self.site, transport, self.scheduler)

    def request(self, training_id=None):
        return prepare(self.work / "manifest.yml", Overrides(), self.site, training_id)

    def start(self, run_script, job_id):
        """Run a job's script as the scheduler would; returns how it ended."""
        token, _ = self.scheduler.jobs()[job_id]
        training_id, _, attempt = token.rpartition(".")
        script = self.root / "jobs" / training_id / contract.script_file(int(attempt))
        end = run_script(script, attempt, job_id)
        self.scheduler.set_state(job_id, "COMPLETED" if end.returncode == 0 else "FAILED")
        return end

    def ran(self):
        """Job directory and attempt of each supervisor that was started."""
        path = self.root / "ran"
        return path.read_text().splitlines() if path.exists() else []


FAKE_PYTHON = """\
#!/bin/sh
# A node's Python that notes which supervisor it was asked for, and says that all went well.
[ "$1" = -c ] && exit 0
[ "$1 $2 $3" = "-u -m learner.supervisor" ] || exit 9
shift # unbuffered: on a full disk Python would end with 120 for what it could not write
echo "$(basename "$3") $4${5:+ $5}" >>"$3/../../ran"
cat >"$3/attempts/$4/verdict.json" <<END
{"attempt": $4, "job_id": "x", "state": "COMPLETED", "reason": "All went well."}
END
"""


def run_script(script, attempt, job_id):
    return subprocess.run(["bash", script, attempt], capture_output=True, text=True, timeout=60,
                          env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": str(job_id)})  # fmt: skip


def look(scene):
    return refresh(scene.session, scene.store.all(), scene.store)[0]


def job_dir(scene):
    return Path(scene.store.all()[0].job_dir)


def planned(scene, attempt):
    return contract.read_record(contract.Plan, job_dir(scene) / contract.plan_file(attempt))


def fail_newest(scene):
    scene.scheduler.set_state(len(scene.scheduler.jobs()), "NODE_FAIL")
    assert look(scene).state is contract.State.FAILED


def send(scene, transport=None):
    session = scene.connect(transport) if transport else scene.session
    return submit(session, scene.request(), scene.store)


def send_lost(scene):
    """Submit; the scheduler takes the job, its answer is lost, and it can't be asked for it."""
    scene.scheduler.mode("lost")
    scene.scheduler.silent = True
    with pytest.raises(SubmitUnknown):
        send(scene)
    scene.scheduler.silent = False
    scene.scheduler.mode("")


def run_everything(scene):
    """Run every job that the scheduler has, in order, as late as can be."""
    for job_id, (_, state) in scene.scheduler.jobs().items():
        if state == "PENDING":
            assert scene.start(run_script, job_id).returncode == 0


def go_on(scene, transport=None, store=None, *, new_code=False, on_line=lambda _: None, **values):
    """Resume the training, with other resources if they are asked for."""
    session = scene.connect(transport) if transport else scene.session
    store = store or scene.store
    return resume(session, store.all()[0], store, lambda r: prepare_again(r, scene.site),
                  Overrides(**values), new_code=new_code, on_line=on_line)  # fmt: skip


def halt(session, record, store):
    return only(halt_all(session, [record], store))


def cancel(session, record, store):
    return only(cancel_all(session, [record], store))


def fill(folder: Path, size: int) -> None:
    """Write files of a size until the file system takes no more."""
    with contextlib.suppress(OSError):
        for number in itertools.count():
            (folder / f"fill-{number}").write_bytes(bytes(size))
