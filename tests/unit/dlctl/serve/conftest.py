"""A server in this process, with the local record of the test."""

from __future__ import annotations

import os

import pytest
from rest_server import RestServer, running

from dlctl.record import RecordStore
from dlctl.serve import run
from dlctl.serve.desk import Desk
from dlctl.service.client import Client, open_site
from dlctl.service.pool import Pool


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    made = Desk(Client(RecordStore(), pool=Pool(open_site)), "local")
    yield made
    made.close()


@pytest.fixture
def server(desk, tmp_path):
    with running(desk, run.Place()) as port:
        yield RestServer({"XDG_STATE_HOME": str(tmp_path / "state")}, tmp_path, port)
