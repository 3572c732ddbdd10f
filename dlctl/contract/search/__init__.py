"""The search: its files in the job directory, and what was decided before it began.

`from dlctl.contract import search` is all that callers need.
"""

from __future__ import annotations

from dlctl.contract.search.files import *  # noqa: F403
from dlctl.contract.search.spec import *  # noqa: F403
