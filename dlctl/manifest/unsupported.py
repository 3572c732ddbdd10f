"""What a manifest may ask for that this version lacks, and whether the training can run without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlctl.contract.stores import USABLE_STORES

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest


def _stores(manifest: Manifest, *, used: bool) -> str:
    """Return the types of stores that are not directories, by whether anything is kept there."""
    return ", ".join(sorted({
        store.type for store in manifest.data_stores
        if store.type not in USABLE_STORES
        and bool(store.training_data or store.training_results) is used
    }))  # fmt: skip


_STORES = "This version neither reads nor writes data stores of the type {}; use mount_volume."
_BLOCKING: tuple[tuple[Callable[[Manifest], Any], str], ...] = (
    (lambda m: _stores(m, used=True), _STORES),
)
_HARMLESS: tuple[tuple[Callable[[Manifest], Any], str], ...] = (
    (lambda m: _stores(m, used=False), _STORES),
    (lambda m: m.framework.image_tag, "This version does not choose an image by image_tag."),
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
    return list(dict.fromkeys(_found(manifest, _BLOCKING + _HARMLESS)))


def can_not_run(manifest: Manifest) -> list[str]:
    """Return the sentences about features without which the training can't run."""
    return _found(manifest, _BLOCKING)


def _found(
    manifest: Manifest, lacks: tuple[tuple[Callable[[Manifest], Any], str], ...]
) -> list[str]:
    found = ((seen(manifest), sentence) for seen, sentence in lacks)
    return [sentence.format(seen) for seen, sentence in found if seen]
