"""Where processes listen, read back from the job directory."""

from pathlib import Path

from dlctl.contract import search as files
from search.protocol.endpoints import (
    NAMESERVER,
    Endpoint,
    read_endpoints,
    read_nameserver,
    write_endpoint,
)


def test_brokers_and_the_nameserver_are_found(tmp_path: Path) -> None:
    assert (read_endpoints(tmp_path), read_nameserver(tmp_path)) == ([], None)
    first, second = Endpoint("b1", 1, "n1:4000"), Endpoint("b2", 7, "n2:4000")
    nameserver = Endpoint(NAMESERVER, 1, "n1:4001")
    for endpoint in (second, nameserver, first):
        write_endpoint(tmp_path, endpoint)
    assert read_endpoints(tmp_path) == [first, second]
    assert read_nameserver(tmp_path) == nameserver


def test_a_new_incarnation_replaces_the_old_one(tmp_path: Path) -> None:
    write_endpoint(tmp_path, Endpoint("b1", 1, "n1:4000"))
    write_endpoint(tmp_path, Endpoint("b1", 2, "n3:4000"))
    assert read_endpoints(tmp_path) == [Endpoint("b1", 2, "n3:4000")]


def test_a_file_of_another_kind_is_no_endpoint(tmp_path: Path) -> None:
    write_endpoint(tmp_path, Endpoint("b1", 1, "n1:4000"))
    (tmp_path / files.ENDPOINTS / "b2.json").write_text("{")
    assert [each.name for each in read_endpoints(tmp_path)] == ["b1"]
