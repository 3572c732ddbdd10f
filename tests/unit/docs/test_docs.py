"""The pages tell the truth: links, commands, manifests, and what they claim to list in full."""

import ast
import dataclasses
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from repository import REPOSITORY

import dlctl
from dlctl import contract, errors
from dlctl.manifest.load import parse_manifest
from dlctl.manifest.model import Manifest
from dlctl.manifest.overrides import Overrides
from dlctl.request.variants import variants
from dlctl.search.load import load_search
from dlctl.sites.files import Site, parse_site
from dlctl.yaml_source import load_bytes

DOCS = REPOSITORY / "docs"
PAGES = [*(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
         *sorted(DOCS.glob("*.md")),
         *sorted((REPOSITORY / "examples").glob("*/README.md"))]  # fmt: skip
MINIMAL_SITE = {
    "transport": "{kind: ssh, host: login.example.org}",
    "root": "/home/alice/dlctl",
    "scheduler": "{kind: slurm}",
    "launcher": "{kind: srun}",
    "environment": "{}",
}


def page_id(path):
    return str(path.relative_to(REPOSITORY))


on_every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


@pytest.fixture(scope="session")
def maker():
    """Return a module of docs/ that writes a page."""

    def load(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(DOCS))
            return import_module(name)

    return load


@pytest.fixture(scope="session")
def generator(maker):
    return maker("make_commands")


@pytest.fixture(scope="session")
def tree(generator):
    return generator.command_tree()


# Links -------------------------------------------------------------------------------------------


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


def slug(heading):
    """Return the anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(path):
    return {slug(h) for h in re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)}


@on_every_page
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page_id(page)} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{page_id(page)} links to {target}"


def test_every_path_of_the_code_that_a_page_names_exists():
    folders = "dlctl|learner|psrv|templates|site_configs|examples|docs|tests|benchmarks"
    for page in (*PAGES, REPOSITORY / "tests/cluster/README.md"):
        for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text()):
            assert page.name == "CHANGELOG.md" or (REPOSITORY / path).exists(), (page, path)


# Commands ----------------------------------------------------------------------------------------


def blocks(text):
    """Yield the lines of code blocks; of fenced ones only those of a shell or without a name."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for language, body in fenced.findall(text):
        if language in ("", "sh", "bash", "console"):
            yield from body.splitlines()
    for line in fenced.sub("", text).splitlines():
        if line.startswith("    "):
            yield line.strip()


def calls(line):
    """Yield the words of each `dlctl` call in a line of shell."""
    line = re.sub(r"(^|\s)#.*$", "", line.removeprefix("$ "))
    for part in re.split(r"&&|\|\||[;|>]", line):
        try:
            words = shlex.split(part)
        except ValueError:
            continue
        if words[:1] == ["dlctl"]:
            yield [word for word in words[1:] if not word.startswith(("[", "…", "..."))]


def find(tree, words):
    """Return the command that words call, and the words left for it; None for a placeholder."""
    command, left, path = tree, list(words), ["dlctl"]
    while getattr(command, "commands", None) and left:
        if left[0].startswith("-"):
            break
        word = left.pop(0)
        if word.isupper():
            return None, []
        assert word in command.commands, f"there is no `{' '.join([*path, word])}`"
        path.append(word)
        command = command.commands[word]
    return command, left


def check_options(command, words):
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    for word in words:
        if word == "--":
            return
        if re.match(r"--?[A-Za-z]", word):
            option = word.partition("=")[0]
            assert option in known | {"--help", "-h", "--debug"}, f"no option {option}"


@on_every_page
def test_every_command_in_a_block_can_be_parsed(page, tree):
    for line in blocks(page.read_text()):
        for words in calls(line):
            command, left = find(tree, words)
            if command is None:
                continue
            check_options(command, left)
            if not getattr(command, "commands", None) and not {"--help", "-h"} & set(left):
                with command.make_context("dlctl", [w for w in left if w != "--debug"]):
                    pass


@on_every_page
def test_every_command_in_a_sentence_exists_with_its_options(page, tree):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"(?<!`)`(dlctl [^`\n]*)`(?!`)", text):
        for words in calls(code):
            command, left = find(tree, words)
            if command is not None:
                check_options(command, left)


def test_every_page_that_is_made_is_current(generator, maker):
    architecture, jobs = maker("make_architecture"), maker("make_job_directory")
    made = {
        DOCS / "commands.md": generator.commands_page(), DOCS / "json.md": generator.json_page(),
        DOCS / "man/dlctl.1": generator.manual_page(),
        DOCS / "manifest.md": maker("make_manifest").page(),
        architecture.PICTURE: architecture.picture(), **jobs.pages(),
    }  # fmt: skip
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"
    assert {f"`{name}`" for name in Manifest.model_fields} <= set(
        re.findall(r"`\w+`", made[DOCS / "manifest.md"])
    )
    rooms = architecture.page()
    assert all(f"### `{p}/`" in rooms for p in ("dlctl/transport", "learner/job", "psrv/shard"))


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff here")
def test_man_shows_the_manual_page_without_a_warning():
    command = ["groff", "-man", "-Tutf8", "-K", "utf8", "-ww", str(DOCS / "man/dlctl.1")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout)  # bold, as one terminal or another has it
    assert "dlctl submit" in shown


