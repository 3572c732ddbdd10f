"""A program that stores results is killed at each of its requests: what the marker then says."""

import hashlib
import json
import os
import signal

import pytest
from faulty_proxy import faulty_proxy
from store_program import StoreProgram

FILES = ("a", "deep/b", "empty")
WRITES = len(FILES) + 2
"""The marker STORING, the files, the marker that names them."""


@pytest.mark.first("True")
@pytest.mark.parametrize("arrives", [True, False])
def test_a_kill_at_any_write_leaves_no_marker_that_names_what_is_not_there(
    tmp_path, swift, arrives
):
    """The killed program's write arrives at the server, or it does not."""
    name = swift.container(f"killed_{arrives}", {})
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    with faulty_proxy(swift.port) as proxy:
        program = StoreProgram(tmp_path, "swift", f"http://{proxy.host}/auth/v1.0", swift, name)

        def save(attempt: int, killed_at: int) -> int:
            writes = 0

            def kill(data: bytes) -> None:
                nonlocal writes
                if data.startswith(b"PUT"):
                    writes += 1
                    if writes == killed_at:
                        os.kill(process.pid, signal.SIGKILL)
                        if not arrives:
                            raise ConnectionResetError

            for file in FILES[:2]:
                (source / file).write_text(f"{file} of attempt {attempt}")
            # Each is another one: a file that the killed attempt left as it was is not sent again.
            (source / "empty").write_text("" if attempt % 2 else f"no more in {attempt}")
            proxy.on_request = kill
            more = program.saving(source, attempt, "HALTED")
            with program.start("save", **more) as process:
                told = process.communicate(timeout=60)
            assert process.returncode in (0, -signal.SIGKILL), told
            return process.returncode

        def mark() -> dict:
            found = json.loads(swift.get(f"{name}/t-1/_complete.json"))
            for file in found["files"]:
                content = swift.get(f"{name}/t-1/{file['name']}")
                assert len(content) == file["size_bytes"], found
                assert hashlib.sha256(content).hexdigest() == file["sha256"], found
            return found

        assert save(1, 0) == 0
        assert (mark()["state"], len(mark()["files"])) == ("HALTED", len(FILES))
        for attempt in range(2, 2 + WRITES):
            assert save(attempt, attempt - 1) == -signal.SIGKILL, attempt
            found = mark()  # the killed program's last write may arrive after this
            if found["state"] == "STORING":
                assert found["files"] == []
        assert save(2 + WRITES, 0) == 0
        assert (mark()["attempt"], len(mark()["files"])) == (2 + WRITES, len(FILES))
