"""Where nameserver and brokers listen, as files of the job directory.

A search goes on by these files while its nameserver is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.contract import search as files

NAMESERVER = "nameserver"


@dataclass(frozen=True)
class Endpoint:
    """Where a process listens."""

    name: str
    """The broker's name, or `nameserver`."""
    incarnation: int
    """Grows with each start of the process."""
    address: str
    """`host:port`."""


def write_endpoint(job_dir: Path, endpoint: Endpoint) -> None:
    """Tell everybody in the search where a process listens, in place of what was told before."""
    path = job_dir / files.ENDPOINTS / f"{endpoint.name}.json"
    path.parent.parent.mkdir(exist_ok=True)
    contract.write_whole(path, contract.to_json(endpoint))


def remove_endpoint(job_dir: Path, endpoint: Endpoint) -> None:
    """Tell that nobody listens under a name any more, unless a successor does."""
    if read_endpoint(job_dir, endpoint.name) == endpoint:
        (job_dir / files.ENDPOINTS / f"{endpoint.name}.json").unlink(missing_ok=True)


def read_endpoint(job_dir: Path, name: str) -> Endpoint | None:
    """Return where a broker listens, or listened before it died; None if it has no file."""
    return _read(job_dir / files.ENDPOINTS / f"{name}.json")


def read_endpoints(job_dir: Path) -> list[Endpoint]:
    """Return where the brokers listen, or listened before they died, in order of their names."""
    found = (job_dir / files.ENDPOINTS).glob("[!.]*.json")
    read = (_read(path) for path in sorted(found) if path.stem != NAMESERVER)
    return [endpoint for endpoint in read if endpoint is not None]


def read_nameserver(job_dir: Path) -> Endpoint | None:
    """Return where the nameserver listens, or listened; None if it never started."""
    return read_endpoint(job_dir, NAMESERVER)


def _read(path: Path) -> Endpoint | None:
    try:
        return contract.read_record(Endpoint, path)
    except (OSError, contract.ContractError):  # removed meanwhile, or of another version
        return None
