"""The scripts of a store's type: what they are given, and what is told when they fail."""

import os
import signal
from pathlib import Path

import pytest

from dlctl.contract import DataStore
from dlctl.contract.stores import store_script
from learner.errors import SiteFault, UserFault
from learner.storage import scripted
from learner.storage.progress import Interrupted


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a script as the store script of a training."""
    secret = tmp_path / "secret"
    secret.write_text("opensesame")
    secret.chmod(0o600)
    store = DataStore("mine", "tape", training_results="out", position=0, scripts=["store"],
                      secrets={"password": f"file:{secret}"})  # fmt: skip
    script = tmp_path / store_script(0, "store")
    script.parent.mkdir(parents=True)

    def run(text, tick=lambda: None):
        script.write_text(text)
        return scripted.save(store, tmp_path, tmp_path, tmp_path, {}, tick, lambda _: None)

    return run


def test_a_script_gets_its_credentials_and_its_last_line_is_told_without_them(run):
    with pytest.raises(UserFault) as caught:
        run('echo "curl: refused https://me:$STORE_PASSWORD@tape"; exit 3')
    assert caught.value.message == (
        "The store script of data store 'mine' ended with exit code 3: curl: refused "
        "https://me:***@tape"
    )


def test_a_script_of_an_earlier_attempt_has_not_failed(run):
    with pytest.raises(Interrupted):
        run("exit 76")


@pytest.mark.parametrize("ends", ["exit 75", "kill -9 $$"])
def test_what_another_try_may_heal_is_the_sites_fault(run, ends):
    with pytest.raises(SiteFault):
        run(f"echo try >>tries; {ends}")


def test_a_script_that_something_kills_runs_again(run, tmp_path):
    run('[ -e once ] || { touch once; kill -9 $$; }; echo 3 files >"$STORE_PROGRESS"')
    assert (tmp_path / "stores/0/once").exists()


def test_a_script_ends_with_a_supervisor_that_is_killed(run, tmp_path, wait_until):
    told = tmp_path / "stores/0/pid"
    supervisor = os.fork()
    if not supervisor:
        run("echo $$ >pid.new; mv pid.new pid; exec sleep 60")
        os._exit(0)
    wait_until(told.exists)
    script = Path("/proc", told.read_text().strip(), "stat")
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    wait_until(lambda: not script.exists() or ") Z " in script.read_text(), 60)