def test_every_command_has_help_with_an_example(generator, tree):
    for words, command in generator.leaves(tree, ("dlctl",)):
        example = str(command.help).partition("Example: ")[2]
        found = [call for line in example.splitlines() for call in calls(line)]
        assert found, f"{' '.join(words)} has no example in its help"
        assert find(tree, found[0])[0] is command, words
        for parameter in command.params:
            assert getattr(parameter, "hidden", False) or parameter.help, (words, parameter.name)


# Manifests and sites -----------------------------------------------------------------------------


def yaml_blocks():
    for page in PAGES:
        found = re.findall(r"^```ya?ml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for number, text in enumerate(found, 1):
            yield pytest.param(page, text, id=f"{page_id(page)}:{number}")


@pytest.mark.parametrize(("page", "text"), list(yaml_blocks()))
def test_every_yaml_block_is_valid(page, text, tmp_path):
    """A fragment is completed with the least that is required, and then as strict as any."""
    data = load_bytes(text.encode(), page.name).data
    if isinstance(data, list) or any(key.startswith("framework.") for key in data):
        (tmp_path / "grid.yml").write_text(text)
        assert len(variants([tmp_path / "manifest.yml"], Overrides(), tmp_path / "grid.yml")) > 1
        return
    keys = set(data)
    if "space" in keys:
        (tmp_path / "search.yml").write_text(text)
        assert load_search(tmp_path / "search.yml").spec.space
        return
    is_site = page.name == "sites.md" or keys & {"transport", "root", "launcher", "environment"}
    if is_site:
        assert keys <= set(Site.model_fields), keys
        site = MINIMAL_SITE | ({"transport": "{kind: local}"} if "python: auto" in text else {})
        missing = [f"{key}: {value}\n" for key, value in site.items() if key not in keys]
        assert parse_site("example", "".join(missing) + text).name == "example"
        return
    assert {key.lower() for key in keys} <= set(Manifest.model_fields), keys
    if "name" not in keys:
        text = "name: example\n" + text
    if "framework" not in keys:
        text += "\nframework: {name: pytorch, job: train.py}\n"
    assert parse_manifest(text.encode(), page.name).name


# What is listed in full --------------------------------------------------------------------------


def test_the_tables_of_the_job_directory_are_whole(maker):
    page = maker("make_job_directory").PAGE.read_text(encoding="utf-8")
    modules = [import_module(f"dlctl.contract.{name}") for name in contract._MODULES]
    records = {each for module in modules for each in vars(module).values()
               if dataclasses.is_dataclass(each) and isinstance(each, type)}  # fmt: skip
    assert len(records) > 10
    for record in records:
        section = page.partition(f"### `{record.__name__}`\n")[2].partition("\n### ")[0]
        listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        assert listed == [field.name for field in dataclasses.fields(record)], record.__name__
    files = page.partition("\n## Files\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `([^`]+)`", files, re.MULTILINE))
    below_the_root = {contract.NODES, contract.ENVIRONMENTS, "models", "cache"}
    assert {*contract.DLCTLS} - {"attempts", "search", "stores", "weights"} <= named
    tops = {name.partition("/")[0] for name in named if not name.startswith(("/", "<"))}
    models = {"aliases", "tags", "uses", "description"}
    beside = {contract.DATA, contract.LOGS, contract.JOB_STATE}
    assert tops - beside - below_the_root - models <= {*contract.DLCTLS}
    number, rank = "<n>", "<rank>"
    of_attempts = ("submit_begin", "submit_answer", "claim", "rulings_file", "directive_file",
                   "verdict_file")  # fmt: skip
    assert named >= {
        contract.job_output(number), contract.learner_log(number, rank),
        contract.status_file(number, "<role>", rank),
        contract.preflight_file(number, rank), contract.metrics_file(number, rank),
        *(getattr(contract, name)(number) for name in of_attempts),
    }  # fmt: skip


@pytest.mark.parametrize("package", ["dlctl", "learner", "psrv", "search"])
def test_a_room_has_a_docstring_and_at_most_15_modules(package):
    for folder in {path.parent for path in (REPOSITORY / package).rglob("*.py")}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert doc and doc.count(".") >= 1, folder
        assert len(modules) <= 15, folder


def test_the_page_of_programs_names_every_variable():
    from learner.job import environment
    from learner.job.context import Ranks

    page = (DOCS / "run.md").read_text()
    place = Ranks(0, 1, 0, 1, 0)
    meeting_point = contract.Preflight(0, "host", "3.11", 1, 1, 0)
    for name in (
        *environment.service_variables(Path("/job"), 1, place),
        *environment.torchrun_variables(place, meeting_point),
    ):
        assert f"`{name}`" in page, name


def test_every_exit_code_is_explained():
    families = {c for c in vars(errors).values() if isinstance(c, type)}
    codes = {c.exit_code for c in families if issubclass(c, errors.DlctlError)} | {0, 2, 130}
    page = (DOCS / "commands.md").read_text()
    for code in codes:
        assert f"| {code} |" in page


def test_the_changelog_has_the_version():
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(dlctl.__version__)}\]", text, re.MULTILINE)
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert f'version = "{dlctl.__version__}"' in project
    assert not [page for page in PAGES if str(REPOSITORY) in page.read_text()]
