"""A server in this process, with the local record of the test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from rest_server import RestServer, running

from dlctl.lifecycle import open_session
from dlctl.record import RecordStore
from dlctl.serve import run
from dlctl.serve.desk import Desk
from dlctl.service.client import Client
from dlctl.service.pool import Pool
from dlctl.sites.files import load_site


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Iterator[Desk]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    pool = Pool(lambda name: open_session(load_site(name)))
    made = Desk(Client(RecordStore(), pool=pool), pool.open_site, "local")
    yield made
    made.close()


@pytest.fixture
def server(desk, tmp_path) -> Iterator[RestServer]:
    with running(desk, run.Place()) as port:
        yield RestServer({"XDG_STATE_HOME": str(tmp_path / "state")}, tmp_path, port)
