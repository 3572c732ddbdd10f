"""The search.yml that was sent: what a search goes on with, whatever became of the user's file."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.errors import ResultsError
from dlctl.files.small_files import read_files
from dlctl.search.load import Loaded, load_search

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record


def read_sent(session: Session, record: Record) -> tuple[str, bytes]:
    """Return the name of a search's file, and its content at the site.

    Raises:
        ResultsError: it is no longer there.
        TransferError: the site can't be read.
    """
    name = Path(record.manifest_path).name
    path = f"{record.job_dir}/{contract.CODE}/{name}"
    content = read_files(session.transport, [path])[path]
    if content is None:
        raise ResultsError(f"{path} is gone, which the search was started from",
                           hint=f"dlctl search show {record.training_id}")  # fmt: skip
    return name, content


@contextlib.contextmanager
def sent_search(session: Session, record: Record) -> Iterator[Loaded]:
    """Yield a search as it was sent.

    Raises:
        ResultsError, TransferError: as `read_sent`.
        ManifestError: this version of dlctl does not understand it.
    """
    name, content = read_sent(session, record)
    with tempfile.TemporaryDirectory(prefix="dlctl-search-") as folder:
        file = Path(folder, name)
        file.write_bytes(content)
        yield load_search(file, alone=True)
