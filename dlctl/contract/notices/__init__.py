"""Notices to people: what is told, how it is sent, and how each is sent once.

Both sides send: the node that knows first, or else the next dlctl command that looks. Each claims a
notice by creating its file exclusively; a claim whose sending failed is given back by a rename.
"""

from __future__ import annotations

from dlctl.contract.notices.notice import *  # noqa: F403
from dlctl.contract.notices.webhooks import *  # noqa: F403  # noqa: F403
