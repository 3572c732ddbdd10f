"""The links at a site without a job: folders, Python, packages, launcher, scheduler, accounting."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from dlctl.contract import StarterKind
from dlctl.contract.launchers import LAUNCHERS, LaunchRequest
from dlctl.doctor.chain import BROKEN, OK, WARN, Chain
from dlctl.files.site_folders import all_damaged, doubtful_above, see_space_lines
from dlctl.script_templates import set_up_lines
from dlctl.site_admin.discovery import ask
from dlctl.site_admin.draft import limits_of, no_partitions
from dlctl.site_admin.setup import by_kind, python_of, shell_environment, site_template, under_bash
from dlctl.units import format_bytes, several

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.scheduler.offer import FoundPartition, Offer
    from dlctl.sites.files import Partition, Site
    from dlctl.transport import Transport

Answered = dict[str, list[str]]
_NODE_TIMEOUT_S = 180.0
_MINIMUM_PYTHON = (3, 10)
_LITTLE_SPACE_BYTES = 5 * 1024**3
_FEW_INODES = 20_000


def check_at_site(chain: Chain, session: Session) -> None:
    """Try what a site has, as far as its login node tells; this changes nothing there."""
    site, transport, scheduler = session.site, session.transport, session.scheduler
    offers: list[Offer | None] = []
    chain.ask("inspection", ["log-in", "shell"],
              lambda: offers.append(scheduler.read_offer(ask(transport, [scheduler]))))  # fmt: skip
    if not offers:
        why = chain.lacks(["log-in", "shell", "inspection"]) or "not tried"
        return chain.skip(why, "root", "room", "python", "launcher", scheduler.kind, "accounting")
    offer = offers[0]
    chain.ask("environment", [], lambda: check_environment(chain, site, offer, transport))
    check_folders(chain, site, transport)
    if scheduler.allocates:
        return check_scheduler(chain, site, offer)
    if session.lack:
        return chain.add("scheduler", BROKEN, session.lack, "dlctl sites add NAME HOST: a cluster")
    return chain.add("scheduler", OK, "dlctl's own queue on that machine")


def node_script(site: Site) -> str:
    """Return the questions that need the site's modules and its Python. Pure."""
    head = {
        "root": site.root,
        "python": python_of(site) or "",
        "container": "yes" if site.environment.container else "",
        "mpirun": site.launcher.executable or "mpirun",
        "own_pythons": " ".join(_own_pythons(site).values()),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in head.items()]
    functions = [shell_environment(site.environment, [site.root]), _own_environments(site),
                 see_space_lines(), site_template("host_python.sh")]  # fmt: skip
    return under_bash("\n".join([*lines, *functions, site_template("check.sh")]))


def check_environment(chain: Chain, site: Site, offer: Offer | None, transport: Transport) -> None:
    """Try root, Python and launcher, as jobs will find them; it writes a probe, and removes it."""
    end = transport.run(node_script(site), timeout_s=_NODE_TIMEOUT_S)
    answers = by_kind(end.text)
    if "failed" in answers:
        hint = answers.get("hint", [""])[0]
        return chain.add("environment", BROKEN, answers["failed"][0], hint)
    if not ({"root", "unwritable"} & answers.keys()):
        why = end.last_error_line or f"exit code {end.exit_code}"
        return chain.add("environment", BROKEN, f"the site's own shell lines failed: {why}",
                         "check environment.setup in the site's file")  # fmt: skip
    check_root(chain, site, answers)
    _container(chain, site, answers)
    _room(chain, site, answers)
    _python(chain, site, answers)
    _environments(chain, site, answers)
    return _launcher(chain, site, offer.mpi_types if offer else [], answers)


