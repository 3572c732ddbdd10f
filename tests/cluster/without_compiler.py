"""Keeps torch's compiler out of a test's learner, which compiles nothing.

The first optimizer of a process imports torch._dynamo, to hear that nothing is being compiled: that
takes as long as all else at a learner's start. The examples and the benchmarks run without this.
Imported by test programs, or put before a train.py (trainings.WITHOUT_COMPILER). Not a test itself.
"""

import sys
import types

import torch

_stand_in = types.ModuleType("torch._dynamo")
_stand_in.graph_break = lambda: None
_stand_in.disable = lambda function, *_, **__: function
torch._dynamo = sys.modules.setdefault("torch._dynamo", _stand_in)
