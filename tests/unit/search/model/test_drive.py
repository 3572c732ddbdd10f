"""The model's loop, with a real broker in the same process; which workers cost node-hours."""

from __future__ import annotations

from broker_in_process import broker_in
from event_loops import in_loop
from search_keys import write_keys

from dlctl import contract
from dlctl.contract import search as files
from dlctl.contract.search import BrokerStatus, WorkerStatus
from search.broker import service as service_module
from search.broker.shapes import Room
from search.model import drive
from search.model.drive import Driver, workers_there
from search.model.log import TrialLog
from search.model.state import Search
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel, open_server
from search.protocol.stubs import BrokerStub, make_handler
from search.strategies import make_strategy

ROOM = Room(1000, 0, 0, frozenset(), 0.0, for_each=True)


@in_loop
async def test_a_trial_that_ends_before_it_is_sent_once_more_is_not_sent(tmp_path, monkeypatch):
    """The model died of it."""
    monkeypatch.setattr(service_module, "MOST_TASKS", 3)
    monkeypatch.setattr(drive, "_BATCH", 1)
    monkeypatch.setattr(drive, "_WAIT_S", 0.0)
    write_keys(tmp_path)
    space = [files.Parameter("x", "float", 0.0, 1.0)]
    spec = files.Spec("test", space, files.Task("python", "mine:Square"), "random", window=3,
                      budget=files.Budget(trials=4))  # fmt: skip
    search = Search(spec, make_strategy(spec), TrialLog(tmp_path / files.TRIALS))
    driver = Driver(search, tmp_path)
    credentials = Credentials.load(tmp_path, "broker")
    with broker_in(tmp_path / "b0") as broker:
        queues, handlers = broker.queues, [make_handler("Broker", broker)]
        server, address = open_server("127.0.0.1", credentials, handlers)
        await server.start()
        async with open_channel(address, Credentials.load(tmp_path, "model")) as channel:
            stub = BrokerStub(channel)
            driver._send_again()
            await driver._fill(stub)
            assert len(queues.tasks) == 3
            last = queues.lease("w1", 3, ROOM, 0.0)[2]
            value = b'{"value": 1}'
            result = m.Result(task_id=last.task.id, lease_id=last.id, outcome=m.SUCCEEDED,
                              value=value)  # fmt: skip
            queues.accept("w1", [result], 0.0)
            driver._send_again()  # as after a lost connection
            for _ in range(5):
                await driver._fill(stub)
                await driver._take(stub)
            assert search.result_count == 1 and len(queues.tasks) == 3
            assert set(search.outstanding.values()) == set(queues.tasks)
        await server.stop(None)


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
