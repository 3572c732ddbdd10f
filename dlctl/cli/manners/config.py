"""`dlctl config`: the user's settings."""

from __future__ import annotations

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON


def complete_settings(incomplete: str) -> list[str]:
    """Return the settings with this beginning, for shell completion."""
    from dlctl.settings import SETTINGS

    return [name for name in SETTINGS if name.startswith(incomplete)]


NAME = typer.Argument(None, metavar="NAME", autocompletion=complete_settings,
                      show_default=False, help="A setting; all by default.")  # fmt: skip
VALUE = typer.Argument(None, metavar="VALUE", show_default=False, help="Its new value.")


def config(
    name: str | None = NAME, value: str | None = VALUE,
    unset: bool = typer.Option(False, "--unset", help="Take the setting away."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show your settings and where they come from, or change one.

    Example: dlctl config site mycluster
    """
    from dlctl.settings import SETTINGS, change, setting

    if (value is not None or unset) and name is None:
        raise typer.BadParameter("name the setting that is to change")
    if value is not None and unset:
        raise typer.BadParameter("either a value or --unset")
    if name is not None and (unset or value is not None):
        if name == "site" and value is not None:
            from dlctl.sites.files import find_site

            find_site(value)  # refuses a name that is no site's
        change(name, value)
    known = {each: setting(each) for each in ([name] if name else SETTINGS)}
    values = [
        {"name": each, "value": found, "from": source, "meaning": SETTINGS[each].text}
        for each, (found, source) in known.items()
    ]
    rows = [[each["name"], each["value"], each["from"], each["meaning"]] for each in values]
    columns = ["setting", "value", "from", "meaning"]
    output.report(values, as_json, lambda _: output.table(columns, rows))
