"""For programs of any framework: save at a halt, and find what was saved.

    from learner import adapters

    halt = adapters.Halt()
    for step in range(first, steps):
        ...
        if halt.asked:
            save(step)
            halt.leave()

A module for each framework has the callback that does this; each imports its framework when it is
called, so a program needs no other. Imports `learner.frameworks`. What passes through are signals,
names of checkpoints, and which samples a step takes.
"""

from learner.adapters.batches import Batches
from learner.adapters.halt import Halt
from learner.adapters.saved import mark_complete, newest

__all__ = ["Batches", "Halt", "mark_complete", "newest"]
