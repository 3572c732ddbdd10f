"""What every process of a search must know before it starts, from the search's specification."""

from __future__ import annotations

from pathlib import Path

from dlctl import contract
from dlctl.contract import search as files
from search.errors import SearchError


def load_spec(job_dir: Path) -> files.Spec:
    """Read the specification of a search.

    Raises:
        SearchError: There is none, or it can't be understood.
    """
    try:
        spec = contract.read_record(files.Spec, job_dir / files.SPEC)
    except (OSError, contract.ContractError) as error:
        raise SearchError(f"{job_dir / files.SPEC} can't be read: {error}") from error
    if spec is None:
        raise SearchError(
            f"{job_dir} is not the directory of a search: it has no {files.SPEC}",
            hint="`dlctl search start` makes one",
        )
    return spec


_ENDS = (files.ENDED, contract.HALT_REQUEST, contract.CANCEL_REQUEST)


def is_ending(job_dir: Path) -> bool:
    """Return whether the search is done, or was halted or cancelled: then it needs no workers."""
    return any((job_dir / name).exists() for name in _ENDS)
