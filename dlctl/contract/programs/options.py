"""A job's arguments as the options of a command line."""

from __future__ import annotations

import json
import shlex
from typing import Any

from dlctl.contract.models import MODEL_PREFIX


def as_options(arguments: dict[str, Any]) -> str:
    """Return arguments as options, quoted: `{lr: 0.1, big: true}` is `--lr 0.1 --big`.

    false and null leave an option out; a list repeats its values behind the option; a mapping
    becomes JSON. A stored model's weights are the file that the job has.
    """
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        words.append(shlex.quote(f"--{name}"))
        if name == "weights" and str(value).startswith(MODEL_PREFIX):
            words.append('"$WEIGHTS_FILE"')
        elif isinstance(value, list):
            words += [shlex.quote(str(each)) for each in value]
        elif value is not True:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            words.append(shlex.quote(text))
    return " ".join(words)
