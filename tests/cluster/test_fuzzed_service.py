"""Schemathesis asks both interfaces thousands of things, and checks what they answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import REPOSITORY
from rest_server import serving, wait_for_end, zipped
from test_serve import SEARCH, TRIALS

SCHEMATHESIS = Path(sys.prefix, "servers/bin/st")
SETTINGS = """\
# 422: the manifest, the code or the site can't be used, which no schema tells.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 410, 422, 503]
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 410, 413, 416, 422, 503]
[[operations]]
include-path-regex = "^/v1/"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 410, 503]
"""
PROGRAM = """\
import os, sys, time
from learner import ddl
for step in range(1, 5):
    ddl.log(step, loss=1 / step)
    print("step", step, flush=True)
open(os.environ["RESULT_DIR"] + "/model.txt", "w").write("hello world")
time.sleep(float(sys.argv[1]))
"""


def manifest(sleep_s: float) -> str:
    return json.dumps({"name": "fuzzed", "memory": "256MiB", "cpus": 1, "time": "20m", "framework":
                       {"name": "pytorch", "command": f"python3 run.py {sleep_s}"}})  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="`make test-all` installs schemathesis")
def test_no_answer_is_one_that_the_description_does_not_allow(dlctl, local_site, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    with serving(dlctl, local_site) as server:

        def submit(sleep_s: float) -> str:
            parts = {"manifest": manifest(sleep_s), "code": zipped({"run.py": PROGRAM})}
            return str(server.send_form("/api/v1/trainings", parts).json["training_id"])

        made = [submit(0) for _ in range(8)]
        assert {wait_for_end(server, each) for each in made} == {"COMPLETED"}
        stored = server.send("/api/v1/models", {"training": made[0], "name": "kept"})
        assert stored.status == 201, stored
        code = zipped({"search.yml": SEARCH, "trials.py": TRIALS})
        search = server.send_form("/api/v1/searches", {"code": code})
        assert search.status == 201, search
        running = [submit(600) for _ in range(2)]
        fuzzed = {"id": [*running, *made[:4]], "doomed": made[4:], "path": ["model.txt"],
                  "search": [search.json["training_id"]], "name": [local_site.name],
                  "model": [stored.json["model_id"]]}  # fmt: skip
        done = subprocess.run(
            [SCHEMATHESIS, "--no-color", "run", f"http://127.0.0.1:{server.port}/openapi.json",
             "--header", f"Authorization: Bearer {server.token}", "--seed", "7",
             "--max-examples", "110", "--continue-on-failure"],
            cwd=tmp_path, text=True, capture_output=True, check=False, timeout=1200,
            env=os.environ | {
                "FUZZED": json.dumps(fuzzed), "SCHEMATHESIS_HOOKS": "rest_hooks",
                "PYTHONPATH": str(REPOSITORY / "tests/support"),
            },
        )  # fmt: skip
        for each in running:
            server.send(f"/api/v1/trainings/{each}", {"do": "cancel"}, "PATCH")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    cases = re.search(r"(\d+) generated", done.stdout)
    assert cases and int(cases[1]) >= 5000, done.stdout[-2000:]
