"""Data stores on the way from a manifest to a request: types, keys, scripts, credentials."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from answering_server import answering
from login_side import make_site

from dlctl.contract.stores import store_script
from dlctl.errors import ManifestError, PlanError
from dlctl.lifecycle.submit import renew_credentials
from dlctl.manifest.load import load_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.request.build import look_over, prepare
from dlctl.request.profiles import LoggedOut
from dlctl.store_checks import check_stores, refuse_wrong_stores
from dlctl.transport.local import LocalTransport

HEAD = "name: a\nframework: {name: any, command: 'true'}\ndata_stores:\n"
S3 = """\
  - id: mine
    type: s3_datastore
    training_data: {container: tf_training_data}
    connection:
      auth_url: http://s3.default.svc.cluster.local/
      user_name: me
      password: hunter2-hunter2
"""


def prepared(folder, text=S3, **site):
    (folder / "m.yml").write_text(HEAD + text)
    more = "".join(f"{key}: {json.dumps(value)}\n" for key, value in site.items())
    return prepare(folder / "m.yml", Overrides(), make_site(more=more))


TAPE = "  - {id: a, type: tape, training_data: {container: x}, connection: {}}\n"


def make_type(folder, schema="connection: {}\n", name="tape", **scripts):
    """Write a type of data store of the user's own; return its folder."""
    mine = folder / "templates/stores" / name
    mine.mkdir(parents=True, exist_ok=True)
    (mine / "store.yml").write_text(schema)
    for script, text in scripts.items():
        (mine / f"{script}.sh.j2").write_text(text)
    return mine


def problems(folder, text):
    (folder / "m.yml").write_text(HEAD + text)
    with pytest.raises(ManifestError) as caught:
        load_manifest(folder / "m.yml")
    return caught.value.problems


def test_a_store_becomes_two_scripts_and_its_credentials_files(tmp_path):
    request = prepared(tmp_path, S3 + "    training_results: {container: out}\n")
    (store,) = request.plan.data_stores
    assert (store.scripts, store.needs, store.via) == (["load", "store"], ["obstore"], "node")
    assert store.connection["region"] == "us-standard", "a default of the type"
    assert set(request.scripts) == {store_script(0, "load"), store_script(0, "store")}
    assert request.secrets == {"data_stores.0.password": "hunter2-hunter2"}
    assert store.secrets["password"].endswith(f"{request.plan.training_id}/data_stores.0.password")
    sent = f"{request.plan} {request.manifest} {request.script} {request.scripts}"
    assert "hunter2" not in sent


