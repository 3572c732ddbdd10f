"""Render the shell scripts in `templates/`. The filter `sh` quotes what is put into a line."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.errors import ManifestError
from dlctl.package_data import data_path

if TYPE_CHECKING:
    from jinja2 import Environment


def render_script(name: str, **values: object) -> str:
    """Return the text of a template, which knows the names in `dlctl.contract`, too."""
    return _environment().get_template(name).render(contract=contract, **values)


def render_template(path: Path, **values: object) -> str:
    """Return the text of a template that may be the user's own.

    Raises:
        ManifestError: the template is wrong, or names a value that there is none of.
    """
    from jinja2 import TemplateError

    try:
        source = path.read_text(encoding="utf-8")
        # The shell's `${#word}` is no comment.
        environment = _environment().overlay(comment_start_string="{=#", comment_end_string="#=}")
        return environment.from_string(source).render(contract=contract, **values)
    except (TemplateError, OSError, UnicodeDecodeError) as error:
        number = getattr(error, "lineno", None)
        line = f":{number}" if number else ""
        raise ManifestError(f"{path}{line}: {error}", hint="see docs/stores.md") from error


def _comment(value: object) -> str:
    """Return text on one line; sbatch would read `#SBATCH` on a further line as an option."""
    return "".join(c if c.isprintable() else " " for c in " ".join(str(value).split()))


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
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["comment"] = _comment
    return environment
