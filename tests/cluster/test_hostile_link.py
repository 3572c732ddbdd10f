"""A link to the login node that makes trouble, on a real Slurm: a throttle, cuts."""

from __future__ import annotations

import contextlib
import json
import re

from hostile_link import hostile_link
from trainings import change_site, state_of, submit, wait_for_state, write_training
from waiting import wait_until

LASTS = "echo begun; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done; echo ended"


def test_ten_that_follow_and_a_watch_share_one_connection_that_the_doctor_tells_of(
    dlctl, cluster_site, xdg, tmp_path
):
    site = change_site(cluster_site, xdg.config, transport={"kind": "openssh"})
    folder = write_training(tmp_path / "job", {"command": LASTS})
    with hostile_link(dlctl, site, tmp_path) as link, contextlib.ExitStack() as stack:
        found = links(dlctl, site)
        assert broken(found) == []
        assert found["name"]["state"] == found["tcp"]["state"] == "ok"
        assert "answers: SSH-2.0" in found["tcp"]["evidence"]
        assert link.accepted == 2, "the doctor tries the port before the log-in"
        link.most_accepted = 2
        ids = [row["training_id"] for row in dlctl(
            "submit", "manifest.yml", "--site", site.name, "--repeat", "2", "--json",
            cwd=folder, ok=True).json]  # fmt: skip
        watch = stack.enter_context(dlctl.start("list", "--watch", "--json"))
        followers = [stack.enter_context(dlctl.start("logs", "--follow", each)) for each in 5 * ids]
        for follower in followers:
            assert any("begun" in line for line in follower.stdout)
        for each in ids:
            (site.job_dir(each) / "state/end").touch()
        for follower in followers:
            assert "ended" in follower.communicate(timeout=60)[0]
            assert follower.returncode == 0
        told = [json.loads(line) for line in watch.communicate(timeout=60)[0].splitlines()]
        assert {row["training_id"] for row in told if row["state"] == "COMPLETED"} == set(ids)
        dlctl("fetch", "logs", ids[0], "--to", tmp_path / "got", ok=True)
        open_one = links(dlctl, site)
        assert open_one["tcp"]["evidence"] == "the connection that commands share is open"
        assert broken(open_one) == [] and link.accepted == 2

        # The connection has ended, and the server takes no other one.
        dlctl("sites", "disconnect", site.name, ok=True)
        banned = links(dlctl, site)
        assert broken(banned) == ["tcp"] and banned["log-in"]["state"] == "skipped"
        assert "MaxStartups, fail2ban" in banned["tcp"]["fix"]
        refused = dlctl("status", ids[0], "--json", ok=True)
        assert "the server hung up before the log-in" in refused.stderr
        assert refused.json["state"] == "COMPLETED" and refused.json["stale_since"]

        # The server ends the connection; the next command makes another one.
        link.most_accepted = None
        for _ in range(2):
            assert state_of(dlctl, ids[0])["stale_since"] is None
            site.cluster.ssh_drop()
        assert broken(links(dlctl, site)) == []


