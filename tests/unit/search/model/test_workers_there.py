"""Which workers count for a budget of node-hours."""

from __future__ import annotations

from dlctl import contract
from dlctl.contract.search import BrokerStatus, WorkerStatus
from search.model.drive import workers_there


def told(job_dir, broker, time, **seen_s_ago):
    workers = [
        WorkerStatus(name, 0, seen, True, 1, 0, 0, [], 0.0) for name, seen in seen_s_ago.items()
    ]
    path = job_dir / "search/brokers" / broker / "status.json"
    path.parent.mkdir(parents=True)
    contract.write_whole(
        path, contract.to_json(BrokerStatus(broker, 1, time, 0, 0, 0, 0, 0, 0, 0, 0, workers))
    )


def test_workers_count_that_a_living_broker_has_heard_of_each_once(tmp_path):
    told(tmp_path, "b0", 1000.0, one=0.1, two=40.0, gone=300.0)
    told(tmp_path, "b1", 999.0, two=3.0, three=0.0)
    told(tmp_path, "dead", 900.0, four=0.0)
    (tmp_path / "search/brokers/broken").mkdir()
    (tmp_path / "search/brokers/broken/status.json").write_text("{")
    assert workers_there(tmp_path, 1001.0) == {"one", "two", "three"}
    assert workers_there(tmp_path / "none", 1001.0) == set()
