"""A bug report's archive holds no credential, whatever the site's file and the logs hold."""

import tarfile

import pytest

from dlctl.doctor.bundle import redact_all, write_bundle
from dlctl.doctor.chain import Link
from dlctl.doctor.examine import Examined
from dlctl.errors import ResultsError
from dlctl.sites.files import save_site

SITE = """\
transport: {kind: local}
root: /r
scheduler: {kind: local}
launcher: {kind: mpirun}
environment:
  python: /usr/bin/python3
  pip: [--index-url, 'https://pypi.example.org/simple']  # before: https://me:hunter2@example.org
  variables:
    WANDB_API_KEY: hunter2
    HARMLESS: hunter2 as well
  setup: ['export TOKEN=hunter2', 'true']
"""


@pytest.mark.parametrize(
    "text",
    [
        "https://me:hunter2@example.org/x", "password: hunter2", 'API_KEY="hunter2"',
        "export AWS_SECRET_ACCESS_KEY=hunter2", '{"token": "hunter2"}', "Bearer hunter2",
        "ghp_hunter2hunter2hunter2hunter2", "hf_hunter2hunter2hunter2",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2 cut short", "passphrase = hunter2",
    ],
)  # fmt: skip
def test_what_looks_like_a_credential_goes(text):
    found = redact_all({"a": f"before\n{text}\nafter\n"}, {})["a"]
    assert "hunter2" not in found and found.startswith("before\n")


def test_what_this_shell_calls_a_secret_goes_wherever_it_stands():
    shell = {"MY_TOKEN": "hunter2", "SSH_AUTH_SOCK": "/tmp/agent", "HOME": "/home/me", "A_KEY": "x"}
    text = "it said hunter2 at /home/me and /tmp/agent"
    assert redact_all({"a": text}, shell)["a"] == "it said (removed) at /home/me and /tmp/agent"


def test_the_archive_is_private_and_clean(tmp_path, monkeypatch):
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("MY_TOKEN", "opensesame")
    save_site("mine", SITE)
    said = "refused by https://a:hunter2@b/ and opensesame"
    found = Examined([Link("tcp", "broken", said, "fix it", "mine")])
    path = write_bundle(tmp_path / "b.tgz", found, "mine", None)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
    assert set(texts) == {f"dlctl-doctor/{name}" for name in (
        "versions.json", "doctor.json", "trainings.json", "sites/mine.yml")}  # fmt: skip
    assert not [n for n, text in texts.items() if "hunter2" in text or "opensesame" in text]
    site = texts["dlctl-doctor/sites/mine.yml"]
    assert "WANDB_API_KEY: (removed)" in site and "python: /usr/bin/python3" in site
    with pytest.raises(ResultsError, match="can't be written"):
        write_bundle(path, found, "mine", None)
