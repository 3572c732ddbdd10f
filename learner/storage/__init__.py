"""Where training data comes from and results go to.

Imports the contract and `learner.errors`. What passes through are the plan's data stores on the way
in, and on the way out DATA_DIR and copies of the results. To add a type of store, write its file,
name it here, and in `dlctl.contract.stores`.
"""

from __future__ import annotations

from pathlib import Path

from dlctl import contract
from dlctl.contract import DataStore, Plan, ResultsIndex
from learner.errors import UserFault
from learner.storage.base import Interrupted, Publication, Store, Tick
from learner.storage.mounted import Mounted

STORES: dict[str, Store] = {"mount_volume": Mounted(), "host_mount": Mounted()}
"""The data stores, by the manifest's `data_stores[].type`."""

__all__ = ["STORES", "Interrupted", "Publication", "Store", "Tick", "data_problems", "load", "save"]


def _of(store: DataStore) -> Store:
    if store.type not in STORES:
        raise UserFault(
            f"This version has no data store of the type {store.type!r}.",
            hint="Submit again with the dlctl that made this plan.",
        )
    return STORES[store.type]


def data_problems(plan: Plan) -> list[str]:
    """Return what is wrong with the training data on this node, two lines each."""
    found = []
    for store in plan.data_stores:
        try:
            found += _of(store).problems(store)
        except UserFault as fault:
            found.append(f"{fault.message}\n{fault.hint}")
    return found


def load(plan: Plan, job_dir: Path, tick: Tick) -> list[str]:
    """Create `data`: a link to the only store's data, or a folder with a link per store.

    Returns:
        One line for each store with data.

    Raises:
        UserFault: data can't be brought here.
        Interrupted: by `tick`.
    """
    found = [(store, _of(store).load(store, job_dir, tick)) for store in plan.data_stores]
    sources = [(store, path) for store, path in found if path is not None]
    data = job_dir / contract.DATA
    _remove(data)
    if len(sources) == 1:
        data.symlink_to(sources[0][1], target_is_directory=True)
    else:
        data.mkdir()
        for store, path in sources:
            (data / store.id).symlink_to(path, target_is_directory=True)
    return [f"{store.id}: {path}" for store, path in sources]


def _remove(data: Path) -> None:
    """Remove the `data` of an earlier attempt: links only, never what they point to."""
    if data.is_symlink():
        data.unlink()
    elif data.is_dir():
        for link in data.iterdir():
            if link.is_symlink():
                link.unlink()
        # Anything but links was put there by somebody, and must not be lost.
        try:
            data.rmdir()
        except OSError as error:
            raise UserFault(
                f"The folder {str(data)!r} holds files that dlctl did not put there.",
                hint="Move them to a data store, and submit again.",
            ) from error


def save(
    plan: Plan, results: Path, index: ResultsIndex, publication: Publication
) -> list[str]:  # fmt: skip
    """Copy the results to every store that takes them.

    Returns:
        One line for each store that has them now.

    Raises:
        UserFault: a copy failed, or is not what was written.
        Interrupted: by `publication`.
    """
    done = []
    for store in plan.data_stores:
        if where := _of(store).save(store, plan.training_id, results, index, publication):
            done.append(f"{store.id}: {where}")
    return done
