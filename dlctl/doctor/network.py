"""The links from this machine to a shell at a site: name, TCP, host key, log-in, shell."""

from __future__ import annotations

import shutil
import socket
import time
from typing import TYPE_CHECKING

from dlctl.doctor.chain import BROKEN, OK, WARN, Chain
from dlctl.errors import AuthError, HostKeyError, RemoteCommandError, TransportError
from dlctl.site_admin.setup import by_kind
from dlctl.units import format_span

if TYPE_CHECKING:
    from dlctl.sites.files import Site
    from dlctl.transport import Transport
    from dlctl.transport.ssh_config import Target

LIMIT_S = 10.0
"""How long one link of the network may take."""
_BANNER = b"SSH-"
_CLOCK_WARN_S = 30.0
_FACTS = """\
printf 'dlctl-%s\\n' "clock $(date +%s)" "shell ${SHELL:-}" "host $(uname -n)"
for word in awk sed find tar dd df du xargs sort; do
    command -v "$word" >/dev/null 2>&1 || echo "dlctl-lacks $word"
done"""
_TO_SHELL = ("host key", "log-in", "shell", "clock")


def check_way(chain: Chain, site: Site, transport: Transport) -> None:
    """Try the way to a site's shell."""
    if site.transport.kind == "local":
        chain.add("connection", OK, "this machine: there is no connection")
        return _log_in(chain, transport, local=True)
    if site.transport.kind == "openssh" and shutil.which("ssh") is None:
        chain.skip("not tried: there is no ssh", "name", "tcp", "host key")
        chain.add(
            "log-in", BROKEN, "`kind: openssh` needs OpenSSH's client, which this machine lacks",
            "install openssh-client, or set `kind: ssh` in the site's file",
        )  # fmt: skip
    elif getattr(transport, "is_open", lambda: False)():
        chain.add("tcp", OK, "the connection that commands share is open")
    else:
        from dlctl.transport.ssh_config import target_of

        limit_s = min(LIMIT_S, site.transport.connect_timeout_s)
        chain.ask("name", [], lambda: _name(chain, target_of(site.transport)))
        chain.ask("tcp", ["name"], lambda: _tcp(chain, target_of(site.transport), limit_s))
    if why := chain.lacks(["log-in", "name", "tcp"]):
        return chain.skip(why, *_TO_SHELL)
    return _log_in(chain, transport, local=False)


def _by_way_of(target: Target) -> str:
    if target.jumps:
        return f"by way of {', '.join(target.jumps)}, which looks it up"
    command = target.option("proxycommand")
    return f"by ProxyCommand {command}" if command else ""


def _name(chain: Chain, target: Target) -> None:
    if way := _by_way_of(target):
        return chain.add("name", OK, f"{target.hostname} is reached {way}")
    try:
        found = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return chain.add("name", BROKEN, f"{target.hostname} has no address: {error.strerror}",
                         "check host in the site's file, HostName in ~/.ssh/config, and the "
                         "network or VPN")  # fmt: skip
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    return chain.add("name", OK, f"{target.hostname} is {', '.join(addresses[:3])}")


def _tcp(chain: Chain, target: Target, limit_s: float) -> None:
    """Connect, and wait for the first words: a server may accept and say nothing."""
    if _by_way_of(target):
        return chain.add("tcp", OK, "tried together with the log-in")
    place, port = f"{target.hostname}, port {target.port}", "check the port in the site's file"
    try:
        with socket.create_connection((target.hostname, target.port), limit_s) as connection:
            line = _first_line(connection, limit_s)
    except OSError as error:
        late = isinstance(error, TimeoutError)
        why = f"no answer in {limit_s:g} s" if late else error.strerror or error
        fix = f"{port}, a firewall, and whether a VPN is needed"
        return chain.add("tcp", BROKEN, f"{place}: {why}", fix)
    if line is None:
        fix = "its sshd hangs or is overloaded: try again later, and tell its administrators"
        evidence = f"{place} accepts connections and says nothing in {limit_s:g} s"
        return chain.add("tcp", BROKEN, evidence, fix)
    if not line:
        return chain.add("tcp", BROKEN, f"{place} ends connections at once",
                         "it may limit or ban new connections (MaxStartups, fail2ban): wait some "
                         "minutes before you try again")  # fmt: skip
    if not line.startswith(_BANNER):
        return chain.add("tcp", BROKEN, f"{place} is no SSH server: it says {line[:60]!r}", port)
    return chain.add("tcp", OK, f"{place} answers: {line.decode(errors='replace')}")


