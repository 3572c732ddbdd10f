"""Run `python -m learner.storage` as a store's scripts do, against a server of the tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from repository import REPOSITORY
from zygote import Forked, light


class StoreProgram:
    """One training's store of one implementation."""

    def __init__(self, folder: Path, kind: str, url: str, swift: Any, container: str) -> None:
        self.folder, self.kind = folder, kind
        self.job = folder / "job"
        (self.job / "stores/0").mkdir(parents=True, exist_ok=True)
        mine = self.job / "stores/0"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DLCTL_STORE")}
        self.env = {
            **kept, "PYTHONPATH": str(REPOSITORY), "STORE_ID": "mine", "STORE_CONTAINER": container,
            "STORE_AUTH_URL": url, "STORE_USER_NAME": swift.user, "STORE_PASSWORD": swift.password,
            "STORE_DIR": str(mine), "STORE_DATA": str(mine / "data"),
            "STORE_PROGRESS": str(mine / "progress"), "STORE_CACHE": str(folder / "cache"),
            "DLCTL_STORE_PATIENCE_S": "8",
        }  # fmt: skip

    @property
    def data(self) -> Path:
        """What the learners see."""
        return self.job / "stores/0/data"

    @property
    def sentence(self) -> str:
        """The sentence of progress."""
        return (self.job / "stores/0/progress").read_text().strip()

    def start(self, verb: str, **env: str) -> Forked:
        """Start one verb."""
        program = ("-m", "learner.storage", verb, self.kind)
        return light().start(*program, env={**self.env, **env}, stdout=subprocess.PIPE)

    def run(self, verb: str, timeout_s: float = 100, **env: str) -> tuple[int, str]:
        """Run one verb; return its exit code and what it printed."""
        with self.start(verb, **env) as process:
            output, _ = process.communicate(timeout=timeout_s)
        assert process.returncode is not None
        return process.returncode, output

    def done(self, verb: str, timeout_s: float = 100, **env: str) -> str:
        """Run one verb, which ends well; return what it printed."""
        code, output = self.run(verb, timeout_s, **env)
        assert code == 0, output
        return output

    def load(self, container: str = "", **env: str) -> dict[str, bytes]:
        """Load a container; return the files that the learners see."""
        self.done("load", **({"STORE_CONTAINER": container} if container else {}), **env)
        return self.contents()

    def results(self, contents: dict[str, bytes]) -> Path:
        """Make a folder with these files, to be stored."""
        source = self.folder / "source"
        for name, content in contents.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)
        return source

    def saving(
        self, source: Path, attempt: int = 1, state: str = "COMPLETED", **env: str
    ) -> dict[str, str]:
        """Return the variables with which an attempt stores a folder."""
        return {"STORE_SOURCE": str(source), "STORE_JOB_DIR": str(self.job), "TRAINING_ID": "t-1",
                "TRAINING_STATE": state, "DLCTL_ATTEMPT": str(attempt), **env}  # fmt: skip

    def contents(self) -> dict[str, bytes]:
        """Return the files that the learners see."""
        return {
            str(path.relative_to(self.data)): path.read_bytes()
            for path in sorted(self.data.rglob("*")) if path.is_file()
        }  # fmt: skip
