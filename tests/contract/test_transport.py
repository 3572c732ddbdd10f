from __future__ import annotations

import os
import pwd
import secrets
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from odd_names import ODD_NAMES

from dlctl.errors import TransportTimeout
from dlctl.site_admin.setup import under_bash
from dlctl.transport.local import LocalTransport
from dlctl.transport.openssh import OpensshTransport


@pytest.fixture
def nap():
    """A sleep that no other test, and no earlier run, has started."""
    return f"sleep 1000.{secrets.randbelow(10**9):09}"


def runs(word: str) -> bool:
    listing = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True)
    return any(word in line and line[0] != "Z" for line in listing.stdout.splitlines())


@pytest.fixture
def ends(wait_until):
    """Wait until no process with this word in its arguments runs."""
    return lambda word: wait_until(lambda: not runs(word), 60, what=f"the end of {word}")


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("echo out; echo err >&2; exit 3", (3, b"out\n", b"err\n")), ("", (0, b"", b"")),
        ("cat <<'E'\n$x 'y\nE\necho é # done\n\n\n", (0, "$x 'y\né\n".encode(), b"")),
        ("cat; echo end", (0, b"end\n", b"")),  # no input is an end of input
    ],
)  # fmt: skip
def test_output_and_exit_code_are_the_scripts_own(transport, script, end):
    found = transport.run(script)
    assert (found.exit_code, found.stdout, found.stderr) == end


def test_odd_arguments_travel_unharmed(transport):
    words = ["", *ODD_NAMES]
    end = transport.run(f"printf '%s\\0' {shlex.join(words)}")
    assert os.fsdecode(end.stdout).split("\0") == [*words, ""]


def test_what_a_user_exports_changes_no_script(monkeypatch):
    """An exported CDPATH made `cd` print: `models create` said that it could not store."""
    monkeypatch.setenv("CDPATH", "/:/tmp")
    monkeypatch.setenv("SHELLOPTS", "errexit:noglob:xtrace")
    script = "cd tmp 2>/dev/null || cd /tmp\nfalse\necho /et[c] ${CDPATH-unset}"
    for each in (script, under_bash(script)):
        end = LocalTransport().run(each)
        assert (end.exit_code, end.stdout, end.stderr) == (0, b"/etc unset\n", b"")


def test_errors_are_read_whatever_language_a_site_speaks(monkeypatch, tmp_path):
    """A full disk was not recognized where the login shell's locale is German."""
    if which("localedef"):
        make = ["localedef", "-i", "de_DE", "-f", "UTF-8", tmp_path / "de_DE.UTF-8"]
        subprocess.run(make, capture_output=True, check=False)
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    full = ["sh", "-c", "cat /dev/zero >/dev/full"]
    spoken = subprocess.run(full, capture_output=True, text=True, check=False).stderr
    if "Speicherplatz" not in spoken:
        pytest.skip("this machine can't speak German: it lacks localedef, or translations")
    for script in (shlex.join(full), under_bash(shlex.join(full))):
        assert "No space left on device" in LocalTransport().run(script).error_text
    assert "ü" in LocalTransport().run("printf %s ü | head -c 2").text


def test_a_long_script(transport):
    script = "\n".join(f"x={i} # {'é' * 20}" for i in range(4000)) + "\necho $x"
    assert transport.run(script).text == "3999\n"


def test_a_syntax_error_is_an_answer(transport):
    end = transport.run("echo before\nif")
    assert end.exit_code != 0
    assert "yntax error" in end.error_text
    assert end.stdout == b""


def test_a_nul_is_refused_before_anything_runs(transport):
    with pytest.raises(ValueError, match="NUL"):
        transport.run("echo a\0b")


def test_standard_input_reaches_the_script_byte_for_byte(transport):
    data = bytes(range(256)) * 10
    assert transport.run("cat", stdin=data).stdout == data
    assert transport.run("cat", stdin=(b"%d," % i for i in range(5))).stdout == b"0,1,2,3,4,"
    assert transport.run("exit 7", stdin=bytes(8 << 20)).exit_code == 7, "nobody reads it"


def test_large_input_and_output_at_once(transport):
    data = os.urandom(1 << 20) * 12
    end = transport.run("cat; head -c 3000000 /dev/zero | tr '\\0' e >&2", stdin=data)
    assert end.stdout == data
    assert end.stderr == b"e" * (64 * 1024)


def test_an_error_in_the_input_is_raised_and_ends_the_script(transport, nap, ends):
    def broken():
        yield b"x"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        transport.run(f"cat >/dev/null; {nap}", stdin=broken())
    ends(nap)


def test_a_time_limit_leaves_nothing_behind(transport, nap, ends):
    with pytest.raises(TransportTimeout, match=r"did not end within 0\.4 s"):
        transport.run(f"{nap} & {nap}; echo", timeout_s=0.4)
    ends(nap)
    assert transport.run("echo alive").text == "alive\n"
    assert transport.run("kill -9 $$").exit_code in (137, 255)


def test_a_process_left_by_a_script_does_not_delay_the_answer(transport):
    if isinstance(transport, OpensshTransport):
        # OpenSSH's client passes the exit code on only when the output has ended.
        assert transport.run("sleep 1 & echo x", timeout_s=60).stdout == b"x\n"
        return
    process = transport.start("sleep 300 & echo $!")
    left = int(process.stdout.readline())
    process._streams.exit_code(60)
    assert process.wait(0.2).exit_code == 0
    os.kill(left, signal.SIGKILL)


def test_streams_can_be_written_and_read_in_turns(transport):
    process = transport.start('while read line; do echo "<$line>"; done; exit 4')
    for word in (b"one", b"two"):
        process.stdin.write(word + b"\n")
        assert process.stdout.read(6) == b"<%s>\n" % word
    assert process.wait(60).exit_code == 4


def test_killing_a_started_script(transport, nap, ends):
    process = transport.start(f"echo on; {nap}")
    assert process.stdout.read(3) == b"on\n"
    process.kill()
    process.kill()
    ends(nap)


def test_a_stream_without_progress_times_out(transport, nap, ends):
    process = transport.start(nap, idle_timeout_s=0.3)
    with pytest.raises(TransportTimeout):
        process.stdout.read(1)
    process.kill()
    ends(nap)


def test_scripts_start_in_the_home_directory(transport):
    """Here it is the user's choice, HOME; an SSH server asks passwd."""
    is_here = isinstance(transport, LocalTransport)
    home = Path.home() if is_here else pwd.getpwuid(os.getuid()).pw_dir
    assert transport.run("pwd").text.strip() == str(home)


def test_the_script_is_in_no_argument_list(transport):
    process = transport.start("echo on; read x; : secret-word-4711")
    process.stdout.read(3)
    assert not runs("secret-word-4711")
    assert process.wait(60).exit_code in (0, 1)


def test_local_imports_no_paramiko():
    code = (
        "import sys; from dlctl.transport import open_transport;"
        "from dlctl.sites.files import TransportSettings;"
        "open_transport(TransportSettings(kind='local')).run('true');"
        "sys.exit('paramiko' in sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
