"""List the cache of a site, and empty it: `python -m learner.supervisor.cached`.

Its arguments are the site's root, and, to empty it, how many bytes may stay and for how many
seconds nobody may have used what goes.

The login side runs this on the login node. With a number it removes data that no training uses,
the longest unused first, until so many bytes are left.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from dlctl.contract.programs import answers
from learner.storage.eviction import evict, held, total_bytes


def main(arguments: list[str]) -> dict[str, Any]:
    """Return what the cache holds now, and what was removed."""
    root = Path(arguments[0])
    gone = []
    if len(arguments) > 1:
        unused_s = float(arguments[2]) if len(arguments) > 2 else 0.0
        gone = evict(root, total_bytes(root) - int(arguments[1]), unused_s=unused_s)
    return {
        "held": [dataclasses.asdict(each.told) for each in held(root)],
        "removed": [dataclasses.asdict(each) for each in gone],
        "total_bytes": total_bytes(root),
    }


if __name__ == "__main__":
    sys.exit(answers.run(main))
