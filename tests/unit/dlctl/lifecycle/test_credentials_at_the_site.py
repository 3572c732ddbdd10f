"""Credentials at a site: the user alone can read them, and they go with their training."""

import pytest
from login_side import MANIFEST, Scene, run_everything, send

from dlctl.lifecycle import delete

TOKEN = "opensesame-1"


@pytest.mark.parametrize("more", ["", "share: group"])
def test_the_user_alone_reads_them_and_they_go_with_their_training(tmp_path, more):
    manifest = f"{MANIFEST}env: {{API_TOKEN: {TOKEN}}}\n"
    scene = Scene(tmp_path, manifest, more=more)
    record = send(scene)
    file = scene.root / "secrets" / record.training_id / "API_TOKEN"
    holders = [p for p in scene.root.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()]
    assert holders == [file]
    assert file.stat().st_mode & 0o777 == 0o600
    run_everything(scene)
    delete(scene.session, record, scene.store)
    assert not file.parent.exists()