def check_root(chain: Chain, site: Site, answers: Answered) -> None:
    """Add whether the root can be written, and has room."""
    if "unwritable" in answers:
        why = answers["unwritable"][0] or "can't be written"
        fix = "set root to a folder that you may write to"
        if "No space left" in why or "quota" in why.lower():
            option, _, folder = answers["room"][0].partition(" ")
            fix = f"make room there: df {option} {shlex.quote(folder)}"
        return chain.add("root", BROKEN, f"{site.root}: {why}", fix)
    kib, evidence = answers["root"][0], f"{site.root} is writable"
    if not kib.isdecimal():
        return chain.add("root", OK, evidence)
    evidence += f", {format_bytes(int(kib) * 1024)} free"
    state = WARN if int(kib) * 1024 < _LITTLE_SPACE_BYTES else OK
    return chain.add("root", state, evidence, "make room, or set root to a larger file system")


def _container(chain: Chain, site: Site, answers: Answered) -> None:
    """Try whether the root can be written inside, and what the supervisor runs on outside."""
    if not site.environment.container or "root" not in answers:
        return None
    words = " ".join(site.environment.container)
    if "not-started" in answers:
        why = answers["not-started"][0] or "no answer"
        fix = "correct environment.container in the site's file: it starts no program"
        return chain.add("container", BROKEN, f"{words}: {why}", fix)
    if "not-inside" in answers:
        why = answers["not-inside"][0] or "no answer"
        fix = (
            f"let the container see it: add --bind {shlex.quote(site.root)} to "
            "environment.container, before the image"
        )
        return chain.add("container", BROKEN, f"{words}: {site.root}: {why}", fix)
    if not (python := answers.get("host-python", [""])[0]):
        fix = "load a module that has one: environment.modules of the site's file"
        why = "there is no Python 3.8 or newer outside of it, which the supervisor needs"
        return chain.add("container", BROKEN, f"{words}: {why}", fix)
    return chain.add("container", OK, f"{words}: sees the root; outside: {python}")


def packages_fix(site: Site) -> str:
    """Return how the site's Python gets what it lacks."""
    if not site.environment.container:
        return f"dlctl sites setup {site.name}"
    return (
        "set environment.python to a Python inside the container, 3.10 or newer, with torch, "
        "mpi4py, h5py, numpy and watchdog, or add these to the image"
    )


def _python(chain: Chain, site: Site, answers: Answered) -> None:
    setup, python = packages_fix(site), site.environment.python
    if python is None:
        return chain.add("python", BROKEN, "environment.python is not set", setup)
    if "python" not in answers:
        return chain.add("python", BROKEN, f"{python} does not start on the site", setup)
    version = answers["python"][0]
    if tuple(map(int, version.split("."))) < _MINIMUM_PYTHON:
        evidence = f"{python} is {version}, 3.10 or newer is needed"
        return chain.add("python", BROKEN, evidence, setup)
    chain.add("python", OK, f"{version} ({python})")
    for kind, state, fix in (("package", OK, ""), ("missing", BROKEN, setup)):
        for line in answers.get(kind, []):
            name, _, evidence = line.partition(" ")
            chain.add(name, state, evidence, fix)
    _gpus(chain, site, answers)
    if "mpi" in answers:
        return chain.add("mpi library", OK, answers["mpi"][0])
    module = "" if site.environment.container else ", or load a module with an MPI"
    fix = f"{setup}{module}; one learner needs none"
    return chain.add("mpi library", WARN, answers.get("no-mpi", ["no answer"])[0], fix)


def _gpus(chain: Chain, site: Site, answers: Answered) -> None:
    """Try whether the nodes' GPUs, if there are any, can be measured."""
    there = any(limits.gpus_per_node for limits in site.partitions.values())
    if not there and answers.get("gpus", ["0"])[0] == "0":
        return None
    if "nvml" in answers:
        return chain.add("gpus", OK, f"can be measured (nvidia-ml-py {answers['nvml'][0]})")
    why = answers.get("no-nvml", ["no answer"])[0]
    options = shlex.join([*site.environment.pip, "nvidia-ml-py"])
    fix = f"on the site: {python_of(site)} -m pip install {options}"
    if not site.environment.pip:
        fix += (
            "; without a package index there, copy its wheel: pip download --no-deps nvidia-ml-py"
        )
    if site.environment.container:
        fix = "add the Python package nvidia-ml-py to the container's image"
    return chain.add("gpus", WARN, "can't be measured, because the nodes' Python lacks "
                     f"nvidia-ml-py: {why}", fix)  # fmt: skip


