import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from repository import MANIFESTS

from dlctl.contract import CheckpointPolicy
from dlctl.errors import ManifestError
from dlctl.manifest.checks import check_files, not_in_this_version
from dlctl.manifest.load import load_manifest, parse_manifest
from dlctl.manifest.model import json_schema
from dlctl.manifest.overrides import Overrides
from dlctl.manifest.requirements import requirement_lines
from dlctl.plan.sections import checkpoint_policy, plain_env, plan_stores, training_settings

SMALL = "name: mine\nframework:\n  name: pytorch\n  job: train.py\n"
FIXTURES = sorted((MANIFESTS).glob("*.yml"))


def manifest(text, overrides=None):
    return parse_manifest(text.encode(), "m.yml", overrides)


def problems(text, overrides=None):
    with pytest.raises(ManifestError) as caught:
        manifest(text, overrides)
    return caught.value.problems


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_manifests_of_the_paper_and_of_ffdl_validate_unmodified(path):
    loaded = load_manifest(path)
    assert loaded.learners == 2
    everything_works = path.stem in ("ffdl-host-mount", "ffdl-mount-cos", "listing-1")
    assert bool(not_in_this_version(loaded)) is not everything_works
    assert parse_manifest(loaded.to_yaml().encode(), "again.yml") == loaded.extract_secrets()[0]


def test_listing_1():
    loaded = load_manifest(FIXTURES[-1])
    assert loaded.memory_bytes == 8000 * 2**20
    bare, secrets = loaded.extract_secrets()
    assert secrets == {"data_stores.0.password": "my-password"}
    assert bare.extract_secrets()[1] == {}
    for text in (repr(loaded), str(loaded), loaded.model_dump_json(), loaded.to_yaml()):
        assert "my-password" not in text
    assert not_in_this_version(loaded) == []


def test_a_mounted_store_and_fractional_cpus():
    loaded = load_manifest(FIXTURES[0])
    assert loaded.cpus_per_learner() == 1
    (store,) = plan_stores(loaded)
    assert (store.path, store.training_data) == ("/cosdata", "digits-in")


def test_lines_of_options_in_a_folded_command_belong_to_it():
    command = load_manifest(FIXTURES[0]).framework.command
    assert command is not None and "\n" not in command.strip()
    assert "images.gz --labels ${DATA_DIR}/labels.gz --rate" in command
    folded = "name: a\nframework:\n  name: x\n  command: >\n    if a; then\n      b\n    fi\n"
    assert manifest(folded).framework.command == "if a; then\n  b\nfi\n"
    kept = folded.replace(">", "|").replace("      b", "      -b")
    assert manifest(kept).framework.command == "if a; then\n  -b\nfi\n"


def test_all_of_our_own_keys():
    loaded = manifest(
        SMALL
        + """time: 4:00:00
version: 1.0
checkpoint: {every: 10 steps, keep: 3}
training: {epochs: 3, batch_size: 64, learning_rate_schedule: {name: cosine, warmup_steps: 5},
  exchange: shm, average_every_steps: 4, prefetch: off}
scheduler: {partition: gpu, extra: [--nice=100]}
env: {OMP_NUM_THREADS: 4, ANSWER: no, HF_TOKEN: {from_env: HF_TOKEN}, A: {from_file: ~/a}}
requirements: requirements.txt
"""
    )
    assert loaded.time_s == 14400
    assert loaded.version == "1.0"
    assert checkpoint_policy(loaded).every_steps == 10
    training = training_settings(loaded)
    assert training.learning_rate_schedule.warmup_steps == 5
    assert (training.exchange, training.average_every_steps, training.prefetch) == ("shm", 4, "off")
    training = training_settings(manifest(SMALL))
    assert (training.exchange, training.average_every_steps, training.prefetch) == (
        "auto", 1, "auto",
    )  # fmt: skip
    assert plain_env(loaded) == {"OMP_NUM_THREADS": "4", "ANSWER": "no"}
    assert loaded.references()["A"].from_file == "~/a"
    assert loaded.extract_secrets()[1] == {}
    assert loaded.requirements == ["-r requirements.txt"]
    assert not_in_this_version(loaded) == []
    assert manifest(loaded.to_yaml()) == loaded
    assert manifest("name: a\nframework: {name: x, command: 'git clone https://$TOKEN@host/x'}\n")


