"""What of a training goes to a store, and under which names."""

from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract.stores import storing_dir
from learner.storage.to_store import lay_out


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_attempt_that_only_stores_brings_the_log_of_the_one_that_trained(tmp_path):
    """Its learners never begin: the first attempt's store failed."""
    write(tmp_path / contract.CODE / "train.py", "x = 1\n")
    write(tmp_path / contract.learner_log(1, 0), "trained\n")
    write(tmp_path / contract.learner_log(1, 1), "trained, too\n")
    write(tmp_path / contract.results_dir(2) / "model.pt", "weights")
    write(tmp_path / contract.learner_log(2, 1), "trained again\n")
    (tmp_path / storing_dir(2)).parent.mkdir(parents=True, exist_ok=True)
    folder = lay_out(make_plan(job_dir=str(tmp_path), learners=2), tmp_path, 2)
    assert (folder / "model.pt").read_text() == "weights"
    assert (folder / "learner-1/training-log.txt").read_text() == "trained\n"
    assert (folder / "learner-2/training-log.txt").read_text() == "trained again\n"
    assert (folder / "_submitted_code/model.zip").stat().st_size