def _own_pythons(site: Site) -> dict[str, str]:
    """Return the Python of each of the site's environments whose Python is a file there."""
    return {
        name: each.python
        for name, each in site.environments.items()
        if each.python and not each.container and " " not in each.python
    }


def _own_environments(site: Site) -> str:
    """Return the shell function that tries the set-up of each of the site's environments."""
    tries = [
        '(\nfail() { printf \'dlctl-unusable %s: %s\\n\' "$1" "$2" >&3; exit 1; }\n'
        f"{set_up_lines(each, f'environments.{name}')})"
        for name, each in site.environments.items()
    ]
    return "\n".join(["own_environments() {", *tries, ":", "}"])


def _environments(chain: Chain, site: Site, answers: Answered) -> None:
    absent = {name: p for name, p in _own_pythons(site).items() if p in answers.get("absent", [])}
    wrong = [f"{each}: there is no {python}" for each, python in absent.items()]
    if wrong := [*wrong, *answers.get("unusable", [])]:
        evidence = "; ".join(wrong)
        chain.add("environments", BROKEN, evidence, "correct environments in the site's file")
    elif site.environments:
        found = [f"{each} ({', '.join(environment.frameworks)})"
                 for each, environment in site.environments.items()]  # fmt: skip
        chain.add("environments", OK, ", ".join(found))


def _launcher(chain: Chain, site: Site, mpi_types: list[str], answers: Answered) -> None:
    settings, path = site.launcher, answers.get("mpirun", [""])[0]
    request = LaunchRequest(1, 1, 1, settings.executable, settings.mpi, settings.extra)
    lack = LAUNCHERS[settings.kind].lack(request, mpi_types, path, site.name)
    if lack is not None:
        return chain.add("launcher", BROKEN if lack.fatal else WARN, lack.what, lack.hint)
    option = f" --mpi={settings.mpi}" if settings.mpi else ""
    return chain.add("launcher", OK, path if settings.kind == "mpirun" else settings.kind + option)


def _room(chain: Chain, site: Site, answers: Answered) -> None:
    """Look for a lack of inodes, which looks like a full disk that has room, and for the quota."""
    quota = "; ".join(answers.get("quota", [])[2:])
    evidence = f"quota: {quota}" if quota else "the site tells no quota (`quota -w`)"
    words = " ".join(answers.get("inodes", [])).split()
    if len(words) < 2 or not all(map(str.isdecimal, words)) or words[0] == "0":
        return chain.add("room", OK, evidence)
    state = WARN if int(words[1]) < _FEW_INODES else OK
    return chain.add("room", state, f"room for {int(words[1]):,} more files; {evidence}",
                     f"remove files there: dlctl du {site.name}")  # fmt: skip


def check_folders(chain: Chain, site: Site, transport: Transport) -> None:
    """Try whether others could replace what is in the root, and whether what was sent is whole."""

    def above() -> None:
        if users := doubtful_above(transport, site.root):
            fix = "these users could make your jobs run their code: trust them, or move root"
            chain.add("above the root", WARN, ", ".join(users), fix)

    def sent() -> None:
        if harmed := all_damaged(transport, site.root):
            fix = "a submission or a resumption that needs one of them sends it again"
            return chain.add("sent files", WARN, f"no longer what was sent: {several(harmed)}", fix)
        return chain.add("sent files", OK, "whole, and yours alone")

    chain.ask("above the root", [], above)
    chain.ask("sent files", ["root"], sent)


