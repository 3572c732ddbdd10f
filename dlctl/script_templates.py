"""Render the shell scripts in `templates/`. The filter `sh` quotes what is put into a line.

Templates that may be a user's are compared with the shell's grammar, where this machine has bash.
"""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import ManifestError
from dlctl.package_data import data_path

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def render_script(name: str, **values: object) -> str:
    """Return the text of a template, which knows the names in `dlctl.contract`, too."""
    return _environment().get_template(name).render(contract=contract, **values)


def set_up_lines(environment: object, where: str = "environment") -> str:
    """Return the shell lines that bring a shell into an environment of a site.

    A module that can't be loaded, or a line of `setup` that fails, calls `fail SENTENCE HINT`,
    which the script has to define.

    Args:
        environment: Has `modules`, `setup` and `variables`.
        where: Its key in the site's file.
    """
    return render_script("environment.sh.j2", environment=environment, where=where)


class TemplateFault(Exception):
    """A template that may be somebody's own can't be rendered."""


def render_template(path: Path, **values: object) -> str:
    """Return the text of a data store's template, which may be the user's own.

    Raises:
        ManifestError: the template is wrong, or names a value that there is none of.
    """
    try:
        source = path.read_text(encoding="utf-8")
        return check_shell(render_sandboxed(source, contract=contract, **values), source)
    except (TemplateFault, OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: {error}", hint="see docs/stores.md") from error


def render_sandboxed(text: str, **values: object) -> str:
    """Return the text of a template that may be anybody's: it can read the values, and no more.

    Raises:
        TemplateFault: the line, and what is wrong there.
    """
    from jinja2 import TemplateError

    try:
        return _sandboxed(text).render(**values)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise TemplateFault(f"{f'line {line}: ' if line else ''}{error.message}") from None
    except Exception as error:  # a template can raise anything
        raise TemplateFault(f"{type(error).__name__}: {error}") from None


@functools.lru_cache(maxsize=64)
def _sandboxed(text: str) -> Template:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    sandbox = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        # The shell's `${#word}` is no comment.
        comment_start_string="{=#", comment_end_string="#=}",
    )  # fmt: skip
    _add_filters(sandbox)
    return sandbox.from_string(text)


def check_shell(script: str, source: str) -> str:
    """Return a script that bash can read; a machine without bash takes any.

    Args:
        source: The template that the script was rendered from.

    Raises:
        TemplateFault: the line, of the template if that can be told, and what bash says.
    """
    fault = _fault_for_bash(script)
    if not fault:
        return script
    found = re.search(r"line (\d+): (.*)", fault)
    if found is None:
        raise TemplateFault(f"bash can't read it: {fault}")
    raise TemplateFault(f"{_line(int(found[1]), script, source)}: bash can't read it: {found[2]}")


@functools.lru_cache(maxsize=64)
def _fault_for_bash(script: str) -> str:
    """Return what bash has against a script: nothing if it can read it, or if there is no bash."""
    if (bash := shutil.which("bash")) is None:
        return ""
    done = subprocess.run(
        [bash, "-O", "extglob", "-n"], input=script.encode(), capture_output=True,
        env={"LC_ALL": "C"}, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return ""
    fault = done.stderr.decode(errors="replace").strip().partition("\n")[0]
    return fault or f"exit code {done.returncode}"


def _line(number: int, script: str, source: str) -> str:
    """Return where a line of a script is in its template."""
    lines, own = script.splitlines(), source.splitlines()
    if number > len(lines):  # something that was begun does not end
        return f"line {len(own)}"
    same = [n for n, line in enumerate(own, 1) if line.strip() == lines[number - 1].strip()]
    if len(same) == 1 or len(lines) == len(own):
        return f"line {same[0] if len(same) == 1 else number}"
    return f"line {number} of what it becomes"


def _add_filters(environment: Environment) -> None:
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["comment"] = _comment


def _comment(value: object) -> str:
    """Return text on one line; sbatch would read `#SBATCH` on a further line as an option."""
    return printable(" ".join(str(value).split()))


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - shell text, not HTML; the filter `sh` quotes
        loader=FileSystemLoader(data_path("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    _add_filters(environment)
    return environment
