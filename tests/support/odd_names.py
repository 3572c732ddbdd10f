"""Names of files that scripts, lists and archives easily get wrong."""

import os

ODD_NAMES = [
    "plain", "a b", " lead", "it's", '"q"', "$(id)", "`id`", "new\nline", "back\\slash", "\\n",
    "naïve ☃", "\udcff\udcfe", "-rf", "!x !!", "*",
]  # fmt: skip


def write_odd_names(folder):
    """Write a file of each name, which holds its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ODD_NAMES:
        (folder / name).write_bytes(os.fsencode(name))
    return folder