def check_scheduler(chain: Chain, site: Site, offer: Offer | None) -> None:
    """Compare the site's file with what its scheduler offers."""
    kind, settings, rest = site.scheduler.kind, site.scheduler, ("account", "next attempt")
    if offer is None:
        fix = "set scheduler.path in the site's file"
        chain.add(kind, BROKEN, "its commands were not found", fix)
        return chain.skip(f"not tried: {kind} is broken", "partitions", "accounting", *rest)
    if offer.path in (None, settings.path):
        chain.add(kind, OK, offer.title)
    else:
        chain.add(kind, BROKEN, f"{offer.title}, not on the PATH of a non-login shell",
                  f"set scheduler.path: {offer.path} in the site's file")  # fmt: skip
    if offer.partitions:
        _partitions(chain, site, {each.name: each for each in offer.partitions})
        account = settings.account
        if account and offer.accounts and account not in offer.accounts:
            fix = f"set scheduler.account to one of {', '.join(offer.accounts)}"
            chain.add("account", BROKEN, f"{account} is not one of yours", fix)
        else:
            chain.add("account", OK, account or offer.default_account or "none")
        _next_attempt(chain, site, offer.submit_hosts)
    else:
        fix = "try again once its controller answers"
        chain.add("partitions", BROKEN, no_partitions(offer), fix)
        chain.skip("not tried: partitions is broken", *rest)
    if settings.accounting and not offer.accounting:
        fix = "set scheduler.accounting: false if it never does"
        return chain.add("accounting", WARN, "does not answer", fix)
    return chain.add("accounting", OK, "answers" if offer.accounting else "not used")


def _partitions(chain: Chain, site: Site, there: dict[str, FoundPartition]) -> None:
    for name, limits in site.partitions.items():
        label, found = f"partition {name}", there.get(name)
        if found is None:
            fix = f"the site shows {', '.join(there)}; remove it from the site's file"
            chain.add(label, BROKEN, "does not exist (or is closed to you)", fix)
        elif found.available != "up":
            chain.add(label, WARN, f"is {found.available} now", "use another partition")
        elif over := _over(limits, limits_of(found)):
            chain.add(label, WARN, f"the file promises more: {over}", "correct the site's file")
        elif not (usable := found.count(usable=True)):
            fix = "use another partition, or wait"
            chain.add(label, WARN, "none of its nodes is usable now", fix)
        else:
            chain.add(label, OK, f"{usable} of {usable + found.count(usable=False)} nodes usable")
    new = [each.name for each in there.values() if each.available == "up"]
    if new := [name for name in new if name not in site.partitions] if site.partitions else []:
        chain.add("partitions", OK, f"the file does not name {', '.join(new)}")


def _over(file: Partition, real: Partition) -> str:
    written, there = (each.model_dump(by_alias=True) for each in (file, real))
    more = [
        f"{key} {value}, the site has {there[key]}"
        for key, value in written.items()
        if isinstance(value, int) and there[key] is not None and value > there[key]
        and key != "default"
    ]  # fmt: skip
    if file.gpu_type and real.gpu_type and file.gpu_type != real.gpu_type:
        more.append(f"gpu_type {file.gpu_type}, the site has {real.gpu_type}")
    return "; ".join(more)


def _next_attempt(chain: Chain, site: Site, submit_hosts: dict[str, str]) -> None:
    """Try whether who shall start the next attempt of a training can."""
    allowed = site.scheduler.next_attempt
    closed = [(name, submit_hosts[name]) for name in site.partitions if name in submit_hosts]
    if StarterKind.JOB not in allowed or not closed:
        return chain.add("next attempt", OK, f"is started by: {', '.join(allowed)}")
    (partition, nodes), *_ = closed
    return chain.add(
        "next attempt", WARN, f"jobs of the partition {partition} are submitted from {nodes} only, "
        "so that an ending job can't submit the next one", starters_fix(site, StarterKind.JOB),
    )  # fmt: skip


def starters_fix(site: Site, *closed: str) -> str:
    """Return what to set if some can't start the next attempt there."""
    rest = ", ".join(each for each in site.scheduler.next_attempt if each not in closed)
    return f"set scheduler.next_attempt: [{rest}] in the site's file"
