"""The sentence of progress, which all threads of a transfer write."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from learner.storage.progress import Moving, Progress, read_progress


def test_threads_that_fail_at_once_can_all_say_so(tmp_path):
    progress = Progress(tmp_path / "progress", "results")
    progress.begin(10**9)

    def fail(number):
        progress.notice(f"request {number} failed", 3, 0.8)
        progress.add(1000)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(fail, range(2000)))
    assert (tmp_path / "progress").read_text().startswith("results: ")
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]


def test_only_what_fails_more_than_once_is_told_and_only_until_something_moves(tmp_path):
    file = tmp_path / "progress"
    progress = Progress(file, "results")
    progress.begin(10**9)
    progress.notice("it answers 503", 2, 0.2)
    assert read_progress(file).tries == 0
    for tries, told in (3, "3rd"), (12, "12th"):
        progress.notice("it answers 503", tries, 4.0)
        sentence = f"results: 0 B of 1.0 GB, trying again ({told} time, in 4 s): it answers 503"
        assert read_progress(file) == Moving(sentence, 0.0, tries)
    progress.say("all is there")
    assert read_progress(file) == Moving("all is there", 0.0, 0)


@pytest.mark.parametrize(("text", "told"), [
    ("copying\n", Moving("copying")), ("copying\n0.5", Moving("copying", 0.5)),
    ("copying\nhalf\nthrice\nmore", Moving("copying")), ("", Moving()), ("a\n7", Moving("a", 1.0)),
])  # fmt: skip
def test_a_script_of_the_users_may_write_anything(tmp_path, text, told):
    (tmp_path / "progress").write_text(text)
    assert read_progress(tmp_path / "progress") == told
