"""What to do when a command can't do its work: the command in its hint is run, and works."""

from pathlib import Path

import pytest
from hints import commands_in

WRONG = "name: t\nframework: {name: pytroch, job: train.py}\n"


@pytest.mark.parametrize(
    ("command", "follow", "then"),
    [
        ("validate", ["init my-training"], "validate my-training/manifest.yml"),
        ("show gone-12345678", ["list", "adopt SITE"], ""),
        ("search start search.yml", ["search init"], ""),
        ("models show gone-1", ["models list"], ""),
        ("validate wrong.yml", ["frameworks list"], ""),
        ("list", ["adopt SITE"], "list"),
    ],
)
def test_the_command_of_a_hint_works_where_it_is_printed(dlctl, command, follow, then):
    (dlctl.cwd / "wrong.yml").write_text(WRONG)
    if command == "list":
        record = Path(dlctl.env["XDG_STATE_HOME"], "dlctl/record.db")
        record.parent.mkdir(parents=True)
        record.write_bytes(b"no database" * 400)
    done = dlctl(*command.split())
    assert done.exit_code not in (0, 130), done
    assert [each for each, _ in commands_in(done.stderr)] == follow, done.stderr
    for each in follow:
        dlctl(*each.replace("SITE", "local").split(), ok=True)
    if then:
        dlctl(*then.split(), ok=True)
