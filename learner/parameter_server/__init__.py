"""The parameter server for a training script of the user's own: `parameter_server.join(...)`.

Holds the built-in loop on a parameter server, too, and the server's program. Imports `psrv` and the
rooms below it; what passes through are pushes, pulls and chunks of the global cursor.
"""

from __future__ import annotations

from learner.parameter_server.api import Server as Server
from learner.parameter_server.api import join as join
