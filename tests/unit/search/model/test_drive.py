"""The model's loop, with a real broker in the same process."""

from __future__ import annotations

from event_loops import run_loop
from search_keys import write_keys

from dlctl.contract import search as files
from search.broker import service as service_module
from search.broker.queues import Queues
from search.broker.service import BrokerService
from search.broker.shapes import Room
from search.journal.epochs import Lease
from search.journal.log import Log
from search.model import drive
from search.model.drive import Driver
from search.model.log import TrialLog
from search.model.state import Search
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel, open_server
from search.protocol.stubs import BrokerStub, make_handler
from search.strategies import make_strategy

ROOM = Room(1000, 0, 0, frozenset(), 0.0, for_each=True)


def test_a_trial_that_ends_before_it_is_sent_once_more_is_not_sent(tmp_path, monkeypatch):
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

    async def play():
        lease = Lease.claim(tmp_path / "b0", 60.0)
        log = Log(tmp_path / "b0/1.0.log")
        queues = Queues(1, 60.0, log.append)
        broker = BrokerService("b0", queues, log, lease)
        credentials = Credentials.load(tmp_path, "broker")
        server, address = open_server("127.0.0.1", credentials, [make_handler("Broker", broker)])
        await server.start()
        try:
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
                assert search.told == 1 and len(queues.tasks) == 3
                assert set(search.outstanding.values()) == set(queues.tasks)
        finally:
            await server.stop(None)
            log.close()
            lease.close()

    run_loop(play())
