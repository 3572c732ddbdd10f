"""`dlctl stores list` and `dlctl frameworks list`: folders of several origins, also wrong ones."""

import json

import pytest

KINDS = {"stores": "store.yml", "frameworks": "framework.yml"}
GOOD = {"stores": "description: Tapes.\n", "frameworks": "title: Lua\n"}


@pytest.fixture(params=sorted(KINDS))
def made(request, tmp_path, monkeypatch):
    """A function that makes a folder in the user's or the training's templates, and the kind."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home/.config"))
    (tmp_path / "training").mkdir()
    monkeypatch.chdir(tmp_path / "training")

    def make(place, name, text):
        folder = tmp_path / place / "templates" / request.param / name
        folder.mkdir(parents=True)
        (folder / KINDS[request.param]).write_text(text)
        (folder / "train.sh.j2").write_text("echo\n")

    return make, request.param


def test_where_each_comes_from_fits_a_narrow_terminal(run, made):
    make, kind = made
    make("training", "here", GOOD[kind])
    make("home/.config/dlctl", "mine", GOOD[kind])
    done = run(kind, "list")
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    assert rows["here"] == f"./templates/{kind}/here"
    assert rows["mine"] == f"~/.config/dlctl/templates/{kind}/mine"
    assert {where for name, where in rows.items() if name not in ("here", "mine")} == {
        "dlctl", "from"}  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_one_that_is_wrong_hides_no_other(run, made, options):
    make, kind = made
    make("training", "wrong", "descriptoin: a\n")
    make("training", "right", GOOD[kind])
    done = run(kind, "list", *options)
    assert done.exit_code == 3
    assert f"wrong/{KINDS[kind]}:1:1: descriptoin: unknown key" in done.stderr
    if options:
        names = [each.get("type") or each["name"] for each in json.loads(done.stdout)]
    else:
        names = [line.split()[0] for line in done.stdout.splitlines()]
    assert "right" in names and "wrong" not in names and len(names) > 10
