"""A site that does not answer: the pages say so, show what is known, and go on by themselves."""

from __future__ import annotations

import re
from pathlib import Path

from open_views import dashboard_url, page_rows, picture_of, steps_of
from trainings import change_site, submit, wait_for_state, write_training
from waiting import wait_until

from dlctl import contract

PROGRAM = """\
import json, os, pathlib, time
folder = pathlib.Path(os.environ["DLCTL_JOB_DIR"], "metrics")
folder.mkdir(exist_ok=True)
end = pathlib.Path(os.environ["RESULT_DIR"], "end")
step = 0
with open(folder / "1-0-program.jsonl", "w") as file:
    while not end.exists():
        step += 1
        line = {"step": step, "time": time.time(), "loss": 1 / step}
        print(json.dumps(line), file=file, flush=True)
        if step % 20 == 0:
            print("line", step, flush=True)
        time.sleep(0.15)  # a chart thins out more points than it has pixels
"""
SAYS_SO = re.compile(
    r"^quick does not answer, (these curves are as of .*|only the local record is shown), "
    r"and dlctl keeps trying: .*[^.]\.$"
)


def test_a_site_that_is_cut_off_and_comes_back(dlctl, cluster_site, xdg, visit):
    quick = change_site(cluster_site, xdg.config, "quick", transport={"connect_timeout_s": 2})
    folder = write_training(
        dlctl.cwd / "job", {"command": "exec python3 program.py"}, {"program.py": PROGRAM}
    )
    training_id = submit(dlctl, quick, folder)
    lines = quick.job_dir(training_id) / f"{contract.METRICS}/1-0-program.jsonl"
    wait_until(lambda: _count(lines) > 20, 90)
    with dashboard_url(dlctl, training_id) as url:
        page = visit(url)
        wait_until(lambda: len(_steps(page)) > 20, 60)
        page.locator(".log > div", has_text="line 20").wait_for()
        quick.cluster.ssh_hang()
        quick.cluster.ssh_drop()
        trouble = page.locator(".facts .trouble")
        trouble.wait_for()
        assert SAYS_SO.match(trouble.inner_text()), trouble.inner_text()
        page.locator(".head .state", has_text=re.compile("TRAINING · stale since")).wait_for()
        known = _steps(page)
        assert known == list(range(1, len(known) + 1)) and len(known) > 20
        logged = page.locator(".log > div").count()
        assert logged > 0
        picture_of(page, "5-cut-off")
        shown = dlctl("show", training_id, "--all")
        assert "the metrics are as of" in shown.stderr and "Better than guessing?" in shown.stdout
        watched = dlctl("watch", training_id, "--once", ok=True).stdout
        assert "stale for" in watched
        assert int(re.search(r"step (\d+)", watched)[1]) >= known[-1], "less than the page has"
        with (
            dashboard_url(dlctl, training_id) as with_cache,
            dashboard_url(dlctl, training_id, env={"XDG_CACHE_HOME": str(dlctl.cwd)}) as without,
        ):
            cached, bare = visit(with_cache), visit(without)
            cached.locator(".facts .trouble", has_text="these curves are as of").wait_for()
            assert len(_steps(cached)) > 10
            cached.get_by_text("The log goes on when quick answers.").wait_for()
            picture_of(cached, "6-opened-with-cache")
            bare.locator(".facts .trouble", has_text="only the local record").wait_for()
            bare.get_by_text("The metrics are read as soon as the site answers.").wait_for()
            picture_of(bare, "7-opened-without-cache")
            at = _count(lines)
            quick.cluster.ssh_resume()
            for each in (page, cached, bare):
                each.locator(".facts .trouble").wait_for(state="detached")
            (quick.job_dir(training_id) / "results/end").touch()
            wait_for_state(dlctl, training_id, "COMPLETED")
            for each in (page, cached, bare):
                each.locator(".head .state", has_text="COMPLETED").wait_for()
                assert each.locator(".head .state").inner_text() == "COMPLETED"
                wait_until(lambda each=each: len(_steps(each)) == _count(lines), 60)
                assert _steps(each) == list(range(1, _count(lines) + 1))
            assert _count(lines) > at
            told = page.locator(".log > div", has_text="line ").all_inner_texts()
            counts = [int(text.split()[-1]) for text in told]
            assert counts == list(range(20, _count(lines) + 1, 20)), "the log has a gap"
            for each in (page, cached, bare):  # they would complain of a server that has ended
                each.close()


def _steps(page):
    return [int(step) for step in steps_of(page_rows(page))]


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
