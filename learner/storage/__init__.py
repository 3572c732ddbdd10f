"""Where training data comes from and results go to.

Imports the contract, `learner.errors` and `learner.system`. What passes through are the plan's data
stores on the way in, and on the way out DATA_DIR and copies of the results. A type of store is a
folder of scripts (`learner.storage.scripted`); only directories that the nodes mount need none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from dlctl import contract
from dlctl.contract import DataStore, Plan, ResultsIndex
from dlctl.contract.stores import STORE
from learner.errors import UserFault
from learner.storage import mounted, scripted
from learner.storage.index import index_of
from learner.storage.progress import Interrupted, Moving, Publication, Tick
from learner.storage.to_store import OUTPUT_NAME, lay_out

__all__ = ["Interrupted", "Moving", "Publication", "Tick", "data_problems", "load", "save",
           "save_all", "takes_all"]  # fmt: skip


def data_problems(plan: Plan) -> list[str]:
    """Return what is wrong with the training data on this node, two lines each."""
    return [
        problem for store in plan.data_stores
        for problem in (scripted if store.scripts else mounted).problems(store)
    ]  # fmt: skip


def load(plan: Plan, job_dir: Path, tick: Tick, show: scripted.Show = lambda _: None) -> list[str]:
    """Create `data`: a link to the only store's data, or a folder with a link per store.

    Returns:
        One line for each store with data.

    Raises:
        UserFault: data can't be brought here.
        Interrupted: by `tick`.
    """
    sources = []
    for store in plan.data_stores:
        if store.scripts:
            path = scripted.load(store, Path(plan.root), job_dir, tick, show)
        else:
            path = mounted.data_path(store)
        if path is not None:
            sources.append((store, path))
    _link(job_dir / contract.DATA, {store.id: path for store, path in sources}, plan)
    return [
        f"{store.id}: {scripted.last_sentence(job_dir, store) or path}" for store, path in sources
    ]


def _link(data: Path, sources: Mapping[str, Path], plan: Plan) -> None:
    """Lead `data` to what was loaded; what a program has put there (`../data`) stays."""
    for link in (data, *(data / store.id for store in plan.data_stores)):
        if link.is_symlink():  # an earlier attempt's
            link.unlink()
    with contextlib.suppress(OSError):
        data.rmdir()
    if len(sources) != 1:
        data.mkdir(exist_ok=True)
    for name, path in sources.items():
        link = data if len(sources) == 1 else data / name
        try:
            link.symlink_to(path, target_is_directory=True)
        except FileExistsError as error:
            raise UserFault(
                f"{str(link)!r}, where the training data belongs, holds files of the program.",
                hint=f"Move them away, and go on: dlctl resume {plan.training_id}",
            ) from error


def save(
    plan: Plan, results: Path, index: ResultsIndex, publication: Publication
) -> list[str]:  # fmt: skip
    """Copy the results to every mounted store that takes them, and the program's other output.

    Returns:
        One line for each store that has them now.

    Raises:
        UserFault: a copy failed, or is not what was written.
        Interrupted: by `publication`.
    """
    done, job_dir = [], Path(plan.job_dir)
    stores = [store for store in plan.data_stores
              if not store.scripts and store.training_results is not None]  # fmt: skip
    sources = [(plan.training_id, results, index)]
    if stores and (output := contract.own_output(job_dir, plan.output_caches)):
        code = job_dir / contract.CODE
        own = index_of(code, [code / path for path in output], publication.tick)
        sources.append((f"{plan.training_id}/{OUTPUT_NAME}", code, own))
    for store in stores:
        for place, folder, each in sources:
            if where := mounted.save(store, place, folder, each, publication):
                done.append(f"{store.id}: {where}")
    return done


def takes_all(plan: Plan) -> list[DataStore]:
    """Return the stores that take what an attempt has made, however it ended."""
    return [
        store for store in plan.data_stores
        if store.training_results is not None and STORE in store.scripts
    ]  # fmt: skip


def save_all(
    plan: Plan, job_dir: Path, state: str, publication: Publication, show: scripted.Show
) -> list[str]:  # fmt: skip
    """Have the scripts of the stores take the results, the logs and the code of an attempt.

    Returns:
        One line for each store that has them now.

    Raises:
        UserFault: a script failed.
        Interrupted: by `publication`.
    """
    stores = [store for store in takes_all(plan) if store.via == "node"]
    if not stores:
        return []
    more = {"TRAINING_ID": plan.training_id, "TRAINING_STATE": state,
            "DLCTL_ATTEMPT": str(publication.attempt)}  # fmt: skip
    done = []
    for store in stores:
        publication.check()
        source = lay_out(plan, job_dir, publication.attempt, store.takes_checkpoints)
        root, tick = Path(plan.root), publication.tick
        where = scripted.save(store, root, job_dir, source, more, tick, show)
        done.append(f"{store.id}: {where}")
    return done
