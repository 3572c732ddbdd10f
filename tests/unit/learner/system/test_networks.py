"""On which of its addresses a node's server is reached."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from worker_group_job import WorkerGroupJob

from dlctl import contract
from dlctl.contract.ground.interfaces import own_addresses
from learner.agent.preflight import bound_address, find_problems
from learner.errors import UserFault
from learner.system import networks
from learner.system.networks import address_on

HAVE = [
    ("eno1", ipaddress.ip_address("10.0.0.5")),
    ("ib0", ipaddress.ip_address("10.1.7.5")),
    ("ib0", ipaddress.ip_address("fd00::5")),
]


@pytest.fixture(autouse=True)
def have(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr(networks, "own_addresses", lambda: HAVE)


@pytest.mark.parametrize(("network", "address"), [
    ("ib0", "10.1.7.5"), ("10.1.0.0/16", "10.1.7.5"), ("fd00::/8", "fd00::5"),
    ("10.0.0.5", "10.0.0.5"), ("10.0.0.9/24", "10.0.0.5"),
])  # fmt: skip
def test_the_address_on_a_network_is_found(network: str, address: str) -> None:
    assert address_on(network, "x") == address


@pytest.mark.parametrize("network", ["ib1", "192.168.0.0/24", "ib"])
def test_a_node_without_an_address_on_it_lists_what_it_has(network: str) -> None:
    seen = f"no address on the network '{network}'; it has eno1 10.0.0.5, ib0 10.1.7.5, ib0 fd00::5"
    with pytest.raises(UserFault, match=seen) as caught:
        address_on(network, "cluster")
    assert "site file of cluster" in caught.value.hint


def test_real_interfaces_are_found(tmp_path: Path) -> None:
    lines = (
        "fd000000000000000000000000000002 02 40 00 80     eth0",
        "20010db8000000000000000000000002 02 40 00 80     eth0",
        "fe8000000000000000fc00fffe000001 02 40 20 80     eth0",
        "00000000000000000000000000000001 01 80 10 80       lo",
    )
    (tmp_path / "if_inet6").write_text("\n".join(lines))
    found = own_addresses(tmp_path / "if_inet6")
    sixes = [str(address) for _, address in found if address.version == 6]
    assert sixes == ["fd00::2", "2001:db8::2"]
    assert all(name != "lo" for name, _ in found)


def test_servers_bind_to_the_address_that_the_preflight_checks(tmp_path: Path) -> None:
    job = WorkerGroupJob(tmp_path, 4, nodes=2)

    def problems(network: str) -> list[str]:
        asked = {**vars(job.plan.parameter_server), "network": network}
        job.write_plan(parameter_server=contract.ParameterServer(**asked))
        return [problem for problem in find_problems(job.plan, job.dir) if "network" in problem]

    assert problems("ib0") == []
    assert bound_address(job.plan) == "10.1.7.5"
    (problem,) = problems("ib1")
    assert "no address on the network 'ib1'" in problem and "\nCorrect `network`" in problem
