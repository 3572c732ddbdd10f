"""Halted or killed, and gone on: the final loss is that of a training that nobody disturbed.

Each test runs a real framework three times, whose import alone takes seconds. The signal reaches
one learner only: all of them have to stop after the same step.
"""

import signal

import pytest
from framework_runs import EXAMPLES, Learners
from third_party import OF_TEST_ALL

from learner.errors import EXIT_HALTED

LOSS = r"final loss ([\d.]+)"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The final loss of each example that nobody disturbs."""
    known = {}

    def loss(name):
        if name not in known:
            learners = Learners(name, tmp_path_factory.mktemp(name))
            try:
                assert set(learners.codes()) == {0}
                known[name] = float(learners.find_in_log(LOSS))
            finally:
                learners.kill()
        return known[name]

    return loss


@pytest.fixture
def start(tmp_path):
    """Start an example; its next attempt finds the checkpoints of the one before."""
    started = []

    def begin(name):
        started.append(Learners(name, tmp_path))
        return started[-1]

    yield begin
    for learners in started:
        learners.kill()


def skip_without(name):
    if not EXAMPLES[name].python.exists():
        pytest.skip(f"there is no {EXAMPLES[name].python}: set DLCTL_FRAMEWORKS")


@pytest.mark.frameworks
@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("how", ["halted", "killed"])
def test_it_ends_with_the_loss_of_an_undisturbed_training(
    name, how, start, undisturbed, wait_until
):
    skip_without(name)
    first = start(name)
    wait_until(first.has_saved, 150)
    if how == "halted":
        first.processes[-1].send_signal(signal.SIGUSR2)
        assert set(first.codes()) == {EXIT_HALTED}, first.find_in_log("(?s)(.*)")[-3000:]
        word = "batch" if name == "tensorflow" else "epoch" if name == "keras" else "step"
        halted_after = int(first.find_in_log(rf"halted after {word} (\d+)"))
    else:
        first.kill()
    second = start(name)
    assert set(second.codes()) == {0}, second.find_in_log("(?s)(.*)")[-3000:]
    if how == "halted" and name != "tensorflow":  # which counts batches of an epoch
        assert int(second.find_in_log(r"continuing (?:at step|after epoch) (\d+)")) == halted_after
    expected = pytest.approx(undisturbed(name), rel=EXAMPLES[name].tolerance)
    assert float(second.find_in_log(LOSS)) == expected


@pytest.mark.long
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.frameworks] * (EXAMPLES[name].venv not in OF_TEST_ALL))
    for name in EXAMPLES
])  # fmt: skip
def test_an_attempt_that_begins_after_the_last_step_ends_well(name, start):
    """A halt that comes with the last step leaves nothing to train to the next attempt."""
    skip_without(name)
    first = start(name)
    assert set(first.codes()) == {0}, first.find_in_log("(?s)(.*)")[-3000:]
    loss = first.find_in_log(LOSS)
    second = start(name)
    assert set(second.codes()) == {0}, second.find_in_log("(?s)(.*)")[-3000:]
    assert float(second.find_in_log(LOSS)) == pytest.approx(
        float(loss), rel=EXAMPLES[name].tolerance
    )