def test_a_sites_file_rewrites_addresses_and_says_who_moves_the_data(tmp_path):
    endpoints = {"http://s3.default.svc.cluster.local": "https://s3.example.org"}
    request = prepared(tmp_path, endpoints=endpoints, data_via="login")
    (store,) = request.plan.data_stores
    assert store.connection["auth_url"] == "https://s3.example.org/"
    assert store.via == "login"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("      user_name: me\n", "", "m.yml:7:5: data_stores[0].connection: user_name is missing"),
        ("user_name", "username", "m.yml:9:7: data_stores[0].connection.username: unknown key; did"
         " you mean 'user_name'? Allowed: auth_url, user_name"),
        ("http://s3.default", "s3.default", "m.yml:8:7: data_stores[0].connection.auth_url: is no"
         " URL; http://"),
        ("s3_datastore", "s3_datastor", "m.yml:5:11: data_stores[0].type: 's3_datastor' is unknown;"
         " did you mean 's3_datastore'? Allowed: azure_datastore, bluemix_objectstore"),
        ("http://s3.default", "http://me:hunter2@s3.default", "m.yml:8:7: data_stores[0].connection"
         ".auth_url: holds a credential, or refers to one; the address alone"),
        ("cluster.local/", "cluster.local/?token=hunter2", "auth_url: must end before `?`"),
        ("s3_datastore", "http", "data_stores[0].connection.auth_url: unknown key"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_store_has_a_place(tmp_path, old, new, said):
    assert old in S3
    found = problems(tmp_path, S3.replace(old, new))
    assert any(said in each for each in found), found
    assert not any("hunter2" in each for each in found)


def test_a_credential_that_is_not_set_is_named_as_in_the_manifest(tmp_path, monkeypatch):
    monkeypatch.delenv("ABSENT", raising=False)
    assert "password: hunter2-hunter2" in S3
    text = S3.replace("hunter2-hunter2", "{from_env: ABSENT}")
    said = r"data_stores\[0\].connection.password: the variable ABSENT is not set"
    with pytest.raises(ManifestError, match=said):
        prepared(tmp_path, text)


def at(kind="local"):
    """An open site on this machine whose jobs are run by a scheduler of a kind."""
    site = SimpleNamespace(name="here", scheduler=SimpleNamespace(kind=kind),
                           transport=SimpleNamespace(kind="local"))  # fmt: skip
    return SimpleNamespace(site=site, transport=LocalTransport())


def notes_of(request, kind="local"):
    """Return what is said of a request's stores that are not refused."""
    notes = []
    refuse_wrong_stores(at(kind), request, SimpleNamespace(note=notes.append))
    return notes


def test_a_store_that_cannot_be_asked_from_here_is_named_once(tmp_path):
    make_type(tmp_path, load="true\n", store="true\n")
    text = TAPE.replace("connection: {}", "training_results: {container: y}")
    (note,) = notes_of(prepared(tmp_path, text))
    assert "data store a: not checked from this machine: its type has scripts" in note


@pytest.mark.parametrize(("text", "said"), [
    ("  - {id: a, type: http, training_results: {container: x}, connection: {url: http://h}}\n",
     "data_stores[0].training_results: a store of the type http takes no results"),
    ("  - {id: a, type: mount_volume, connection: {path: /d}, training_results: {container: x,"
     " checkpoints: true}}\n", "training_results.checkpoints: a mount_volume takes no checkpoints"),
])  # fmt: skip
def test_a_store_takes_only_what_its_type_does(tmp_path, text, said):
    (problem,) = problems(tmp_path, text)
    assert said in problem


@pytest.mark.parametrize(("schema", "said"), [
    ("like: s3_datastore\n", ["is like itself"]),
    ("like: mount_cos\nneeds: [mine]\n", ["is like itself"]),
    ("connection: {Auth: {}}\n", ["connection.Auth: small letters"]),
    ("conection: {}\nconnection:\n  a: {requird: true}\n",
     ["/store.yml:1:1: conection: unknown key; Allowed: description, like",
      "/store.yml:3:7: connection.a.requird: unknown key; Allowed: descr"]),
])  # fmt: skip
def test_a_type_of_the_folder_wins_and_a_wrong_one_is_named(tmp_path, schema, said):
    mine = make_type(tmp_path, schema, "s3_datastore")
    found = "\n".join(problems(tmp_path, S3))
    assert all(each in found for each in said), found
    make_type(tmp_path, "like: swift_datastore\n", "s3_datastore", load="{{ nothing }}\n")
    with pytest.raises(ManifestError, match=rf"{mine}/load.sh.j2: 'nothing' is undefined"):
        prepared(tmp_path)


def test_a_type_says_which_of_its_keys_are_credentials(tmp_path):
    make_type(tmp_path, "connection: {combination: {secret: true}}\n", load="true\n")
    request = prepared(tmp_path, TAPE.replace("n: {}", "n: {combination: 4711}"))
    assert request.secrets == {"data_stores.0.combination": "4711"}
    assert "4711" not in request.manifest


def test_credentials_from_a_profile_or_a_keyring(tmp_path, monkeypatch):
    file = tmp_path / "credentials"
    file.write_text("[cos]\naws_access_key_id = AKID\naws_secret_access_key = s%cret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    text = S3.replace("hunter2-hunter2", "{from_profile: cos}")
    text = text.replace("user_name: me", "user_name: {from_profile: cos}")
    (tmp_path / "f").mkdir()
    assert prepared(tmp_path / "f", text).secrets == {
        "data_stores.0.user_name": "AKID", "data_stores.0.password": "s%cret",
        "data_stores.0.session_token": ""}  # fmt: skip
    with pytest.raises(ManifestError, match="the profile 'none' in .* has no aws_access"):
        prepared(tmp_path / "f", S3.replace("hunter2-hunter2", "{from_profile: none}"))
    with pytest.raises(ManifestError, match="password: the package keyring is not installed"):
        prepared(tmp_path / "f", S3.replace("hunter2-hunter2", "{from_keyring: cos/me}"))


def test_a_port_may_be_a_number(tmp_path):
    text = (
        "  - {id: a, type: sftp, training_data: {container: /x}, connection: {host: h, port: 2222,"
        " user_name: me}}\n"
    )
    assert prepared(tmp_path, text).plan.data_stores[0].connection["port"] == "2222"


def test_a_laptop_runs_no_scripts_of_a_type(tmp_path):
    make_type(tmp_path, load="true\n")
    with pytest.raises(PlanError, match="scripts of its own, which don't run on this machine"):
        prepared(tmp_path, TAPE, data_via="laptop")


@pytest.mark.parametrize(("script", "said"), [
    ("if true; then\n", "line 1: bash can't read it: syntax error: unexpected end of file"),
    ("echo {{ store.idd }}\n", "has no attribute 'idd'"),
])  # fmt: skip
def test_validate_finds_what_is_wrong_with_a_stores_script(tmp_path, script, said):
    make_type(tmp_path, "connection:\n  shelf: {required: true}\n", load=script)
    (tmp_path / "m.yml").write_text(HEAD + TAPE.replace("n: {}", "n: {shelf: a}"))
    with pytest.raises(ManifestError) as caught:
        look_over(load_manifest(tmp_path / "m.yml"), tmp_path)
    assert "tape/load.sh.j2: " in caught.value.message and said in caught.value.message


OF_A_PROFILE = S3.replace("hunter2-hunter2", "{from_profile: cos}").replace(
    "user_name: me", "user_name: {from_profile: cos}"
)
ENDS = "2036-01-01T00:00:00Z"


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Return what writes AWS's two files, and a program `aws` that says one thing."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("bin", "f"):
        (tmp_path / name).mkdir()

    def write(credentials="", config="", aws=None):
        (tmp_path / "credentials").write_text(credentials)
        (tmp_path / "config").write_text(config)
        if aws is not None:
            (tmp_path / "bin/aws").write_text(f"#!/bin/sh\necho $@ >>{tmp_path}/asked\n{aws}\n")
            (tmp_path / "bin/aws").chmod(0o755)
        return tmp_path / "f"

    return write


def test_the_token_of_a_profile_comes_along(profile):
    """It was dropped, and S3 refuses the key of an assumed role without it."""
    folder = profile("[cos]\naws_access_key_id = ASIAX\naws_secret_access_key = s3cret\n"
                     f"aws_session_token = TOKEN\nx_security_token_expires = {ENDS}\n")  # fmt: skip
    request = prepared(folder, OF_A_PROFILE)
    assert request.secrets["data_stores.0.session_token"] == "TOKEN"
    (store,) = request.plan.data_stores
    assert store.secrets["session_token"].endswith("data_stores.0.session_token")
    (note,) = [each for each in request.plan.not_in_this_version if "temporary" in each]
    assert "data store mine: its temporary key ends at " in note and "2036" in note
    assert "log in again and resume it, or see docs/stores.md#temporary-keys" in note


@pytest.mark.parametrize("config", [
    "[profile cos]\nsso_session = x\n",
    "[profile cos]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = default\n",
    "[profile cos]\ncredential_process = /bin/mine\n",
])  # fmt: skip
def test_the_key_of_a_log_in_is_awss_own_programs(profile, tmp_path, config):
    row = {"AccessKeyId": "ASIAY", "SecretAccessKey": "s", "SessionToken": "T", "Expiration": ENDS}
    folder = profile("", config, f"echo '{json.dumps(row)}'")
    secrets = prepared(folder, OF_A_PROFILE).secrets
    assert set(secrets.values()) == {"ASIAY", "s", "T"}
    assert (tmp_path / "asked").read_text() == "configure export-credentials --profile cos\n"


def test_a_profile_that_gives_no_key_says_what_to_do(profile, monkeypatch, tmp_path):
    config = "[profile cos]\nsso_session = x\n"
    folder = profile("", config)
    with monkeypatch.context() as without_aws:
        without_aws.setenv("PATH", str(tmp_path / "nothing"))
        with pytest.raises(ManifestError, match="needs AWS's command line.*no `aws` here") as none:
            prepared(folder, OF_A_PROFILE)
    assert "install version 2" in none.value.hint
    of_1 = "argument subcommand: Invalid choice, valid choices are:"
    profile("", config, f"echo '{of_1}' >&2; echo 'set   | add-model' >&2; exit 252")
    with pytest.raises(ManifestError, match="needs AWS's command line.*the `aws` here is version"):
        prepared(folder, OF_A_PROFILE)
    profile("", config, "echo 'Token for x has expired' >&2; exit 255")
    with pytest.raises(ManifestError, match="user_name: the profile 'cos' gives no key: Token for"):
        prepared(folder, OF_A_PROFILE)
    profile("[cos]\naws_access_key_id=ASIAX\naws_secret_access_key=s\naws_session_token=T\n"
            "aws_expiration=2020-01-01T00:00:00Z\n")  # fmt: skip
    with pytest.raises(ManifestError, match="the temporary key of .* ended at .*2020"):
        prepared(folder, OF_A_PROFILE)


def test_a_resumption_after_the_end_of_a_session_sends_nothing_and_one_elsewhere_is_none(profile):
    ended = ("[cos]\naws_access_key_id=ASIAX\naws_secret_access_key=s\naws_session_token=T\n"
             "aws_expiration=2020-01-01T00:00:00Z\n")  # fmt: skip
    for credentials, refusal in ((ended, pytest.raises(LoggedOut, match="ended at .*2020")),
                                 ("", nullcontext())):  # fmt: skip
        with refusal:  # nothing is open that it could send to
            renew_credentials(None, None, (HEAD + OF_A_PROFILE).encode(), profile(credentials))


def test_a_temporary_key_without_its_token_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("KEY", "ASIAZZZZZZZZZZZZZZZZ")
    text = S3.replace("user_name: me", "user_name: {from_env: KEY}")
    with pytest.raises(ManifestError, match="ASIAZZZZ… is a temporary key") as caught:
        prepared(tmp_path, text)
    assert "session_token: {from_env: AWS_SESSION_TOKEN}" in caught.value.hint
    monkeypatch.setenv("TOKEN", "T")
    more = "      session_token: {from_env: TOKEN}\n"
    assert prepared(tmp_path, text + more).secrets["data_stores.0.session_token"] == "T"


def test_the_profile_of_the_shell_is_awss_own_variable(profile, monkeypatch):
    folder = profile("[default]\naws_access_key_id=d\naws_secret_access_key=x\n"
                     "[mine]\naws_access_key_id=m\naws_secret_access_key=x\n")  # fmt: skip
    text = OF_A_PROFILE.replace("cos", "$AWS_PROFILE")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert prepared(folder, text).secrets["data_stores.0.user_name"] == "m"
    monkeypatch.delenv("AWS_PROFILE")
    assert prepared(folder, text).secrets["data_stores.0.user_name"] == "d"


@pytest.mark.parametrize("access", ["node", "public"])
def test_a_store_that_needs_no_key_asks_for_none(tmp_path, access):
    keys = "      user_name: me\n      password: hunter2-hunter2\n"
    request = prepared(tmp_path, S3.replace(keys, f"      access: {access}\n"))
    assert request.secrets == {}
    assert request.plan.data_stores[0].connection["access"] == access
    (found,) = problems(tmp_path, S3.replace(keys, "      access: role\n"))
    assert "connection.access: node or public is allowed" in found


MOUNT = """\
  - {id: a, type: host_mount, training_data: {container: DATA}, connection: {path: PATH},
     training_results: {container: out}}
"""


def test_a_directory_that_is_not_there_is_said_before_the_queue(tmp_path):
    """It passed, and the job's preflight failed, hours later."""
    (tmp_path / "there/data").mkdir(parents=True)
    text = MOUNT.replace("PATH", str(tmp_path / "there"))
    right = prepared(tmp_path, text.replace("DATA", "data"))
    assert notes_of(right) == []
    assert [each.state for each in check_stores(at(), right)] == ["ok", "ok"]
    wrong = prepared(tmp_path, text.replace("DATA", "date"))
    lack = f"{tmp_path}/there/date of data store 'a' is not"
    with pytest.raises(PlanError, match=f"nothing was sent: {lack} there") as caught:
        notes_of(wrong)
    assert caught.value.hint == "Correct `connection.path`, or make the directory"
    (note,) = notes_of(wrong, "slurm")
    assert f"{lack} on the login node" in note and "--from node" in note


LISTED = """<ListBucketResult><Contents><Key>a</Key><Size>1</Size><ETag>"x"</ETag>
<LastModified>2026-01-01T00:00:00Z</LastModified></Contents><Contents><Key>a/b</Key><Size>1</Size>
<ETag>"y"</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>"""


@pytest.mark.parametrize(("listed", "said"), [
    (LISTED, "The object 'a' in the container .* can't become a file of DATA_DIR: other objects"),
    ("<ListBucketResult></ListBucketResult>",
     "The container 'tf_training_data' of data store 'mine' .* is empty"),
])  # fmt: skip
def test_submit_refuses_what_a_check_refuses(tmp_path, listed, said):
    """Only the first object counted: the job failed when it loaded."""
    with answering(200, lambda method, _: None if method == "HEAD" else listed.encode()) as url:
        request = prepared(tmp_path, S3.replace("http://s3.default.svc.cluster.local/", url))
        (check,) = check_stores(at(), request)
        assert check.state == "failed"
        with pytest.raises(PlanError, match=said) as caught:
            notes_of(request)
    assert caught.value.message == f"nothing was sent: {check.seen}"


def test_the_role_of_a_node_is_not_this_machines(tmp_path):
    keys = "      user_name: me\n      password: hunter2-hunter2\n"
    request = prepared(tmp_path, S3.replace(keys, "      access: node\n"))
    session = at()
    session.site.transport.kind = "ssh"
    (check,) = check_stores(session, request)
    assert check.state == "unknown" and "with the role of a node" in check.seen


def test_a_password_too_short_to_be_masked_is_named(tmp_path):
    """Only variables of `env` were; `***` for one letter would stand in every word of a log."""
    request = prepared(tmp_path, S3.replace("hunter2-hunter2", "x"))
    (note,) = [each for each in request.plan.not_in_this_version if "masked" in each]
    assert note.startswith("data_stores[0].connection.password is shorter than 4 characters")
