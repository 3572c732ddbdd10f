"""A data store that a real sshd serves over SFTP."""

import getpass
import os
from types import SimpleNamespace

import pytest
from ssh_servers import SSHD, make_key, running_sshd
from store_program import StoreProgram

CONTENTS = {"a": b"1", "deep/b#c ?d": b"2" * 10_000, "big": os.urandom(20 << 20)}


@pytest.fixture
def program(tmp_path):
    """The program that loads, with a home of its own that knows the server and has its key."""
    if SSHD is None:
        pytest.skip("no sshd: apt-get install openssh-server")
    for name, content in CONTENTS.items():
        file = tmp_path / "served" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    home = tmp_path / "home/.ssh"
    home.mkdir(parents=True, mode=0o700)
    user = SimpleNamespace(user=getpass.getuser(), password="")
    made = StoreProgram(tmp_path, "sftp", "", user, str(tmp_path / "served"))
    keys, options = [make_key(home / "id_ed25519")], "Subsystem sftp internal-sftp"
    with running_sshd(tmp_path / "sshd", keys, options) as server:
        server.known_by(home / "known_hosts")
        made.env |= {"STORE_HOST": "127.0.0.1", "STORE_PORT": str(server.port)}
        made.env |= {"STORE_AUTH_URL": "", "HOME": str(home.parent), "SSH_AUTH_SOCK": ""}
        yield made


def test_a_folder_comes_by_sftp_and_the_next_training_finds_it(program):
    code, told = program.run("load")
    assert code == 0, told
    assert program.contents() == CONTENTS
    (program.job / "stores/0/listing.json").unlink()
    assert program.run("load")[0] == 0
    assert "0 B fetched" in program.sentence


def test_a_server_that_nobody_has_logged_in_to_gets_no_credential(program):
    known = program.folder / "home/.ssh/known_hosts"
    known.write_text("")
    code, told = program.run("check")
    assert code == 1 and "shows an SSH key that is not in ~/.ssh/known_hosts" in told
    make_key(program.folder / "other")
    port = program.env["STORE_PORT"]
    other = " ".join((program.folder / "other.pub").read_text().split()[:2])
    known.write_text(f"[127.0.0.1]:{port} {other}\n")
    code, told = program.run("check")
    assert code == 1 and "is not in ~/.ssh/known_hosts" in told


def test_wrong_keys_and_missing_folders_are_told_apart(program):
    code, told = program.run("check", STORE_CONTAINER="/no/such")
    assert code == 1 and "has no container '/no/such'" in told
    make_key(program.folder / "other")
    for suffix in ("", ".pub"):
        (program.folder / f"other{suffix}").rename(program.folder / f"home/.ssh/id_ed25519{suffix}")
    code, told = program.run("check")
    assert code == 1 and "refuses the user name or the password of data store 'mine'" in told
    code, told = program.run("check", STORE_PORT="9", DLCTL_STORE_PATIENCE_S="0")
    assert code == 75 and "The store sftp://127.0.0.1:9 of data store 'mine' can't be used" in told


def test_links_that_lead_nowhere_and_odd_names_are_named(program):
    served = program.folder / "served"
    (served / "gone").symlink_to("no/such/file")
    code, told = program.run("check")
    assert code == 1 and "has no object 'gone'" in told
    (served / "gone").unlink()
    (served / "loop").symlink_to(".")
    code, told = program.run("check")
    assert code == 1 and "The object 'loop'" in told and "it is a link to a folder" in told
    (served / "loop").unlink()
    (served / os.fsdecode(b"caf\xe9")).write_bytes(b"3")
    code, told = program.run("check")
    assert code == 1 and "The object 'caf\ufffd'" in told and "its name is not UTF-8" in told
