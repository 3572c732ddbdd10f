"""The shell that stays at a site, over every transport and after every login shell."""

from __future__ import annotations

import os
import shlex
import signal
from datetime import date
from pathlib import Path

import pytest
from ssh_servers import block, running_sshd

from dlctl.errors import TransportTimeout
from dlctl.files.small_files import look_at, read_appended, read_clock_and_texts
from dlctl.transport.local import LocalTransport
from dlctl.transport.resident import Resident, ask

ALL_BYTES = bytes(range(256))


@pytest.fixture
def stays(transport):
    resident = Resident(transport)
    yield resident
    resident.leave()


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def shell_of(resident: Resident) -> int:
    """The number of its process, which it is asked for."""
    (told,) = resident._ask("printf '%s%s' $$ \"$mark\"")
    return int(told)


def test_whatever_is_appended_comes_as_it_is(stays, tmp_path):
    file = tmp_path / "it's a 'log'.log"
    offset = 0
    for content in (b"one\n", ALL_BYTES, b"\0\0\n\0", b"half a li", b"", b"ne\n" + ALL_BYTES * 60,
                    b"x" * 4095 + b"\0", b"y" * 4096, os.urandom(5000)):  # fmt: skip
        append(file, content)
        (news,) = stays.read_appended(
            [look_at(str(tmp_path), ["*.log"], {file.name: offset}, 10**6)]
        )
        assert news == ({file.name: content} if content else {})
        offset += len(content)
    again = stays.read_appended([look_at(str(tmp_path), ["*.log"], {file.name: offset - 7}, 10**6)])
    assert again == [{file.name: file.read_bytes()[-7:]}]
    assert stays.read_appended([look_at(str(tmp_path), ["*.log"], {file.name: None}, 9)]) == [{}]
    cut = stays.read_appended([look_at(str(tmp_path), ["*.log"], {}, 5000)])
    assert cut == [{file.name: file.read_bytes()[:5000]}]


@pytest.mark.parametrize("transport", ["local"], indirect=True)
def test_a_person_whose_shells_expand_no_patterns_sees_news(monkeypatch, stays, tmp_path):
    monkeypatch.setenv("SHELLOPTS", "noglob")
    append(tmp_path / "a.log", b"one\n")
    looks = [look_at(str(tmp_path), ["*.log"], {}, 100)]
    assert stays.read_appended(looks) == [{"a.log": b"one\n"}]


def test_a_file_that_was_replaced_is_looked_at_as_it_is_now(stays, tmp_path):
    first, looks = ([look_at(str(tmp_path), ["*.log"], {"a.log": at}, 100)] for at in (0, 4))
    file = tmp_path / "a.log"
    append(file, b"one\n")
    assert stays.read_appended(first) == [{"a.log": b"one\n"}]
    (tmp_path / "new").write_bytes(b"one\ntwo\n")
    (tmp_path / "new").replace(file)
    assert stays.read_appended(looks) is None  # another kind of look brings it
    assert stays.read_appended(looks) == [{"a.log": b"two\n"}]


