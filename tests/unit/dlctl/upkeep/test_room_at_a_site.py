"""A site's own du and df tell what takes room, and what may go."""

from dlctl.upkeep.usage import parse_usage

TOLD = """\
disk 1000 400
inodes 0 0
quota /home 100 200 300
quota /scratch 5 6 7
checkpoints t-1 30
results t-1 10
results t-1 12
code t-1 2
jobs t-1 60
jobs - 60
runtime 0a1b 5
runtime 0c2d 6
runtime - 11
store my-own 9
store - 9
cache - 40
unfinished - 3
unfinished - 4
total - 127
listed
rests runtime/0a1b
rests runtime/0c2d
rests store/my-own
uses runtime/0a1b
complete
"""


def test_the_parts_are_added_up():
    found = parse_usage(TOLD)
    assert found.total_bytes == 127 * 1024
    assert found.of("t-1") == 60 * 1024 and found.of("t-1", "results") == 22 * 1024
    assert found.all_of("checkpoints") == 30 * 1024
    assert found.folders["cache"] == 40 * 1024 and found.folders["unfinished"] == 7 * 1024
    assert (found.disk_bytes, found.free_bytes) == (1000 * 1024, 400 * 1024)
    assert (found.inodes, found.free_inodes) == (None, None)
    assert found.quota == ["/home 100 200 300", "/scratch 5 6 7"]
    nothing = parse_usage("")
    assert (nothing.total_bytes, nothing.free_bytes, nothing.unused()) == (0, None, {})


def test_only_what_rests_and_nobody_names_is_unused_once_all_plans_were_read():
    assert parse_usage(TOLD).unused() == {"runtime/0c2d": 6 * 1024}
    assert parse_usage(TOLD.replace("complete\n", "")).unused() == {}
