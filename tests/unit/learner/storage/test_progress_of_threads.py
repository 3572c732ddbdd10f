"""The sentence of progress, which all threads of a transfer write."""

from concurrent.futures import ThreadPoolExecutor

from learner.storage.progress import Progress


def test_threads_that_fail_at_once_can_all_say_so(tmp_path):
    progress = Progress(tmp_path / "progress", "results")
    progress.begin(10**9)

    def fail(number):
        progress.notice(f"request {number} failed")
        progress.add(1000)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(fail, range(2000)))
    assert (tmp_path / "progress").read_text().startswith("results: ")
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]
