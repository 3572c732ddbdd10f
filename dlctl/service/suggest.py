"""Suggest what a manifest should ask for, from what this user's earlier trainings have used."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract.measured.past import Past
from dlctl.errors import DlctlError, ManifestError, PlanError
from dlctl.lifecycle import refresh
from dlctl.manifest.load import load_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.plan.decide import Identity, make_plan
from dlctl.plan.placement import place
from dlctl.record import used
from dlctl.request.build import open_folder
from dlctl.service.forecast import planned_start
from dlctl.sites.files import load_site
from dlctl.suggest import edit, judge, waits
from dlctl.suggest.evidence import Suggestion
from dlctl.suggest.waits import Start

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.manifest.model import Manifest
    from dlctl.record import Record
    from dlctl.service.client import Client
    from dlctl.sites.model import Site


@dataclass(frozen=True)
class Suggestions:
    """Suggestions for a manifest at a site."""

    manifest: str
    site: str
    trainings: int
    """The number of known earlier trainings of the same name or code."""
    suggestions: list[Suggestion]
    start: Start
    unanswered: dict[str, str] = field(default_factory=dict)
    """Site that did not answer → why: what was known of its trainings counts all the same."""
    difference: str = ""
    """The change to the manifest, as a unified diff; empty: none."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def suggest(mine: Client, path: Path, site: str, *, write: bool = False) -> Suggestions:
    """Return what a manifest should ask for; each site is asked by one connection.

    Args:
        site: Where the training is to run.
        write: Change the manifest in place.

    Raises:
        ManifestError, SiteError
    """
    manifest, there = load_manifest(path), load_site(site)
    kin = _Kin(manifest.name, _code_digest(path, there), str(path.resolve()))
    records = [record for record in mine.store.all() if kin.has(record)]
    ids = {record.training_id for record in records}
    left = [record for record in records if not (record.state.final or record.is_search)]
    judged: list[Suggestions] = []
    unanswered: dict[str, str] = {}

    def judge_all(session: Session | None) -> None:
        known = used.known(mine.store)
        same = [past for past in known if past.training_id in ids or kin.has_past(past)]
        judged.append(_judged(path, manifest, there, session, same, known))

    def ask(session: Session) -> None:
        name = session.site.name
        refresh(session, [record for record in left if record.site == name], mine.store)
        if name == site:
            judge_all(session)

    others = sorted({record.site for record in left} - {site})
    for name, answer in mine.each_site([*others, site], ask):  # this site is the last
        if isinstance(answer, DlctlError):
            unanswered[name] = answer.message
    if not judged:
        judge_all(None)
    return replace(judged[0], unanswered=unanswered,
                   difference=_write(path, judged[0].suggestions) if write else "")  # fmt: skip


@dataclass(frozen=True)
class _Kin:
    """Which trainings tell something: those of this name or code, or submitted from this file."""

    name: str
    code: str
    """Its digest; empty if it is not known."""
    path: str

    def has_past(self, past: Past) -> bool:
        return past.name == self.name or (bool(self.code) and past.code_digest == self.code)

    def has(self, record: Record) -> bool:
        return record.name == self.name or record.manifest_path == self.path


def _code_digest(path: Path, site: Site) -> str:
    """Return the digest of the manifest's folder; empty if it can't be sent: `submit` says why."""
    with contextlib.suppress(DlctlError, OSError):
        return open_folder(path, site).code.digest
    return ""


def _judged(
    path: Path, manifest: Manifest, site: Site, session: Session | None, same: Sequence[Past],
    known: Sequence[Past],
) -> Suggestions:  # fmt: skip
    """Return what is suggested, and when such a job would start.

    Args:
        same: The past of trainings that tell something about this one.
        known: That of all trainings: about waiting each tells something.
    """
    found = judge.judge(manifest, site, same, known)
    here = [past for past in known if past.site == site.name]
    fitting, why_not = _changed(path, found)
    if site.partitions and fitting:
        found.append(_partition(fitting, manifest, site, here))
        fitting, why_not = _changed(path, found)
    plan = None
    if fitting is not None:
        try:
            plan = make_plan(fitting, site, Identity("none", "", "", "", sys.executable), [])
        except PlanError as error:
            why_not = error.message.splitlines()[0]
    in_s = None
    if plan is not None:
        in_s, why_not = None, "the site does not answer"
        if session is not None:
            in_s, why_not = planned_start(session, plan)
    partition = plan.batch.partition if plan else manifest.scheduler.partition
    count = len({past.training_id for past in same})
    return Suggestions(str(path), site.name, count, found,
                       waits.start(here, partition or "", in_s, why_not))  # fmt: skip


def _changed(path: Path, found: Sequence[Suggestion]) -> tuple[Manifest | None, str]:
    """Return the manifest as suggested, or why there is none."""
    changes = tuple(f"{each.key}={each.suggested}" for each in found if each.is_change)
    try:
        return load_manifest(path, Overrides(set=changes)).extract_secrets()[0], ""
    except ManifestError as error:
        return None, error.message.splitlines()[0]


def _partition(
    fitting: Manifest, manifest: Manifest, site: Site, here: Sequence[Past]
) -> Suggestion:  # fmt: skip
    def fits(name: str) -> bool:
        scheduler = fitting.scheduler.model_copy(update={"partition": name})
        return _place(fitting.model_copy(update={"scheduler": scheduler}), site) == name

    return waits.partition(manifest, _place(fitting, site), list(site.partitions), here, fits)


def _place(manifest: Manifest, site: Site) -> str:
    """Return the partition in which a manifest's job would run; empty if it fits none."""
    with contextlib.suppress(PlanError):
        return place(manifest, site).partition or ""
    return ""


def _write(path: Path, found: Sequence[Suggestion]) -> str:
    """Change the manifest in place; return the difference.

    Raises:
        ManifestError: it can't be changed, and is as it was.
    """
    changes = {each.key: each.suggested for each in found if each.is_change}
    real = path.resolve()
    try:
        before = real.read_bytes().decode()
        mark = "\ufeff" if before.startswith("\ufeff") else ""
        after = mark + edit.edited(before.removeprefix(mark), changes)
        if after != before:
            contract.write_whole(real, after, real.stat().st_mode & 0o777)
    except OSError as error:
        raise ManifestError(
            f"{path} can't be written: {error.strerror}",
            hint="check its permissions, or copy it elsewhere",
        ) from error
    return edit.difference(before, after, path.name)