def test_many_folders_are_one_question(stays, tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
        append(tmp_path / name / "1.log", name.encode())
    looks = [look_at(str(tmp_path / name), ["*.log"], {}, 100) for name in ("a", "none", "c", "b")]
    assert stays.read_appended(looks) == [
        {"1.log": b"a"}, {}, {"1.log": b"c"}, {"1.log": b"b"},
    ]  # fmt: skip


def test_texts_come_with_the_clock_and_what_is_missing_is_told(stays, tmp_path):
    (tmp_path / "a 'b").write_text("one\ntwo")
    paths = [str(tmp_path / name) for name in ("a 'b", "none", "no/such/folder/file")]
    now, found = read_clock_and_texts(stays, paths)
    assert abs(now - Path(tmp_path, "a 'b").stat().st_mtime) < 120
    assert found == {paths[0]: b"one\ntwo\n", paths[1]: None, paths[2]: None}


@pytest.mark.parametrize(
    ("script", "code", "out", "error"),
    [
        ("echo out; echo bad >&2; exit 3", 3, b"out\n", "bad"),
        (r"printf '\377\0\n.\n=\n'; false", 1, b"\xff\0\n.\n=\n", ""),
        ("cat; echo $# $(date +%Y); cd /; set -e; set -- one", 0, b"0 2026\n", ""),
        ("kill -9 $(exec sh -c 'echo $PPID')", 137, b"", ""),
        ("if", 2, b"", "syntax error"),
    ],
)
def test_a_script_ends_as_it_would_with_a_session_of_its_own(stays, script, code, out, error):
    for _ in range(2):
        stays.read_texts([])
        end = ask(stays, script)
        out = out.replace(b"2026", str(date.today().year).encode())
        assert (end.exit_code, end.stdout) == (code, out)
        assert error in end.error_text
    assert stays.is_there


def test_a_script_that_hangs_is_killed_and_told_as_without_this_shell(stays, tmp_path, wait_until):
    script = f"echo $$ >{shlex.quote(str(tmp_path / 'shell'))}; echo half; sleep 60"
    said = []
    stays.run(":")
    for is_there in (False, True):
        assert stays.is_there is is_there
        with pytest.raises(TransportTimeout) as told:
            ask(stays, script, timeout_s=2.0)
        said.append((told.value.message, told.value.hint))
        shell = Path("/proc", (tmp_path / "shell").read_text().strip())
        wait_until(lambda: not shell.exists())  # noqa: B023
        stays.read_texts([])
    assert said[0] == said[1]
    assert ask(stays, "echo hello").text == "hello\n"


def test_a_script_whose_shell_is_killed_runs_again(stays, tmp_path):
    stays.read_texts([])
    file = shlex.quote(str(tmp_path / "killed"))
    script = f"[ -e {file} ] || {{ touch {file}; kill -9 {shell_of(stays)}; exit; }}; echo end"
    assert ask(stays, script).text == "end\n"


def test_a_shell_that_is_killed_is_started_again_and_ends_with_its_client(
    stays, tmp_path, wait_until
):
    append(tmp_path / "1.log", b"one\n")
    os.kill(shell_of(stays), signal.SIGKILL)
    found, offset = [], 0
    for content in (b"", b"two\n", b"three\n"):
        append(tmp_path / "1.log", content)
        news = read_appended(stays, str(tmp_path), ["*.log"], {"1.log": offset}, 100)
        found.append(news.get("1.log", b""))
        offset += len(found[-1])
    assert b"".join(found) == b"one\ntwo\nthree\n"
    assert stays.is_there
    shell = Path(f"/proc/{shell_of(stays)}")
    assert shell.exists()
    stays.leave()
    wait_until(lambda: not shell.exists())


@pytest.mark.parametrize("bash", ["", "#!/bin/sh\nexit 0\n", "#!/bin/sh\necho bad; sleep 0.1\n"])
def test_without_a_fit_bash_looks_are_as_they_were(tmp_path, bash):
    programs = tmp_path / "bin"
    programs.mkdir()
    if bash:
        (programs / "bash").write_text(bash)
        (programs / "bash").chmod(0o755)

    class Bare(LocalTransport):
        def start(self, script, **how):
            path = f"PATH={shlex.quote(str(programs))}" + (":$PATH" if bash else "")
            lacks_bash = "bash --noprofile" in script
            return super().start(f"{path}\n{script}" if lacks_bash else script, **how)

    stays = Resident(Bare())
    append(tmp_path / "1.log", b"one\n")
    for _ in range(5):
        assert read_appended(stays, str(tmp_path), ["*.log"], {}, 100) == {"1.log": b"one\n"}
        assert read_clock_and_texts(stays, [str(tmp_path / "1.log")])[1] == {
            str(tmp_path / "1.log"): b"one\n"
        }
    assert not stays.is_there


@pytest.mark.parametrize("kind", ["ssh", "openssh"])
def test_where_one_session_is_granted_other_commands_get_it(ssh_setup, lasting, tmp_path, kind):
    with running_sshd(tmp_path / "server", [ssh_setup.key], "MaxSessions 1") as server:
        config = block(ssh_setup, "narrow", server, known=server.known_by(tmp_path / "known"))
        if kind == "openssh":
            transport = lasting("narrow", config)
        else:
            transport = ssh_setup.open("narrow", config=config)
        stays = Resident(transport)
        append(tmp_path / "1.log", b"one\n")
        for _ in range(3):
            assert read_appended(stays, str(tmp_path), ["*.log"], {}, 100) == {"1.log": b"one\n"}
            assert stays.run("echo hello").text == "hello\n"
        assert not stays.is_there
        stays.close()
