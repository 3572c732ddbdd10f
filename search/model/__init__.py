"""The model: it asks the strategy for trials, sends them to a broker, and takes their results.

Its log, `search/trials.jsonl`, is written before anything is sent and after anything is learnt, so
a model that is killed at any moment is rebuilt from it and nothing is done twice.
"""

from __future__ import annotations
