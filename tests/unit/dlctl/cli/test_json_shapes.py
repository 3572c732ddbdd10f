"""What each command prints with `--json` has the shape that `dlctl schema` tells."""

import json
import re
import sys

import jsonschema
import pytest
from made_search import write_search
from repository import REPOSITORY

from dlctl.contract import State
from dlctl.record import Record
from dlctl.service.shapes import LINES, LIST, SHAPES, schema_of

MANIFEST = """\
name: t
framework: {name: sh, command: 'echo step 1 loss = 0.5; echo x >"$RESULT_DIR/x"'}
evaluation_metrics:
  type: regex_extractor
  groups:
    train:
      regex: 'step %{INT:step} loss = %{FLOAT:loss}'
      scalars: {loss: {type: FLOAT, value: $loss}}
      etimes: {iteration: {type: INT, value: $step}}
"""


@pytest.fixture(scope="module")
def commands():
    """The commands that have `--json`, by the words that call them."""
    sys.path.insert(0, str(REPOSITORY / "docs"))
    try:
        from make_commands import command_tree, leaves
    finally:
        sys.path.pop(0)
    return {
        " ".join(words)
        for words, each in leaves(command_tree(), ())
        if any("--json" in parameter.opts for parameter in each.params)
    }


def closed(schema):
    """Return a schema that allows no field that it does not name, at any depth."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(found.get("properties"), dict) and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def check(name, command, printed):
    """Compare what a command printed with its schema."""
    form, shape = SHAPES[name].commands[command], SHAPES[name]
    if form == LINES:
        things = [json.loads(line) for line in printed.splitlines()]
    else:
        found = json.loads(printed)
        assert isinstance(found, list) or form != LIST, f"{command} prints a list"
        things = found if isinstance(found, list) else [found]
    assert things, f"{command} printed nothing"
    schema = schema_of(name) if shape.others else closed(schema_of(name))
    for each in things:
        wrong = jsonschema.Draft202012Validator(schema).iter_errors(each)
        assert [f"{list(error.path)}: {error.message}" for error in wrong] == []


def test_each_command_with_json_has_a_schema(commands):
    told = {words for shape in SHAPES.values() for words in shape.commands}
    assert commands == {re.sub(r" (--.*|MANIFEST…|SEARCH)$", "", words) for words in told}


def test_the_names_of_schemas_are_listed_and_nothing_else_is_one(dlctl):
    listed = [each["name"] for each in dlctl("schema", "--json", ok=True).json]
    assert listed == ["manifest", *SHAPES]
    assert "training" in dlctl("schema", ok=True).stdout
    assert "lists their names" in " ".join(dlctl("schema", "nothing").stderr.split())


@pytest.mark.first("[!ls]*", "s[!i]*", "site-*")
@pytest.mark.parametrize(("name", "command", "arguments"), [
    ("scaffold", "init", ["new"]), ("validated", "validate", []),
    ("validated", "validate", ["wrong.yml"]), ("rendered", "render", []),
    ("rendered", "render", ["--script"]), ("setting", "config", []), ("schema", "schema", []),
    ("site", "sites list", []), ("site-settings", "sites show", ["local"]),
    ("site-settings", "sites show", ["slurm-example"]),
    ("site-added", "sites add", ["mine", "local", "--without-slurm"]),
    ("framework", "frameworks list", []), ("framework-details", "frameworks show", ["pytorch"]),
    ("store", "stores list", []), ("store-details", "stores show", ["s3_datastore"]),
    ("link", "doctor", ["local"]),
])  # fmt: skip
def test_what_needs_no_training_has_its_shape(dlctl, local_site, name, command, arguments):
    (dlctl.cwd / "manifest.yml").write_text("name: t\nframework: {name: sh, command: 'true'}\n")
    (dlctl.cwd / "wrong.yml").write_text("name: t\nlerners: 2\n")
    check(name, command, dlctl(*command.split(), *arguments, "--json").stdout)


@pytest.mark.slow
def test_a_training_and_what_is_left_of_it_have_their_shapes(dlctl, xdg, local_site):
    """Trains twice on this machine: longer than five seconds, but each command sees real files."""
    (dlctl.cwd / "manifest.yml").write_text(MANIFEST)
    (dlctl.cwd / "train.py").write_text("")

    def print_and_check(name, command, *arguments):
        words = command.partition(" --")[0].removesuffix(" MANIFEST…").split()
        done = dlctl(*words, *arguments, "--json", ok=True)
        check(name, command, done.stdout)
        return done

    training_id = print_and_check("training", "submit").json["training_id"]
    dlctl("logs", "--follow", training_id)
    for name, command, *arguments in [
        ("training", "list"), ("training", "status"), ("training", "tag"), ("details", "show"),
        ("script", "show --script", "--script"), ("log-line", "logs"), ("metrics", "metrics"),
        ("platform", "metrics --platform", "--platform"), ("report", "report"),
        ("fetched", "fetch"), ("room", "du"), ("pruned", "prune", "--older-than", "1s", "-n"),
        ("would-end", "delete --dry-run", "--dry-run"), ("cache", "stores cache", "--clear", "-n"),
        ("would-end", "cancel --dry-run", "--dry-run"),
        ("model-version", "models create", "--from", training_id, "--name", "m"),
        ("model", "models list"), ("model-details", "models show", "m"),
        ("model-update", "models update", "m", "--from", training_id, "--tag", "x"),
        ("model-difference", "models diff", "m@1", "m@2"), ("model-pulled", "models pull", "m"),
        ("contents", "models gc", "-n"), ("model-deleted", "models delete", "m@2", "--dry-run"),
    ]:  # fmt: skip
        print_and_check(name, command, *arguments)
    # A second one, from a record that is gone: its site still knows it.
    many = print_and_check("submitted", "submit MANIFEST…", "--repeat", "2").json
    (xdg.state / "dlctl/record.db").unlink()
    print_and_check("adopted", "adopt", "local")
    ids = [each["training_id"] for each in many]
    for each in ids:
        dlctl("logs", "--follow", each)
    print_and_check("deleted", "delete", *ids, "--yes")


@pytest.mark.parametrize(("name", "command", "arguments"), [
    ("search", "status SEARCH", []), ("search-details", "show SEARCH", []),
    ("trial", "search trials", []), ("trial", "search best", []),
    ("trial-details", "show --trial", ["--trial", "0"]),
    ("search-news", "watch", []), ("search-news", "watch --once", ["--once"]),
    ("search-export", "search export", []), ("pool", "search scale", []),
    ("would-end", "cancel --dry-run", ["--dry-run"]),
])  # fmt: skip
def test_a_search_has_its_shapes(dlctl, trainings, tmp_path, name, command, arguments):
    job_dir = tmp_path / "jobs/made-3k9f"
    job_dir.mkdir(parents=True)
    write_search(job_dir, 30, ended=25)
    trainings.add(
        Record("made-3k9f", "made", "local", str(tmp_path), str(job_dir), "2026-01-01T10:00:00",
               job_id="1", state=State.CANCELLED, is_search=True)
    )  # fmt: skip
    words = command.partition(" --")[0].removesuffix(" SEARCH").split()
    done = dlctl(*words, "made-3k9f", *arguments, "--json", ok=True)
    if name != "pool" or done.json:
        check(name, command, done.stdout)
