"""What a manifest may ask for that this version lacks; the training runs without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest

_LACKS: tuple[tuple[Callable[[Manifest], Any], str], ...] = (
    (
        lambda m: m.parameter_server is None and "parameter_server" in m.model_fields_set,
        "parameter_server is empty: there is none; {{}} is one with its defaults.",
    ),
    (
        lambda m: m.parameter_server is not None and m.learners == 1,
        "One learner needs no parameter server: it trains alone, and none is started.",
    ),
    (
        lambda m: (
            m.parameter_server
            and m.learners > 1
            and (m.parameter_server.min_learners or 0) > m.learners
            and m.learners
        ),
        "parameter_server.min_learners exceeds the number of learners: all {} are needed.",
    ),
    (lambda m: m.gpu_type, "This version does not use gpu_type; use scheduler.constraint."),
    (lambda m: m.storage, "This version does not use storage."),
)


def not_in_this_version(manifest: Manifest) -> list[str]:
    """Return one sentence for each requested feature that this version lacks."""
    found = ((seen(manifest), sentence) for seen, sentence in _LACKS)
    return list(dict.fromkeys(sentence.format(seen) for seen, sentence in found if seen))
