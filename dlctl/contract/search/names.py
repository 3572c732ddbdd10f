"""The files of a search in the job directory of its hub."""

from __future__ import annotations

FRAMEWORK = "search"
"""The framework of the training that is a search's hub."""
EXIT_WRONG = 64
"""Exit code of a model, and so of its hub, whose next start would end alike."""
FOLDER = "search"
SPEC = f"{FOLDER}/spec.json"
"""A `Spec`: what search.yml said."""
TRIALS = f"{FOLDER}/trials.jsonl"
"""The model's log, a JSON object a line: `begin`, `ask`, `tell`, `report`, `give_up`. Only lines of
the model that wrote the latest `begin` count. If a sync fails, the model removes the line that it
has just written: a reader that resumes checks that the line before is unchanged."""
ENDPOINTS = f"{FOLDER}/endpoints"
"""`nameserver.json` and a file for each broker: where it listens."""
BROKERS = f"{FOLDER}/brokers"
"""A folder for each broker: `<n>.<segment>.log`, tasks and results of an incarnation; `<n>.lease`,
who may acknowledge; `<n>.sealed`, how much of the log a later incarnation took over."""
BROKER_STATUS = "status.json"
"""In a broker's folder: a `BrokerTold`, written every second."""
LOGS = f"{FOLDER}/logs"
"""What nameserver, brokers and model print."""
FIRST_BROKER = "b0"
"""The hub's. The model sends its tasks there."""
KEYS = f"{FOLDER}/tls"
"""The certificates, and keys of mode 0600, of this search alone."""
WORKERS = f"{FOLDER}/workers"
"""A folder for each pool, with its scripts, and each group: `count`, `before` (workers of earlier
groups), `submit.begin`, `submit.end`, and `<number>.out`, what a worker prints."""
POOLS = f"{WORKERS}/pools.json"
"""`Pools`: how many workers there may be; written by `dlctl search start`, `scale`, `resume`."""
ALIVE = f"{WORKERS}/alive.sh"
"""Prints `<group> <job id> <state>` for each worker in the queue, waiting or running."""
OUTBOXES = f"{FOLDER}/outboxes"
"""Results that workers have not brought to their brokers yet, a file for each worker."""
TASKS = f"{FOLDER}/tasks"
"""Below a task's id: `log`, what its program prints; `run-<n>/`, what a run keeps, which begins
with a copy of the run before; `checkpoint`, a link to the newest of these."""
ENDED = f"{FOLDER}/ended"
"""It exists once the search is done: workers leave."""
STATUS = f"{FOLDER}/status.json"
"""How many trials were asked for, have ended and have failed, the best one, and the workers."""
TRIAL_PLAN = f"{FOLDER}/trial-plan.json"
"""The plan of a training that is a trial, before the point's values are put into it."""
