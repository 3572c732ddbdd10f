"""Which GPUs a task sees."""

import pytest

from search.errors import SearchError
from search.worker.slot_pool import Gpus


def test_tasks_get_what_the_scheduler_gave_the_job() -> None:
    gpus = Gpus(3, {"CUDA_VISIBLE_DEVICES": "GPU-3f,1,7"})
    first = gpus.choose(2, [], ())
    assert first == ("GPU-3f", "1")
    assert gpus.choose(1, [first], ()) == ("7",)
    assert gpus.choose(1, [], ("7",)) == ("7",)  # the slot's process stays warm
    assert gpus.environment(first) == {"CUDA_VISIBLE_DEVICES": "GPU-3f,1"}
    assert gpus.environment(()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_without_a_word_of_the_scheduler_they_are_numbered() -> None:
    assert Gpus(2, {}).choose(2, [], ()) == ("0", "1")


def test_gpus_of_another_maker() -> None:
    gpus = Gpus(1, {"ROCR_VISIBLE_DEVICES": "4"})
    assert gpus.environment(gpus.choose(1, [], ())) == {"ROCR_VISIBLE_DEVICES": "4"}


def test_a_worker_without_gpus_leaves_the_environment_alone() -> None:
    assert Gpus(0, {"CUDA_VISIBLE_DEVICES": "1"}).environment(()) == {}


def test_a_scheduler_that_gave_fewer() -> None:
    with pytest.raises(SearchError, match="to have 2 GPUs, but CUDA_VISIBLE_DEVICES names 1"):
        Gpus(2, {"CUDA_VISIBLE_DEVICES": "0"})