@pytest.mark.parametrize(("every", "policy"), [
    ("auto", {"auto": True}),
    ("100 steps", {"every_steps": 100}),
    ("1 epoch", {"every_epochs": 1}),
    ("30min", {"every_s": 1800}),
])  # fmt: skip
def test_when_a_checkpoint_is_taken_and_kept(every, policy):
    loaded = manifest(SMALL + f"checkpoint: {{every: {every}, keep: 3, keep_every: 1000 steps}}\n")
    wanted = CheckpointPolicy(**policy, keep=3, keep_every_steps=1000)
    assert checkpoint_policy(loaded) == wanted
    assert manifest(loaded.to_yaml()) == loaded


def test_all_errors_at_once_each_with_its_place():
    found = problems(
        """name: mine
lerners: 2
gpus: half
memory: 8
time: 60
framework:
  name: pytorch
  comand: python x.py
data_stores:
  - id: a
    type: mount_vol
checkpoint: {keep: 1}
env: {FLAG: true}
"""
    )
    assert found[0].startswith("m.yml:2:1: lerners: unknown key; did you mean 'learners'? Allowed:")
    assert "m.yml:3:7: gpus: 'half' is not allowed; a number is allowed" in found
    assert any(p.startswith("m.yml:4:1: memory: '8' has no unit") for p in found)
    assert any("write 60s, 60m or 60h" in p for p in found)
    assert any(
        p.startswith("m.yml:8:3: framework.comand: unknown key; did you mean 'command'?")
        for p in found
    )
    assert any("data_stores[0].type: 'mount_vol' is unknown; did you mean" in p for p in found)
    assert "m.yml:12:20: checkpoint.keep: '1' is out of bounds; at least 2 is allowed" in found
    assert any("env.FLAG: true is a boolean here; quote it ('true')" in p for p in found)
    assert len(found) == 8


def test_what_is_allowed_is_listed_once():
    found = problems("name: a\nlearnrs: 2\nxyzzy: 1\ntme: 3\nframework: {name: sh, comand: x}\n")
    assert [line.count("scheduler") for line in found] == [1, 0, 0, 0], found
    assert found[1].endswith("xyzzy: unknown key. Allowed: as above")
    assert found[2].endswith("tme: unknown key; did you mean 'time'?")
    assert "Allowed: name, version, image_tag" in found[3]


def test_overrides_are_validated_and_recorded():
    asked = Overrides(learners=4, memory="8GiB", time="4h", set=("framework.arguments.lr=0.1",))
    loaded = manifest(SMALL + "learners: 0\n", asked)
    assert (loaded.learners, loaded.framework.arguments) == (4, {"lr": 0.1})
    assert "learners: 4" in loaded.to_yaml()


def test_a_wrong_override_names_its_option():
    asked = Overrides(gpus="many", set=("trainig.epochs=2", "name.x=1", "nothing"))
    found = problems(SMALL, asked)
    assert any(p.startswith("--gpus: 'many' is not allowed") for p in found)
    assert any(p.startswith("--set: trainig: unknown key; did you mean 'training'") for p in found)
    assert any(p.startswith("--set name.x: leads into") for p in found)
    assert any(p.startswith("--set nothing: not of the form KEY=VALUE") for p in found)


def test_lists_null_and_quoted_text_can_be_set():
    asked = ("scheduler.extra=[--nice=5, '--x=a, b']", "requirements=[]", "time=null",
             "description=''", "env.A='1'", "env.B='a b' --c 'd'")  # fmt: skip
    loaded = manifest(SMALL + "time: 5m\n", Overrides(set=asked))
    assert loaded.scheduler.extra == ["--nice=5", "--x=a, b"]
    assert (loaded.requirements, loaded.time, loaded.description) == ([], None, "")
    assert plain_env(loaded) == {"A": "1", "B": "'a b' --c 'd'"}
    assert manifest(loaded.to_yaml()) == loaded


def test_files_that_are_named_must_be_there(tmp_path):
    text = (
        "name: a\nframework:\n  name: torch\n  job: a.py\n  arguments: {weights: w.pt}\n"
        "requirements: r.txt\n"
    )
    loaded = manifest(text)
    (tmp_path / "a.py").mkdir()
    with pytest.raises(ManifestError) as caught:
        check_files(loaded, tmp_path)
    assert caught.value.problems == [
        f"m.yml:4:8: framework.job: a.py is not a file in {tmp_path}",
        f"m.yml:5:24: framework.arguments.weights: w.pt does not exist in {tmp_path}",
        f"m.yml:6:15: requirements: r.txt does not exist in {tmp_path}",
    ]
    (tmp_path / "a.py").rmdir()
    for name in ("a.py", "w.pt", "r.txt"):
        (tmp_path / name).touch()
    check_files(loaded, tmp_path)


