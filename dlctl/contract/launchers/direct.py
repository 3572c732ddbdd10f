"""One learner as a plain child process, with no MPI at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlctl.contract.launchers.base import Lack, LaunchRequest, Ranks, Steps

if TYPE_CHECKING:
    from dlctl.contract.plan import Resources


class Direct:
    """Starts the program itself."""

    kind = "direct"
    for_sites = False
    starts_mpi = False
    scheduler = ""
    environment: Mapping[str, str] = MappingProxyType({})
    prefixes: tuple[str, ...] = ()
    allocation: tuple[str, ...] = ()
    tasks_variable = gpus_variable = ""
    ended_grace_s = 5.0

    def argv(self, request: LaunchRequest) -> list[str]:  # noqa: ARG002
        """Return nothing: the program is started as it is."""
        return []

    def steps(self, program: str, extra: Sequence[str]) -> Steps:
        """Raise NotImplementedError: it belongs to no batch system."""
        raise NotImplementedError

    def sharing(self, argv: Sequence[str], memory_bytes: int | None) -> list[str]:  # noqa: ARG002
        """Return the command as it is."""
        return list(argv)

    def reshaped(
        self,
        argv: Sequence[str],
        learners_on: Mapping[str, int],  # noqa: ARG002
    ) -> list[str]:
        """Return the command as it is: one learner is the fewest."""
        return list(argv)

    def ranks(self, env: Mapping[str, str], resources: Resources) -> Ranks:  # noqa: ARG002
        """Return the only rank there is."""
        return Ranks(0, 1, 0, 1, 0)

    def pmi_hint(self, site: str) -> str:  # noqa: ARG002
        """Return nothing: one learner needs no MPI."""
        return ""

    def lack(
        self,
        request: LaunchRequest,  # noqa: ARG002
        mpi_types: Sequence[str],  # noqa: ARG002
        program: str,  # noqa: ARG002
        site: str,  # noqa: ARG002
    ) -> Lack | None:
        """Return None: nothing is needed."""
        return None
