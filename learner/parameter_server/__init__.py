"""The parameter server for a user's own training script: `parameter_server.join(...)`.

Also holds the built-in loop on a parameter server, and the server's program. Imports `psrv` and the
rooms below it; what passes through are pushes, pulls and chunks of the global cursor.
"""

from __future__ import annotations

from learner.parameter_server.api import Server as Server
from learner.parameter_server.api import join as join
