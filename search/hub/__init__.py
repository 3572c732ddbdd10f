"""The hub: one small job, or local process, that keeps nameserver, first broker and model alive.

It is the program of a training as any other: the supervisor starts it, halts it by a signal, and
starts its successor before the job's time limit. The attempt's claim fences a second hub.
"""

from __future__ import annotations
