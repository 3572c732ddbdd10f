"""What schemathesis is given to ask about: trainings that exist, as $FUZZED tells (JSON).

It loads this module by its name, in a process of its own.
"""

import json
import os

import schemathesis

KNOWN = json.loads(os.environ["FUZZED"])
"""By the part of a path: what it may be; `doomed` are trainings that may be deleted."""
_turns: dict[str, int] = {}


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Let two of three requests be about something that exists."""
    for name in path_parameters or ():
        kind = "search" if "/searches/" in context.operation.path and name == "id" else name
        if context.operation.method.upper() == "DELETE":
            kind = "doomed" if name == "id" else "none"
        known = KNOWN.get(kind, [])
        turn = _turns[kind] = _turns.get(kind, 0) + 1
        if known and turn % 3:
            path_parameters[name] = known.pop() if kind == "doomed" else known[turn % len(known)]
    return path_parameters