def test_weights_may_be_in_the_training_data(tmp_path):
    (tmp_path / "train.py").touch()
    loaded = manifest(
        SMALL + "  arguments: {weights: w.pt}\ndata_stores:\n  - {id: a, type: mount_volume, "
        "training_data: {container: c}, connection: {path: /d}}\n"
    )
    check_files(loaded, tmp_path)
    with pytest.raises(ManifestError, match="w.pt does not exist"):
        check_files(manifest(SMALL + "  arguments: {weights: w.pt}\n"), tmp_path)


@pytest.mark.parametrize(
    ("variable", "is_secret"),
    [
        ("HF_TOKEN: abc", True),
        ("DB_PASSWORD: 12345678", True),
        ("WANDB_API_KEY: 0123456789abcdef", True),
        ("REMOTE: 'https://me:pw@host/x'", True),
        ("REMOTE: 'https://tok123@host/x'", True),
        ("REMOTE: 'git+ssh://git@host/x'", False),
        ("SORT_KEY: name", False),
        ("TOKENIZERS_PARALLELISM: no", False),
        ("MAX_TOKENS: 512", False),
        ("PAGE: 'https://host/x'", False),
    ],
)
def test_credentials_in_env(variable, is_secret):
    loaded = manifest(SMALL + f"env: {{{variable}}}\n")
    name = variable.split(":")[0]
    assert (name in loaded.secret_names()) is is_secret
    assert (name in loaded.extract_secrets()[1]) is is_secret
    assert (name in plain_env(loaded)) is not is_secret


def asked(folder, text):
    (folder / "m.yml").write_text(f"{SMALL}requirements: {text}\n")
    return requirement_lines(load_manifest(folder / "m.yml"), folder)


def test_requirements_are_those_of_the_list_and_of_each_file(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "r.txt").write_text(
        "# mine\nboto3 >= 1.30 ; python_version < '3.13'  # why\n\n--no-index\n"
        "-r more/more.txt\nrich==13.0 \\\n  --hash=sha256:ab\n"
    )
    (tmp_path / "more/more.txt").write_text("-f /sw/wheels\r\n--requirement=last.txt")
    (tmp_path / "more/last.txt").write_text("git+https://example.org/a/b.git@v1#egg=b")
    found = [
        "boto3 >= 1.30 ; python_version < '3.13'", "--no-index", "-f /sw/wheels",
        "git+https://example.org/a/b.git@v1#egg=b", "rich==13.0   --hash=sha256:ab",
    ]  # fmt: skip
    assert asked(tmp_path, "r.txt") == found
    assert asked(tmp_path, "[einops, -r r.txt]") == ["einops", *found]
    assert asked(tmp_path, "[]") == []


@pytest.mark.parametrize(("line", "said"), [
    ("-e .", "r.txt:2: the option -e of pip is not possible here"),
    ("./mine", "r.txt:2: './mine' is a path of this machine; a program imports its folder's own"),
    ("wheels/a.whl", "r.txt:2: 'wheels/a.whl' is a path of this machine"),
    ("--find-links wheels", "r.txt:2: 'wheels' is on no site; an absolute path there or a URL"),
    ("-c other.txt", "r.txt:2: the option -c of pip"),
    ("--index-url https://me:secret@example.org/simple", "r.txt:2: holds a credential"),
    ("x @ git+https://secret123@host/x.git", "r.txt:2: holds a credential"),
    ("git+https://${TOKEN}@host/x.git", "into ~/.netrc (chmod 600), which pip and git read"),
    ("-r https://secret123@host/r.txt", "r.txt:2: holds a credential"),
    ("git+ssh://alice:secret@host/x.git", "r.txt:2: holds a credential"),
    ("https://host/x.whl?sv=2026&sig=secret123", "r.txt:2: holds a credential"),
    ("-f https://host/simple?private_token=secret123", "r.txt:2: holds a credential"),
    ("git+https://\\\nsecret123@host/x.git", "r.txt:3: holds a credential"),
    ("-r other.txt", "other.txt can't be read: No such file or directory"),
    ("-r r.txt", "r.txt:2: more than 20 files of requirements"),
    ("a\tb\x01", "r.txt:2: control characters are not allowed"),
])  # fmt: skip
def test_a_requirement_that_no_site_can_install_is_refused_in_place(tmp_path, line, said):
    (tmp_path / "r.txt").write_text(f"boto3\n{line}\n")
    with pytest.raises(ManifestError) as refused:
        asked(tmp_path, "r.txt")
    assert len(refused.value.problems) == 1
    assert said in refused.value.problems[0]
    assert "secret" not in refused.value.message
    with pytest.raises(ManifestError):  # as `dlctl validate` does
        check_files(load_manifest(tmp_path / "m.yml"), tmp_path)


