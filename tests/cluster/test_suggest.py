"""From a training that used a tenth of what the next one asks for to a manifest that fits."""

from __future__ import annotations

import re

from test_rehearsal import TRAIN
from trainings import ON_THE_CLUSTER, run, write_training

MANIFEST = """\
# The big one.
name: fault
learners: 2
memory: {memory}   # surely enough
time: 10h
framework: {{name: pytorch, job: train.py}}
training: {{epochs: 2, batch_size: 16, log_every_steps: 1}}
"""


@ON_THE_CLUSTER
def test_a_manifest_that_asks_for_ten_times_what_was_used_is_made_to_fit(dlctl, site):
    training = {"epochs": 2, "batch_size": 16, "log_every_steps": 1}
    folder = write_training(dlctl.cwd / "small", {"job": "train.py"}, {"train.py": TRAIN},
                            learners=2, training=training, memory="700MiB")  # fmt: skip
    done, training_id = run(dlctl, site, folder, cwd=dlctl.cwd, ok=True)
    big = dlctl.cwd / "big"
    big.mkdir()
    (big / "train.py").write_text(TRAIN)
    manifest = big / "manifest.yml"
    manifest.write_text(MANIFEST.format(memory="7000MiB"))

    def suggest(*options, **how):
        return dlctl("suggest", manifest, "--site", site.name, *options, **how)

    found = suggest("--json", ok=True).json
    assert found["trainings"] == 1 and found["unanswered"] == {}
    by_key = {each["key"]: each for each in found["suggestions"]}
    assert by_key["memory"]["asked"] == "7000MiB" and by_key["memory"]["suggested"]
    assert re.fullmatch(r"1 training with 2 learners: \d+ MiB", by_key["memory"]["evidence"])
    assert by_key["time"]["suggested"] == "5m", by_key["time"]
    assert "1 training" in by_key["cpus"]["evidence"]
    start = found["start"]
    assert start["jobs"] == 1 and start["waited_s"] >= 0
    assert (start["planned_in_s"] is not None) == site.is_cluster, start
    shown = suggest(ok=True)
    assert "--write" in shown.stderr and "7000MiB" in shown.stdout
    before = manifest.read_text()
    assert before == MANIFEST.format(memory="7000MiB"), "nothing is changed without --write"
    written = suggest("--write", ok=True).stdout
    after = manifest.read_text()
    needed = by_key["memory"]["suggested"]
    assert f"+memory: {needed}   # surely enough" in written and "-time: 10h" in written
    assert f"memory: {needed}   # surely enough\ntime: 5m\n" in after
    assert after.startswith("# The big one.\nname: fault\n")
    dlctl("validate", manifest, ok=True)
    unchanged = suggest("--write", ok=True)
    assert unchanged.stdout.count("@@") == 0, "the second time nothing is left"
    assert "manifest.yml stays as it is" in unchanged.stderr
    # What was learned outlives the training, and costs a submission no question.
    dlctl("delete", training_id, "--yes", ok=True)
    again = suggest("--json", ok=True).json
    assert again["trainings"] == 1
    manifest.write_text(MANIFEST.format(memory="1900MiB"))
    rendered = dlctl("submit", manifest, "--site", site.name, "--time", "2h", ok=True)
    assert "`dlctl suggest` has more" in rendered.stderr
    silent = dlctl("submit", manifest, "--site", site.name, "--no-advice", "--tag", "x", ok=True)
    assert "dlctl suggest" not in silent.stderr
    for each in (rendered, silent):
        dlctl("cancel", each.stdout.strip(), ok=True)


PEAK = """\
import os, time
if os.environ["RANK"] == "1":
    print(len(bytearray(b"1" * (400 << 20))))
time.sleep(14)
"""


@ON_THE_CLUSTER
def test_a_short_peak_of_a_learner_on_another_node_counts(dlctl, site):
    """Samples are 2 s apart, and until now only learner 0's counted."""
    nodes = {"nodes": 2, "learners_per_node": 1} if site.is_cluster else {"learners": 2}
    folder = write_training(dlctl.cwd / "peak", {"command": "python peak.py"}, {"peak.py": PEAK},
                            memory="900MiB", **nodes)  # fmt: skip
    done, training_id = run(dlctl, site, folder, cwd=dlctl.cwd, ok=True)
    found = dlctl("suggest", folder / "manifest.yml", "--site", site.name, "--json", ok=True).json
    (memory,) = [each for each in found["suggestions"] if each["key"] == "memory"]
    peak = int(re.search(r": (\d+) MiB", memory["evidence"])[1])
    assert 400 <= peak < 900, memory
    dlctl("delete", training_id, "--yes", ok=True)
    again = dlctl("suggest", folder / "manifest.yml", "--site", site.name, "--json", ok=True).json
    assert memory in again["suggestions"], "it outlives the training"
