"""Site files: what is allowed, what an error says, who may be changed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.errors import SiteError
from dlctl.sites.files import (
    Partition,
    TransportSettings,
    list_sites,
    load_site,
    parse_site,
    remove_site,
    save_site,
    set_python,
    user_directory,
    yaml_scalar,
)
from dlctl.sites.model import EnvironmentSettings
from dlctl.yaml_source import MAX_BYTES, load_bytes

SLURM = """\
transport: {kind: ssh, host: login}
root: /scratch/me/dlctl
scheduler: {kind: slurm}
partitions:
  cpu: {nodes: 4, cpus_per_node: 8, memory_per_node: 16GiB, max_time: 1-00:00:00, default: true}
  gpu: {gpus_per_node: 4, gpu_type: a100, max_time: unlimited}
launcher: {kind: srun, mpi: pmix}
environment: {python: /env/bin/python}
"""


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "da ta"))


def wrong(text: str) -> str:
    with pytest.raises(SiteError) as caught:
        parse_site("x", text)
    assert "\n" not in caught.value.hint
    return caught.value.message


def test_the_shipped_sites_are_right(tmp_path):
    local, example = load_site("local"), load_site("slurm-example")
    assert local.transport.kind == local.scheduler.kind == "local"
    assert local.root == str(tmp_path / "da ta/dlctl")
    assert local.environment.python == "auto"
    assert example.partitions["gpu"].gpus_per_node == 4
    assert example.default_partition == "cpu"
    assert [(site.name, site.shipped, site.example) for site in list_sites()] == [
        ("local", True, False),
        ("slurm-example", True, True),
    ]


def test_units_become_bytes_and_seconds_and_numbers_have_limits():
    site = parse_site("x", SLURM)
    assert site.partitions["cpu"].memory_bytes_per_node == 16 * 1024**3
    assert site.partitions["cpu"].max_time_s == 86400
    assert site.partitions["gpu"].max_time_s is None
    assert site.default_partition == "cpu"
    assert Partition(memory_per_node=5, max_time=6).max_time_s == 6
    settings = TransportSettings(kind="ssh", host="h")
    with pytest.raises(ValueError):
        settings.host = "x"
    for port in (0, 65536):
        with pytest.raises(ValueError):
            TransportSettings(kind="ssh", host="h", port=port)


def test_all_errors_are_reported_at_once_with_their_places():
    message = wrong(
        "transport:\n  kind: ssh\n  hots: a\nroot: ~/x\nscheduler: {kind: slrm}\n"
        "launcher: {kind: srun, mpi: 'a b'}\nenvironment:\n  variables: {A: true, B: 1}\n"
        "partitions:\n  a: {memory_per_node: 12}\n"
    )
    lines = message.splitlines()
    assert lines[0] == "the site x:"
    assert "  x.yml:3:3: transport.hots: unknown key; did you mean 'host'?" in lines
    assert "  x.yml:4:7: root: an absolute path is allowed (seen '~/x')" in lines
    assert any(
        "x.yml:5:19: scheduler.kind: 'slrm' is not allowed; 'slurm' or 'local' is allowed" in line
        for line in lines
    )
    assert any("x.yml:8:18: environment.variables.A" in line for line in lines)
    assert any("partitions.a.memory_per_node" in line and "unit" in line for line in lines)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("host: login", "host: ''", "transport.host"),
        (", host: login", "", "kind ssh needs a host"),
        ("host: login", "host: -oProxyCommand=x", "a host does not start with '-'"),
        ("host: login", "host: 'a\\\nb'", None),
        ("kind: ssh, host: login", "kind: local, host: x", "kind local takes no host"),
        ("root: /scratch/me/dlctl", "root: relative", "an absolute path is allowed"),
        ("root: /scratch/me/dlctl", "root: //", "not /"),
        ("root: /scratch/me/dlctl", 'root: "/a\\nb"', "one line"),
        ("root: /scratch/me/dlctl\n", "", "root: is missing"),
        ("{kind: slurm}", "{kind: slurm, cpus: 4}", "cpus is for kind local"),
        ("{kind: slurm}", "{kind: slurm, path: bin}", "an absolute path is allowed"),
        ("{kind: slurm}", "{kind: local}", "srun works only with the scheduler slurm"),
        ("/env/bin/python", "auto", "auto works only with the local transport"),
        ("/env/bin/python", "python3", "an absolute path, auto or null"),
        ("gpus_per_node: 4,", "gpus_per_node: 4, default: true,", "one default is allowed"),
        ("mpi: pmix", "mpi: 'pmix; rm'", "launcher.mpi"),
        ("root:", "name: y\nroot:", "is the site's name"),
        ("{python:", "{variables: {A-B: c}, python:", "'A-B' is not a valid name"),
        ("{python:", "{pip: [--index-url, https://tok@host/], python:", "pip: a URL has a user"),
        ("{python:", "{variables: {PIP_INDEX_URL: https://t:@h/}, python:", "~/.netrc or pip's"),
        ("{python:", "{pip: [x @ git+ssh://git@host/x.git], python:", None),
        ("partitions:", "partitoins: {}\npartitions:", "did you mean 'partitions'?"),
        (
            "{kind: slurm}",
            "{kind: slurm, extra: --nice=5 --arra=0-2}",
            "scheduler.extra: '--arra=0-2', which may mean --array, is not allowed",
        ),
        ("root:", "qqq: 1\nroot:", "allowed are transport, root, scheduler"),
        ("root:", "network: 10.1.0.0/99\nroot:", "or addresses as 10.1.0.0/16, are allowed"),
        ("root:", "network: fd00::/8\nroot:", None),
        ("root:", "failures: {node_mtbf: 30}\nroot:", "failures.node_mtbf: '30' has no unit"),
        ("root:", "failures: {nod_mtbf: 3d}\nroot:", "did you mean 'node_mtbf'?"),
    ],
)
def test_each_fault_has_its_sentence(old, new, said):
    text = SLURM.replace(old, new, 1)
    assert text != SLURM
    if said is None:
        assert parse_site("x", text)
    else:
        assert said in wrong(text)
        assert "tok@" not in wrong(text)


def test_words_may_be_written_as_in_a_shell_or_as_a_list():
    text = SLURM.replace("{kind: slurm}", "{kind: slurm, account: 123, extra: --begin 'now c'}")
    text = text.replace("{python:", "{container: apptainer exec x.sif, setup: 'a\n\n  b', python:")
    site = parse_site("x", text)
    assert site.scheduler.extra == ["--begin", "now c"]
    assert site.scheduler.account == "123"
    assert site.environment.container == ["apptainer", "exec", "x.sif"]


def test_only_the_local_transport_expands_the_root(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "transport: {kind: local}\nroot: ROOT\nscheduler: {kind: local}\n" + (
        "launcher: {kind: mpirun}\nenvironment: {python: auto}\n"
    )
    for written, root in [
        ("~/a", tmp_path / "a"),
        ("${XDG_DATA_HOME}/b", tmp_path / "da ta/b"),
        ("/plain/$HOME/", Path("/plain/$HOME")),
    ]:
        assert parse_site("x", text.replace("ROOT", written)).root == str(root)
    monkeypatch.delenv("XDG_DATA_HOME")
    expanded = parse_site("x", text.replace("ROOT", "$XDG_DATA_HOME/c")).root
    assert expanded == str(tmp_path / ".local/share/c")
    assert "is allowed" in wrong(text.replace("ROOT", "$OTHER/c"))


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "a b", "a\n", "é", "x" * 64])
def test_a_name_is_a_plain_file_name(name):
    for action in (load_site, remove_site, lambda n: save_site(n, SLURM)):
        with pytest.raises(SiteError, match="is not a valid site name"):
            action(name)


def test_a_file_that_is_no_site_is_one_sentence():
    folder = user_directory()
    (folder / "mine.yml").mkdir(parents=True)
    (folder / "big.yml").write_bytes(b"# " + b"x" * MAX_BYTES)
    (folder / "twice.yml").write_text("root: /a\nroot: /b\n")
    (folder / "list.yml").write_text("- a\n")
    found = {"big": "too large", "twice": "appears twice", "list": "keys and values",
             "mine": "there is no site 'mine'"}  # fmt: skip
    for name, said in found.items():
        with pytest.raises(SiteError, match=said) as caught:
            load_site(name)
        assert name == "mine" or str(folder) in caught.value.message
    assert "mine" not in [site.name for site in list_sites()]
    with pytest.raises(SiteError):
        save_site("x", "root: /a\n")
    assert not (folder / "x.yml").exists()


def test_the_users_own_file_comes_first_and_shipped_ones_stay():
    assert save_site("local", SLURM).parent == user_directory()
    assert load_site("local").scheduler.kind == "slurm"
    with pytest.raises(SiteError, match="already exists") as caught:
        save_site("local", SLURM)
    assert "--force" in caught.value.hint
    save_site("local", SLURM.replace("slurm}", "slurm, qos: high}"), force=True)
    assert load_site("local").scheduler.qos == "high"
    remove_site("local")
    assert load_site("local").scheduler.kind == "local"
    with pytest.raises(SiteError, match="can't be removed"):
        remove_site("local")
    with pytest.raises(SiteError, match="no site 'locla'; did you mean 'local'"):
        load_site("locla")


@pytest.mark.parametrize(
    "environment",
    [
        "environment: {}  # none yet\n",
        "environment:\n    python: null   # by setup\n    modules: [a]  # b\n",
        "environment:\n  modules: [a]\n",
        "environment:\n  python: '/a # b'\n",
    ],
)
def test_setup_changes_the_python_and_nothing_else(environment):
    text = SLURM.replace("environment: {python: /env/bin/python}\n", f"# keep\n{environment}")
    save_site("x", text)
    before = load_site("x")
    path = set_python("x", "/new env/bin/python")
    after = load_site("x")
    assert after.environment.python == "/new env/bin/python"
    assert after.environment.modules == before.environment.modules
    assert "# keep\n" in path.read_text()
    assert text.count("# b") == path.read_text().count("# b") or "/a # b" in text


def test_a_site_file_that_cannot_be_changed_safely_stays_unchanged():
    text = SLURM.replace("{python: /env/bin/python}", "{modules: [a]}")
    path = save_site("x", text)
    with pytest.raises(SiteError, match="without changing the rest") as caught:
        set_python("x", "/new")
    assert "python: /new" in caught.value.hint
    assert path.read_text() == text
    # Of a shipped site it writes the user's own file.
    assert set_python("local", "/x/bin/python") == user_directory() / "local.yml"
    assert load_site("local").environment.python == "/x/bin/python"


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
        st.integers(min_value=-(10**20), max_value=10**20),
        st.booleans(),
    )
)
def test_scalars_are_read_as_they_were_written(value):
    written = f"key: {yaml_scalar(value)}\n"
    assert written.count("\n") == 1
    assert load_bytes(written.encode(), "x").data == {"key": value}


@pytest.mark.parametrize(("line", "is_open"), [
    ("export NAME='x", True), ('module load "gcc', True), ("echo it\\'s  # don't", False),
    ("cat <<END; it's; END", False), ("export A=$'it\\'s'", False), ("a='x # y'", False),
])  # fmt: skip
def test_a_quotation_mark_of_setup_that_is_never_closed_is_refused(line, is_open):
    """It swallowed the batch script up to another one, which then blamed the runtime."""
    fields = {"setup": ["module list", line, "cd"]}
    if not is_open:
        assert EnvironmentSettings(**fields).setup[1] == line
        return
    with pytest.raises(ValueError, match="quotation mark is never closed") as refused:
        EnvironmentSettings(**fields)
    assert line in str(refused.value)
