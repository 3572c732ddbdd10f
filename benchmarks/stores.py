"""Data from and to an object store (`python -m benchmarks.stores`): a real Swift on this machine.

store_load_1gb   1 GB by the S3 interface into DATA_DIR. The floor reads it through one plain
connection. `boto3` and `aws` download it by their own threads, and compare nothing; `rclone` by as
many, and compares a small object's MD5. `aws` and `rclone` take part if they are on the PATH.
`unchecked` is ours with `etags: opaque`.
store_load_10k   10,000 objects of 10 kB, in the same way; once, as it takes minutes.
store_served     bytes that leave the server, divided by those of the data, of two jobs at once. The
peer `naive` is what it would be if each of 8 learners fetched for itself.
store_again      the second training with the same data: bytes from the server, less a listing's.
store_again_s    how long that takes; the floor is the listing alone.
store_save_1gb   1 GB of results. The floor copies the file; the others upload it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Load, Result, Rounds, compare, leave_out, main, rounds

MIB = 1 << 20
THREADS = 8
_BIG_BYTES, _SMALL = (10**9, 10**9, MIB), (10_000, 1000, 3)
_BIG_ROUNDS, _SMALL_ROUNDS = rounds(5, 1), rounds(1, 0)
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

    def __init__(self, swift: Any, folder: Path, big_bytes: int, small: int) -> None:
        from swift_server import PYTHON

        self.swift, self.folder, self._python = swift, folder, str(PYTHON)
        self._number, self.small, self.big_bytes = 0, small, big_bytes
        big = (os.urandom(MIB) * (big_bytes // MIB + 1))[:big_bytes]
        swift.container("one", {"big": big})
        swift.container("many", {f"{n}": os.urandom(10_000) for n in range(small)})
        swift.container("results", {})
        self.file = folder / "model.pt"
        self.file.write_bytes(big)

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

    def load(self, container: str, **env: str) -> float:
        """Return how long our program takes."""
        program = self.program(container)
        return timed(lambda: done(program.run("load", **env)))

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

    def aws(self, verb: str, bucket: str, path: Path | None = None) -> float:
        """Return how long AWS's command line takes."""
        env = {**os.environ, "AWS_ACCESS_KEY_ID": self.swift.user, "AWS_REGION": "us-east-1",
               "AWS_SECRET_ACCESS_KEY": self.swift.password,
               "AWS_CONFIG_FILE": os.devnull}  # fmt: skip
        remote = f"s3://{bucket}"
        what = ([str(path), f"{remote}/by-aws"] if verb == "save"
                else ["--recursive", remote, str(self.fresh())])  # fmt: skip
        # Versions before 2.13 know no variable for it.
        argv = ["aws", "--endpoint-url", self.swift.s3_url, "s3", "cp", "--quiet", *what]
        return timed(lambda: subprocess.run(argv, env=env, check=True))

    def rclone(self, verb: str, bucket: str, path: Path | None = None) -> float:
        """Return how long rclone takes."""
        kept = {k: v for k, v in os.environ.items() if k != "AWS_CA_BUNDLE"}  # it can't use one
        env = {
            **kept, "RCLONE_CONFIG": "/dev/null", "RCLONE_S3_PROVIDER": "Other",
            "RCLONE_S3_ENDPOINT": self.swift.s3_url, "RCLONE_S3_ACCESS_KEY_ID": self.swift.user,
            "RCLONE_S3_SECRET_ACCESS_KEY": self.swift.password, "RCLONE_S3_REGION": "us-east-1",
            "RCLONE_TRANSFERS": str(THREADS), "RCLONE_CHECKERS": str(THREADS),
            "RCLONE_MULTI_THREAD_STREAMS": str(THREADS), "RCLONE_MULTI_THREAD_CUTOFF": "16M",
            "RCLONE_S3_CHUNK_SIZE": "16M", "RCLONE_S3_NO_CHECK_BUCKET": "true",
        }  # fmt: skip
        remote = f":s3:{bucket}"
        argv = (
            ["rclone", "copyto", "--ignore-times", str(path), f"{remote}/by-rclone"]
            if verb == "save" else ["rclone", "copy", remote, str(self.fresh())]
        )  # fmt: skip
        return timed(lambda: subprocess.run(argv, env=env, check=True))

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


def measure(load: Load) -> Iterator[Result]:
    """Yield each result; nothing if Swift is not installed."""
    from swift_server import PYTHON, running_swift

    found = PYTHON.exists() and subprocess.run([PYTHON, "-c", "import swift"], capture_output=True)
    if not found or found.returncode:
        leave_out("store_", why="no Swift: `.ci/make-venv .venv all` installs it")
        return
    with tempfile.TemporaryDirectory() as folder, running_swift(Path(folder, "swift")) as swift:
        yield from _results(Store(swift, Path(folder), _BIG_BYTES[load], _SMALL[load]), load)


def _results(store: Store, load: Load) -> Iterator[Result]:
    peers = {"boto3": store.boto3, "aws": store.aws, "rclone": store.rclone}
    for name in ("aws", "rclone"):
        if not shutil.which(name):
            del peers[name]
            leave_out(name, why="it is not on the PATH")

    def loading(what: str, container: str, count: int, times: Rounds) -> Result:
        return compare(
            what, lambda: store.load(container), lambda: store.plain(container, count),
            {name: partial(move, "load", container) for name, move in peers.items()}
            | {"unchecked": partial(store.load, container, STORE_ETAGS="opaque")},
            rounds=times,
        )  # fmt: skip

    yield loading("store_load_1gb", "one", 1, _BIG_ROUNDS[load])
    yield loading("store_load_10k", "many", store.small, _SMALL_ROUNDS[load])
    yield from _served(store)
    yield compare(
        "store_save_1gb", store.save,
        lambda: timed(lambda: shutil.copyfile(store.file, store.fresh() / "copy")),
        {name: partial(move, "save", "results", store.file) for name, move in peers.items()},
        rounds=_BIG_ROUNDS[load],
    )  # fmt: skip


def _served(store: Store) -> Iterator[Result]:
    from faulty_proxy import faulty_proxy

    with faulty_proxy(store.swift.port) as proxy:
        program = store.program("one", f"http://{proxy.host}")
        both = [program.start("load") for _ in range(2)]
        for process in both:
            done((process.wait(), "load"))
            process.communicate()
        served = proxy.served_bytes / store.big_bytes
        yield Result("store_served", "bytes / bytes", round(served, 4), 1.0, {"naive": 8.0})
        (program.job / "stores/0/listing.json").unlink()
        proxy.served_bytes = 0
        again_s = timed(lambda: done(program.run("load")))
        again = proxy.served_bytes
        proxy.served_bytes = 0
        listing_s = timed(lambda: done(program.run("check")))
        yield Result("store_again", "B", float(max(0, again - proxy.served_bytes)), 0.0)
        yield Result("store_again_s", "s", round(again_s, 4), round(listing_s, 4))


if __name__ == "__main__":
    main(measure)
