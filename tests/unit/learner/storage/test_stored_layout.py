"""What of a training goes to a store, and under which names."""

import zipfile

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


def test_what_a_program_has_written_beside_itself_is_stored_once(tmp_path):
    write(tmp_path / contract.CODE / "model.pt", "weights")
    write(tmp_path / contract.CODE / "__pycache__/train.pyc", "compiled")
    (tmp_path / storing_dir(1)).parent.mkdir(parents=True)
    folder = lay_out(make_plan(job_dir=str(tmp_path)), tmp_path, 1)
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert sorted(found) == ["_output/model.pt", "_submitted_code/model.zip"]
    assert zipfile.ZipFile(folder / "_submitted_code/model.zip").namelist() == []
