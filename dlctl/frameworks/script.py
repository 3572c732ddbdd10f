"""Turn a framework's folder and a manifest into a `Recipe` with the text of train.sh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass

from dlctl.contract import Environment, Recipe
from dlctl.contract.programs.options import as_options
from dlctl.errors import ManifestError, PlanError
from dlctl.frameworks.files import FOLDER
from dlctl.frameworks.model import FrameworkFolder
from dlctl.manifest.model import Manifest
from dlctl.manifest.parts import FrameworkSection
from dlctl.package_data import data_path
from dlctl.script_templates import TemplateFault, check_shell, render_sandboxed, set_up_lines

_PIP_INSTALL = re.compile(r"\bpip3?\s+(?:\S+\s+)*?install\b")
_ONLY_PYTHON = re.compile(r"\s*(?:exec\s+)?python3?\s")
"""How a command begins that the node's own Python runs, rather than a container's or a module's."""


@dataclass(frozen=True)
class Surroundings:
    """The surroundings of a program when it runs."""

    environment: Environment | None = None
    """The site's environment of the program; None: the nodes' own Python."""
    binds: tuple[str, ...] = ()
    """The folders of the nodes that a container must see."""
    fixed_paths: tuple[str, ...] = ()
    """The paths of the service's containers that the program names."""


def make_recipe(
    manifest: Manifest, framework: FrameworkFolder, around: Surroundings = Surroundings(),
    searched: Collection[str] = (),
) -> Recipe:  # fmt: skip
    """Return how the learners of a manifest run.

    Args:
        searched: The arguments of which each trial of a search has values of its own.

    Raises:
        ManifestError: train.sh.j2 can't be rendered.
        PlanError: the framework starts its own processes, and there are several learners for it.
    """
    section, settings = manifest.framework, framework.settings
    _check_start(manifest, framework)
    loop = settings.loop if section.job is not None else None
    command = section.command or ""
    installs = _PIP_INSTALL.search(command) is not None
    if loop:  # dlctl's own program runs in the environment, which the whole job has
        around = Surroundings()
    judged = section.job is not None or (_ONLY_PYTHON.match(command) and not installs)
    is_shell = not loop or loop.unless is not None
    return Recipe(
        origin=f"{framework.name} ({framework.place})",
        script=train_script(manifest, framework, around, searched) if is_shell else "",
        loop=loop is not None,
        loop_unless=loop.unless if loop else None,
        loop_module=f"{FOLDER}/{framework.name}/{loop.module}" if loop and loop.module else None,
        signal=settings.signal,
        modules=list(settings.modules) if judged else [],
        install=settings.install,
        addresses=settings.addresses,
        fixed_paths=list(around.fixed_paths),
        searched=list(searched),
    )


def checkpoint_files(manifest: Manifest, framework: FrameworkFolder) -> str | None:
    """Return which files are the framework's checkpoints; None for those of the built-in loop."""
    if manifest.framework.job is not None and framework.settings.loop is not None:
        return None
    return framework.settings.checkpoint.files


def _check_start(manifest: Manifest, framework: FrameworkFolder) -> None:
    start = framework.settings.start
    if start == "node" and manifest.nodes is None and manifest.learners > 1:
        raise PlanError(
            f"{framework.name} starts the processes of a node itself, and {manifest.learners} "
            "learners may share one",
            hint="set nodes and learners_per_node: 1; a learner then has a node's CPUs and GPUs",
        )
    if start == "node" and manifest.nodes != manifest.learners and manifest.learners > 1:
        raise PlanError(
            f"{framework.name} starts the processes of a node itself, and a node has "
            f"{manifest.fixed_per_node} learners",
            hint="set learners_per_node: 1; a learner then has a node's CPUs and GPUs",
        )
    if start == "own" and manifest.learners > 1:
        raise PlanError(
            f"{framework.name} starts all its processes itself, and there are "
            f"{manifest.learners} learners",
            hint="set learners: 1; the one learner starts the others",
        )


def train_script(
    manifest: Manifest, framework: FrameworkFolder, around: Surroundings = Surroundings(),
    searched: Collection[str] = (),
) -> str:  # fmt: skip
    """Return the text of train.sh.

    Raises:
        ManifestError: the template can't be rendered, or bash can't read the command or the rest.
    """
    section, environment = manifest.framework, around.environment
    if section.command is not None:
        _check_command(manifest, section.command)
    arguments = {k: v for k, v in section.arguments.items() if k not in searched}
    options = " ".join([as_options(arguments), *(['"$@"'] if searched else [])]).strip()
    program = section.command or _program(section, framework, options)
    values = {
        "name": framework.name, "title": framework.settings.title, "version": section.version,
        "program": program.rstrip("\n"), "job": section.job, "arguments": arguments,
        "options": options, "signal": framework.settings.signal,
    }  # fmt: skip
    frame = (data_path(FOLDER) / "train.sh.j2").read_text(encoding="utf-8")
    try:
        body = render_sandboxed(framework.template, **values)
        check_shell(body, framework.template)
        installs = _PIP_INSTALL.search(body) is not None
        return render_sandboxed(
            frame, title=values["title"], body=body.strip("\n"), installs=installs,
            before=_before(around), environment=environment, set_up=_set_up(environment),
            binds=around.binds, fixed_paths=around.fixed_paths, searched=searched,
            **_service_paths(manifest),
            show_paths=(data_path(FOLDER) / "fixed_paths.sh").read_text(encoding="utf-8"),
        )  # fmt: skip
    except (TemplateFault, OSError) as fault:
        raise ManifestError(
            f"{framework.path / 'train.sh.j2'}: {fault}",
            hint=f"it knows {', '.join(values)}, and the filter sh",
        ) from None


def _check_command(manifest: Manifest, command: str) -> None:
    try:
        check_shell(command, command)
    except TemplateFault as fault:
        place = manifest._places.by_key.get("framework.command", "manifest")
        raise ManifestError(f"{place}: framework.command: {fault}") from None


def _before(around: Surroundings) -> bool:
    """Return whether anything happens before the program's own shell."""
    own = around.environment
    steps = own is not None and (own.modules or own.setup or own.variables or own.container)
    return bool(around.fixed_paths or steps)


def _set_up(environment: Environment | None) -> str:
    return set_up_lines(environment, f"environments.{environment.name}") if environment else ""


def _service_paths(manifest: Manifest) -> dict[str, str]:
    """Return where the service's containers show data and results: those of the first store."""
    sources = [store for store in manifest.data_stores if store.training_data]
    targets = [store for store in manifest.data_stores if store.training_results]
    data, results = (
        f"{root}/{part.container.strip('/')}" if part else ""
        for root, part in (
            ("/mnt/data", sources[0].training_data if sources else None),
            ("/mnt/results", targets[0].training_results if targets else None),
        )
    )
    several = len(sources) > 1  # then DATA_DIR has a folder for each
    return {"data_path": data, "result_path": results, "data_id": sources[0].id if several else ""}


def _program(section: FrameworkSection, framework: FrameworkFolder, options: str) -> str:
    """Return the command line that runs `job`."""
    job = framework.settings.job
    words = ["python", shlex.quote(str(section.job))]
    if job is not None and job.arguments == "file":
        return " ".join([*words, '"$DLCTL_ARGUMENTS"'])
    return " ".join([*words, options]).rstrip()