def test_the_schema_says_bounds_in_its_own_words():
    server = json_schema()["$defs"]["ParameterServerSection"]["properties"]
    assert server["staleness"]["anyOf"][0] == {"type": "integer", "minimum": 0}
    momentum = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
    assert server["momentum"]["anyOf"][0] == momentum
    assert server["push_every"]["minimum"] == 1


def test_the_schema_describes_every_key():
    schema = json_schema()
    json.dumps(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    for properties in [schema, *schema["$defs"].values()]:
        for name, entry in properties.get("properties", {}).items():
            target = schema["$defs"].get(entry.get("$ref", "").rpartition("/")[2], {})
            assert entry.get("description") or target.get("description"), name


@pytest.mark.parametrize(("option", "said"), [
    ("--output=x", "'--output=x' is not allowed, because dlctl decides it; remove it"),
    ("--arra=0-2", "'--arra=0-2', which may mean --array, is not allowed"),
    ("--wra", "which may mean --wrap,"),
    ("--outpu x", "which may mean --output,"),
    ("--nodes=2", "'--nodes=2' is set by dlctl itself; use `nodes` in the manifest instead"),
    ("-N2", "'-N2', which may mean --nodes, is set by dlctl itself; use `nodes` in the manifest"),
    ("-N 2", "use `nodes`"), ("-HN2", "use `nodes`"), ("--n", "--no-kill"),
    ("-n=2", "use `learners`"), ("--ntas=2", "use `learners`"),
    ("--mem=4G", "use `memory`"), ("--mem-per-c=1", "use `memory`"),
    ("--time", "use `time`"), ("-t5", "use `time`"), ("--tim=5", "use `time`"),
    ("--cpus-per-t=2", "use `cpus`"), ("-c 2", "use `cpus`"),
    ("--partition=big", "use `scheduler.partition`"), ("-pbig", "use `scheduler.partition`"),
    ("--acco=me", "use `scheduler.account`"), ("-A me", "use `scheduler.account`"),
    ("--", "'--' is not an option"), ("nice", "'nice' is not an option"),
])  # fmt: skip
def test_sbatch_options_that_are_dlctls_are_refused_in_each_spelling(option, said):
    (problem,) = problems(f"{SMALL}scheduler:\n  extra:\n    - --nice=100\n    - '{option}'\n")
    assert problem.startswith("m.yml:8:7: scheduler.extra[1]: ")
    assert said in problem


@pytest.mark.parametrize(("text", "asked", "learners", "per_node"), [
    ("nodes: 2", {}, 2, 1),
    ("learners_per_node: 4", {}, 4, 4),
    ("nodes: 2\nlearners_per_node: 3", {}, 6, 3),
    ("nodes: 2\nlearners_per_node: 3", {"nodes": 4}, 12, 3),
    ("learners: 6\nnodes: 2", {}, 6, 3),
    ("learners: 6\nlearners_per_node: 2", {}, 6, 2),
    ("learners: 6\nnodes: 2\nlearners_per_node: 3", {}, 6, 3),
    ("learners: 6\nnodes: 2", {"learners": 4}, 4, 2),
    ("learners: 6", {}, 6, None),
    ("learners: 6", {"nodes": 2, "learners_per_node": 1}, 2, 1),
    ("nodes: 2\nlearners_per_node: 3", {"learners": 8, "nodes": 4}, 8, 2),
])  # fmt: skip
def test_nodes_and_learners_per_node_give_the_learners(text, asked, learners, per_node):
    loaded = manifest(f"{SMALL}{text}\n", Overrides(**asked))
    assert (loaded.learners, loaded.fixed_per_node) == (learners, per_node)
    stored = manifest(loaded.to_yaml())
    assert (stored.learners, stored.fixed_per_node) == (learners, per_node)


@pytest.mark.parametrize("option", [
    "--nice=100", "--nic=100", "--mail-type=END", "--exclusive", "--nodelist=a", "--nodel=a",
    "-w a", "-xN1", "-H", "--time-min=1h", "--mem-bind=local", "--ntasks-per-core=1",
])  # fmt: skip
def test_other_sbatch_options_are_passed_on(option):
    assert manifest(f"{SMALL}scheduler: {{extra: ['{option}']}}\n").scheduler.extra == [option]


@given(st.text(max_size=30))
@example("\x85")
@example("a\n b\n\u2028\n")
@example("1e-3")
def test_any_argument_survives_storing(value):
    loaded = manifest(SMALL)
    changed = loaded.framework.model_copy(update={"arguments": {"x": value}})
    stored = loaded.model_copy(update={"framework": changed}).to_yaml()
    assert manifest(stored).framework.arguments == {"x": value}


@pytest.mark.parametrize("user", ["tok123", "tok123:", "me:tok123", "git:tok123", "${TOK123}"])
def test_the_user_of_a_requirements_url_is_never_shown(user):
    (problem,) = problems(SMALL + f"requirements: [einops, 'x @ git+https://{user}@host/x.git']\n")
    assert "requirements[1]: holds a credential" in problem and "~/.netrc" in problem
    assert "tok123" not in problem.lower()


NAMELESS = SMALL.partition("\n")[2]


@pytest.mark.parametrize(("text", "asked", "said"), [
    # The loop and its checkpoints
    ("training: {exchange: hierachical}", {}, "m.yml:5:22: training.exchange: 'hierachical' is"
     " unknown; did you mean 'hierarchical'? Allowed: auto, shm, mpi, hierarchical, torch"),
    ("training: {average_every: 4}", {}, "m.yml:5:12: training.average_every: unknown key;"
     " did you mean 'average_every_steps'? Allowed: "),
    ("training: {average_every_steps: 0}", {}, "m.yml:5:33: training.average_every_steps: '0' is"
     " out of bounds; at least 1 is allowed"),
    ("training: {prefetch: true}", {}, "m.yml:5:22: training.prefetch: 'true' is unknown."
     " Allowed: auto, on, off"),
    ("checkpoint: {every: auot}", {}, "m.yml:5:14: checkpoint.every: 'auot' is not an interval;"
     " did you mean 'auto'? Write 'auto', '10 steps', '1 epoch', or a time such as '5m'"),
    ("checkpoint: {every: 10}", {}, "m.yml:5:14: checkpoint.every: '10' is not an interval;"
     " did you mean '10 steps'?"),
    ("checkpoint: {every: 0 steps}", {},
     "m.yml:5:14: checkpoint.every: '0 steps' is not an interval; write 'auto'"),
    ("checkpoint: {keep_every: 1000 stepps}", {}, "m.yml:5:14: checkpoint.keep_every: '1000 stepps'"
     " is not a number of steps; did you mean '1000 steps'? Write '1000 steps'"),
    ("checkpoint: {keep_every: 2 epochs}", {}, "m.yml:5:14: checkpoint.keep_every: '2 epochs' is"
     " not a number of steps; write '1000 steps'"),
    # Names and texts
    (f"name: ''\n{NAMELESS}", {},
     "m.yml:1:7: name: '' is not allowed; text that is not empty is allowed"),
    (f"name: {'n' * 201}\n{NAMELESS}", {},
     "m.yml:1:1: name: is 201 characters long; at most 200 are allowed"),
    (f"description: {'d ' * 5001}e", {},
     "m.yml:5:1: description: is 10,003 characters long; at most 10,000 are allowed"),
    ("tags: [a]", {}, "m.yml:5:1: tags: unknown key; tags are given with `dlctl submit --tag"),
    ("image: a.sif", {}, "m.yml:5:1: image: unknown key; it belongs to the site"),
    ("gpus: -1", {}, "m.yml:5:7: gpus: '-1' is out of bounds; at least 0 is allowed"),
    ("learners: 1\nLearners: 2", {}, "m.yml:6:1: Learners: appears twice, in different case"),
    # Variables and references
    ("env: {A: {from_env: X, from_file: y}}", {},
     "m.yml:5:7: env.A: one of {from_env: NAME}, {from_file: PATH}, {from_profile: NAME}"),
    ("env: {A: {from_evn: X}}", {}, "m.yml:5:11: env.A.from_evn: unknown key; did you mean"
     " 'from_env'? Allowed: from_env, from_file"),
    ('env:\n  A: 1\n  "A B;id": x', {},
     "m.yml:7:3: env.A B;id: 'A B;id' is not a valid variable name"),
    ("env: [A=1]", {}, "m.yml:5:6: env: a list is not allowed; keys with values, `KEY: value`, are"
     " allowed"),
    ('env:\n  A: 1\n  B: "a\\0"', {}, "m.yml:7:3: env.B: holds a null character"),
    # Options
    ("", {"set": ("",)}, "--set '': not of the form KEY=VALUE"),
    ("", {"set": ("=1",)}, "--set '': not of the form KEY=VALUE"),
    ("", {"set": ("framework.arguments.lr=",)}, "--set framework.arguments.lr: a value is missing; "
     "framework.arguments.lr=null takes"),
    ("", {"set": ("scheduler.extra=[--x",)}, "--set scheduler.extra: the list is not valid YAML"),
    ("", {"set": ("scheduler.extra=[{a: b}]",)}, "--set scheduler.extra: a list of single values"),
    ("", {"set": ("learners=[1]",)}, "--set: learners: a list is not allowed"),
    ("", {"time": "5"}, "--time: '5' has no unit"),
    # Nodes
    ("learners: 5\nnodes: 2\nlearners_per_node: 2", {}, "m.yml:5:1: learners: 5 is not nodes x "
     "learners_per_node, 2 x 2 = 4; name two of the three"),
    ("nodes: 2\nlearners_per_node: 2", {"learners": 5}, "--learners: 5 is not nodes x"),
    ("learners: 5\nnodes: 2", {},
     "m.yml:6:1: nodes: 5 learners can't be spread evenly over 2 nodes; 4"),
    ("learners: 5", {"learners_per_node": 2}, "--learners-per-node: 5 learners are not a multiple"),
    ("learners: 1", {"nodes": 2}, "--nodes: 1 learners can't be spread evenly over 2 nodes"),
    ("nodes: 0", {}, "m.yml:5:8: nodes: '0' is out of bounds; at least 1 is allowed"),
    ("nodes: 1000\nlearners_per_node: 1000", {}, "m.yml:5:1: nodes: 1000000 learners are too many"),
])  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_place(text, asked, said):
    (problem,) = problems(text if text.startswith("name:") else f"{SMALL}{text}\n",
                          Overrides(**asked))  # fmt: skip
    assert problem.startswith(said), problem


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("{name: pytorch}", "neither of 'command' and 'job'"),
        ("{name: x, command: }", "neither of 'command' and 'job' is set"),
        ("{command: python a.py, arguments: {lr: 1}}", "arguments: a command gets no arguments"),
        ("{name: pytorch, job: a.py, command: b}", "both of 'command' and 'job' are set"),
        ("{name: pytorch, job: ../a.py}", "leaves the folder"),
        ("{name: pytorch, job: /a.py}", "leaves the folder"),
        ("{name: pytorch, job: a.py, arguments: {weights: /w}}", "leaves the folder"),
        ("{job: a.py}", "framework.name: is missing"),
        ('{name: sh, command: "echo a\\0b"}', "command: holds a null character, which no program"),
        ("{name: x, command: 'curl https://me:hunter2@host/'}", "holds a credential"),
        ("{name: x, command: 'API_TOKEN=hunter2 run'}", "holds a credential"),
        ("{name: x, command: 'pip install git+https://tok123@host/x.git'}", "holds a credential"),
        ("[1]", "framework: a list is not allowed"),
    ],
)
def test_frameworks(framework, expected):
    (problem,) = problems(f"name: mine\nframework: {framework}\n")
    assert expected in problem
    assert problem.startswith("m.yml:2:")
    assert "hunter2" not in problem


def test_an_error_beside_a_credential_does_not_show_it():
    found = problems(SMALL + "learners: x\nenv: {A_PASSWORD: [hunter2], 1B_SECRET: hunter2}\n")
    assert len(found) == 3
    misplaced = "learners: https://me:hunter2@host/\nmemory: ghp_0123456789abcdefghij\n"
    found += problems(SMALL + misplaced)
    assert len(found) == 7
    assert "hunter2" not in "\n".join(found)
    assert "0123456789" not in "\n".join(found)


def test_yaml_problems_are_manifest_errors():
    assert problems("") == ["m.yml: the file is empty"]
    assert "keys with values" in problems("- a\n")[0]
    assert len(manifest(f"name: {'n' * 200}\n{NAMELESS}").name) == 200


@pytest.mark.parametrize(
    "url", ["git+ssh://git@host/x", "git+ssh://alice@host/x", "git+https://h/x"]
)
def test_a_name_for_ssh_is_no_credential(tmp_path, url):
    assert asked(tmp_path, f"['x @ {url}.git@v1']") == [f"x @ {url}.git@v1"]
