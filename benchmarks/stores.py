"""Data from and to an object store (`python -m benchmarks.stores`): a real Swift on this machine.

store_load_1gb  1 GB by the S3 interface into DATA_DIR. The floor reads it through one plain
connection; `boto3` downloads it by its own threads, and compares nothing.
store_load_1k   1,000 objects of 10 kB, in the same way.
store_served    bytes that leave the server, divided by those of the data, of two jobs at once.
store_again     the second training with the same data: bytes from the server, less a listing's.
store_save_1gb  1 GB of results. The floor copies the file; `boto3` uploads it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.learners import REPOSITORY
from benchmarks.report import Result, compare, main

sys.path.append(str(REPOSITORY / "tests/support"))

MIB, GB = 1 << 20, 10**9
SMALL = 1000
_BOTO3 = """\
import sys, time, boto3
verb, url, user, password, bucket, folder = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=url, aws_access_key_id=user, aws_secret_access_key=password,
                  region_name="us-east-1")
if verb == "save":
    s3.upload_file(folder, bucket, "by-boto3")
else:
    from concurrent.futures import ThreadPoolExecutor
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [row["Key"] for page in pages for row in page["Contents"]]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: s3.download_file(bucket, key, f"{folder}/{key}"), keys))
"""


class Store:
    """Two containers with data and one for results, and programs that move them."""

    def __init__(self, swift: Any, folder: Path) -> None:
        from swift_server import PYTHON

        self.swift, self.folder, self._python = swift, folder, str(PYTHON)
        self._number = 0
        big = os.urandom(MIB) * (GB // MIB + 1)
        swift.container("one", {"big": big[:GB]})
        swift.container("many", {f"{n}": os.urandom(10_000) for n in range(SMALL)})
        swift.container("results", {})
        self.file = folder / "model.pt"
        self.file.write_bytes(big[:GB])

    def fresh(self) -> Path:
        """Return an empty folder; what earlier calls have made is removed."""
        shutil.rmtree(self.folder / f"{self._number}", ignore_errors=True)
        self._number += 1
        made = self.folder / f"{self._number}"
        made.mkdir()
        return made

    def program(self, container: str, url: str = "") -> Any:
        """Return our program with a cache of its own."""
        from store_program import StoreProgram

        return StoreProgram(self.fresh(), "s3", url or self.swift.s3_url, self.swift, container)

    def load(self, container: str) -> float:
        """Return how long our program takes."""
        program = self.program(container)
        return timed(lambda: done(program.run("load")))

    def save(self) -> float:
        """Return how long our program takes to store the file, and compare it with the server's."""
        program = self.program("results")
        source = program.folder / "source"
        source.mkdir()
        (source / "model.pt").symlink_to(self.file)
        more = {"STORE_SOURCE": str(source), "TRAINING_ID": f"t-{self._number}",
                "STORE_JOB_DIR": str(program.job), "DLCTL_ATTEMPT": "1",
                "TRAINING_STATE": "COMPLETED"}  # fmt: skip
        return timed(lambda: done(program.run("save", **more)))

    def boto3(self, verb: str, bucket: str, path: Path | None = None) -> float:
        """Return how long boto3 takes."""
        given = [self.swift.s3_url, self.swift.user, self.swift.password, bucket]
        argv = [self._python, "-W", "ignore", "-c", _BOTO3, verb, *given,
                str(path or self.fresh())]  # fmt: skip
        return timed(lambda: subprocess.run(argv, check=True))

    def plain(self, container: str, count: int) -> float:
        """Return how long one connection takes that only reads."""
        token, folder = self.swift.token(), self.fresh()
        names = self.swift.names(container)[:count]

        def read() -> None:
            for name in names:
                url = f"{self.swift.s3_url}/v1/AUTH_test/{container}/{name}"
                request = urllib.request.Request(url, headers={"X-Auth-Token": token})
                with urllib.request.urlopen(request) as answer, (folder / name).open("wb") as file:
                    shutil.copyfileobj(answer, file, MIB)

        return timed(read)


def timed(action: Any) -> float:
    """Return how long an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def done(ended: tuple[int, str]) -> None:
    """Raise if a program failed."""
    if ended[0] != 0:
        raise RuntimeError(ended[1])


def measure(quick: bool) -> Iterator[Result]:
    """Yield each result."""
    from swift_server import running_swift

    runs = 1 if quick else 5
    with tempfile.TemporaryDirectory() as folder, running_swift(Path(folder, "swift")) as swift:
        store = Store(swift, Path(folder))
        for what, container, count in (
            ("store_load_1gb", "one", 1), ("store_load_1k", "many", SMALL),
        ):  # fmt: skip
            yield compare(
                what, lambda c=container: store.load(c),  # type: ignore[misc]
                lambda c=container, n=count: store.plain(c, n),  # type: ignore[misc]
                {"boto3": lambda c=container: store.boto3("load", c)},  # type: ignore[misc,dict-item]
                runs=runs, warm_up=0 if quick else 1,
            )  # fmt: skip
        yield from _served(store)
        yield compare(
            "store_save_1gb", store.save,
            lambda: timed(lambda: shutil.copyfile(store.file, store.fresh() / "copy")),
            {"boto3": lambda: store.boto3("save", "results", store.file)},
            runs=runs, warm_up=0 if quick else 1,
        )  # fmt: skip


def _served(store: Store) -> Iterator[Result]:
    from faulty_proxy import faulty_proxy

    with faulty_proxy(store.swift.port) as proxy:
        program = store.program("many", f"http://{proxy.host}")
        both = [program.start("load") for _ in range(2)]
        for process in both:
            done((process.wait(), "load"))
            process.communicate()
        data = SMALL * 10_000
        yield Result("store_served", "bytes / bytes", proxy.served_bytes / data, 1.0)
        (program.job / "stores/0/listing.json").unlink()
        proxy.served_bytes = 0
        done(program.run("load"))
        again = proxy.served_bytes
        proxy.served_bytes = 0
        done(program.run("check"))
        yield Result("store_again", "B", float(max(0, again - proxy.served_bytes)), 0.0)


if __name__ == "__main__":
    main(measure)