def _first_line(connection: socket.socket, limit_s: float) -> bytes | None:
    """Return the first line; None: it is silent, empty: it hung up."""
    deadline, line = time.monotonic() + limit_s, b""
    while b"\n" not in line:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            chunk = connection.recv(1024)
        except TimeoutError:
            return None
        except OSError:
            return b""
        if not chunk:
            break
        line += chunk
    return line.partition(b"\n")[0].strip()


def _log_in(chain: Chain, transport: Transport, *, local: bool) -> None:
    """Run one script: what it ends with says which link holds."""
    asked_at, facts, fault = time.time(), dict[str, list[str]](), None
    try:
        process = transport.start(_FACTS, idle_timeout_s=2 * LIMIT_S)
        facts = by_kind(process.wait(2 * LIMIT_S).text)
    except TransportError as error:
        fault = error
    if not local and isinstance(fault, AuthError | RemoteCommandError | None):
        chain.add("host key", OK, "it is the known one")
    if not local and isinstance(fault, RemoteCommandError | None):
        on = "" if fault else f", on {facts.get('host', ['?'])[0]}"
        chain.add("log-in", OK, transport.name + on)
    if fault:
        broken = {HostKeyError: "host key", RemoteCommandError: "shell"}.get(type(fault), "log-in")
        chain.add(broken, BROKEN, fault.message, fault.hint)
        return chain.skip(f"not tried: {broken} is broken", *_TO_SHELL[2 if local else 0 :])
    check_shell(chain, facts, process.noise)
    if local:
        return None
    clock = facts.get("clock", [""])[0]
    if not clock.isdecimal():
        return chain.add("clock", WARN, "the site does not say what time it is", "")
    return add_clock(chain, "clock", "the login node", asked_at - 1 - int(clock),
                     time.time() - int(clock))  # fmt: skip


def check_shell(chain: Chain, facts: dict[str, list[str]], noise: bytes) -> None:
    """Add whether the shell has what dlctl needs, and what it prints before each command."""
    shell = facts.get("shell", [""])[0] or "an unknown login shell"
    if lacks := facts.get("lacks"):
        return chain.add("shell", BROKEN, f"{shell}; the site has no {', '.join(lacks)}",
                         "ask its administrators for the usual POSIX tools")  # fmt: skip
    if first := noise.decode(errors="replace").strip().partition("\n")[0][:60]:
        return chain.add("shell", WARN, f"{shell} prints {len(noise)} bytes before each "
                         f"command ({first!r}), which dlctl skips and scp does not",
                         "print only in interactive shells: `[ -t 1 ] && echo …`, or `if ($?prompt)"
                         " echo …` in csh")  # fmt: skip
    return chain.add("shell", OK, f"{shell} starts /bin/sh")


def add_clock(chain: Chain, name: str, where: str, early_s: float, late_s: float) -> None:
    """Add how far a clock is from this machine's.

    Args:
        early_s: How much this machine's clock was ahead when it asked.
        late_s: The same, when it had the answer.
    """
    off_s, order = (early_s, "behind") if early_s > 0 else (-late_s, "ahead of")
    if off_s <= _CLOCK_WARN_S:
        verb = "agree" if ", " in where else "agrees"
        return chain.add(name, OK, f"{where} {verb} with this machine")
    evidence = f"the clock of {where} is {format_span(off_s)} {order} this machine's"
    fix = "set the wrong one by NTP: dlctl's ages and times left are wrong by as much"
    return chain.add(name, WARN, evidence, fix)