def test_a_link_that_is_cut_in_the_middle_of_each_command(dlctl, cluster_site, xdg, tmp_path):
    site = change_site(cluster_site, xdg.config)
    result = 'head -c 400000 /dev/urandom >"$RESULT_DIR/big"'
    quick = write_training(tmp_path / "quick", {"command": result}, name="quick")
    lasts = write_training(tmp_path / "lasts", {"command": LASTS}, name="lasts")
    with hostile_link(dlctl, site, tmp_path) as link:

        def cut(*words, after_bytes, surely=True, **how):
            """Cut the link once the site has sent so much; return how the command ended."""
            dlctl("sites", "disconnect", site.name)
            cuts, link.cut_after_bytes = link.cuts, after_bytes
            done = dlctl(*words, **how)
            assert link.cuts == cuts + 1 or not surely, (words, after_bytes, done)
            link.cut_after_bytes = None
            assert "Traceback" not in done.stdout + done.stderr, done
            assert len(done.stderr.strip().splitlines()) <= 4, done
            return done

        def served_by(*words, **how):
            dlctl("sites", "disconnect", site.name)
            before = link.served_bytes
            dlctl(*words, **how, ok=True)
            return link.served_bytes - before

        def at_least(*words):
            """What a server tells beside the answer, such as its other host keys, may come late."""
            return min(served_by(*words) for _ in range(3))

        one_more = ("submit", "manifest.yml", "--site", site.name)
        done = submit(dlctl, site, quick)
        sent = served_by(*one_more, cwd=quick) - 150  # the answer of the last script
        (pruned,) = {path.name for path in (site.root / "jobs").iterdir()} - {done}
        running, unwanted = (submit(dlctl, site, lasts) for _ in range(2))
        for each in (done, pruned):
            wait_for_state(dlctl, each, "COMPLETED")

        short = at_least("logs", done) - 250  # the log has more bytes
        middle = at_least("status", done) - 250
        assert stale_row(cut("status", done, "--json", after_bytes=middle).json)
        listed = cut("list", "--json", after_bytes=middle)
        assert listed.exit_code == 0 and "connection was lost" in listed.stderr
        assert {row["training_id"] for row in listed.json if stale_row(row)} == {running, unwanted}
        lost(cut("logs", done, after_bytes=short))
        half_way = ("fetch", done, "--to", tmp_path / "got")
        assert cut(*half_way, after_bytes=middle + 200_000).exit_code == 0, "it goes on by itself"
        assert next((tmp_path / "got").rglob("big")).stat().st_size == 400_000
        lost(cut("adopt", site.name, after_bytes=middle))
        assert broken(json_links(cut("doctor", site.name, "--json", after_bytes=middle)))

        lost(cut("halt", running, after_bytes=middle))
        dlctl("halt", running, ok=True)
        lost(cut("cancel", unwanted, after_bytes=middle))
        dlctl("cancel", unwanted, ok=True)
        wait_for_state(dlctl, running, "HALTED")
        wait_for_state(dlctl, unwanted, "CANCELLED")
        lost(cut("delete", done, "--yes", after_bytes=middle))
        dlctl("delete", done, "--yes", ok=True)
        lost(cut("prune", "--older-than", "1s", "--yes", after_bytes=middle))

        def pruned():
            dlctl("prune", "--older-than", "1s", "--yes", ok=True)
            return dlctl("list", "--json", ok=True).json == []

        wait_until(pruned, what="the last one to have ended a second ago")
        assert list((site.root / "jobs").iterdir()) == []

        for earlier in range(0, 1000, 200):  # on a busy machine the answer may come in other pieces
            unknown = cut(*one_more, cwd=quick, after_bytes=sent - earlier, surely=False)
            if unknown.exit_code:
                break
            wait_for_state(dlctl, unknown.stdout.strip(), "COMPLETED")
            dlctl("delete", unknown.stdout.strip(), "--yes", ok=True)
        assert unknown.exit_code in (6, 7) and "never submitted twice" in unknown.stderr, unknown
        (row,) = dlctl("list", "--json", ok=True).json
        if row["state"] == "QUEUED":
            dlctl("resume", row["training_id"], ok=True)
        wait_for_state(dlctl, row["training_id"], "COMPLETED")
        assert [path.name for path in (site.root / "jobs").iterdir()] == [row["training_id"]]


def lost(done):
    assert done.exit_code == 6, done
    assert re.search("connection was lost|the answer was cut short", done.stderr), done


def stale_row(row):
    return row["stale_since"] is not None and "connection was lost" in row["reason"]


def json_links(done):
    return {each["name"]: each for each in json.loads(done.stdout)}


def links(dlctl, site, *options):
    """Each link that the doctor tells of, by its name."""
    return json_links(dlctl("doctor", site.name, *options, "--json"))


def broken(found):
    return [name for name, each in found.items() if each["state"] == "broken"]
