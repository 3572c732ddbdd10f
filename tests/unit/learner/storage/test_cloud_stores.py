"""The stores of Google and Azure. No server of theirs can be reached from here.

Azure's requests go to Microsoft's own emulator. Google's go to a server of S3, whose requests are
those of Google's XML interface, except that nobody signs them.
"""

import base64
import contextlib
import json
import os
import re
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest
from azurite import azurite, find_azurite
from faulty_proxy import faulty_proxy
from moto_server import running_moto
from store_program import StoreProgram

from learner.storage.objects import Place, Refusal, Refused, content_of, open_store

LARGE_BYTES = 65 << 20
"""Files of this size are written in parts."""
UNSIGNED = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}

SIGNED = (
    b"Authorization: AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request, "
    b"SignedHeaders=host, Signature=00\r\n"
)


def signed(data):
    """Sign a request as moto's server wants it, which looks at no signature."""
    data = re.sub(rb"(?i)authorization: bearer *\r\n", b"", data)
    return re.sub(rb"^((?:GET|HEAD|PUT|POST) .*? HTTP/1.1\r\n)", rb"\1" + SIGNED, data)


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    program = find_azurite()
    if program is None:
        pytest.skip("azurite is missing: make cloud-deps")
    with azurite(program, tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="module")
def google():
    with running_moto() as server, faulty_proxy(server.port) as proxy:
        proxy.rewrite = signed
        yield SimpleNamespace(url=f"http://{proxy.host}", bucket=server.bucket,
                              user="", password=json.dumps(UNSIGNED))  # fmt: skip


def of_azure(tmp_path, server, container):
    server.make_container(container)
    return StoreProgram(tmp_path, "azure", server.url, server, container)


def of_google(tmp_path, server, container):
    server.bucket(container, {})
    return StoreProgram(tmp_path, "gcs", server.url, server, container)


def there_and_back(program, size_bytes):
    """Store files, one of them of a size, and load them."""
    contents = {"a b/ü#%20+": b"small", "empty": b"", "large": os.urandom(size_bytes)}
    program.env["STORE_ETAGS"] = "opaque"
    told = program.done("save", **program.saving(program.results(contents)))
    found = program.load(f"{program.env['STORE_CONTAINER']}/t-1")
    assert {name: found[name] for name in contents} == contents
    assert program.env["STORE_PASSWORD"] not in told


def test_files_go_to_azure_and_come_back(tmp_path, azure):
    there_and_back(of_azure(tmp_path, azure, "results"), LARGE_BYTES)


@pytest.mark.parametrize("size_bytes", [1000, pytest.param(LARGE_BYTES, marks=pytest.mark.long)])
def test_files_go_to_google_and_come_back(tmp_path, google, size_bytes):
    there_and_back(of_google(tmp_path, google, f"results{size_bytes}"), size_bytes)


def test_what_azure_refuses_is_told(tmp_path, azure):
    program = of_azure(tmp_path, azure, "there")
    code, told = program.run("check", STORE_CONTAINER="gone")
    assert code == 1 and "has no container 'gone'" in told
    other = base64.b64encode(os.urandom(64)).decode()
    code, told = program.run("check", STORE_PASSWORD=other)
    assert code == 1 and "refuses the user name or the password" in told, told
    code, told = program.run("check", STORE_PASSWORD="no key")
    assert code == 1 and "`password` is no account key" in told and "no key'" not in told, told
    code, told = program.run("check")
    assert code == 1 and "is empty" in told, told


def test_an_object_that_changed_since_the_listing_is_told(tmp_path, azure):
    of_azure(tmp_path, azure, "changing")
    settings = {"auth_url": azure.url, "user_name": azure.user, "password": azure.password,
                "etags": "opaque"}  # fmt: skip
    store, file = open_store("azure", Place("m", "changing", "", settings)), tmp_path / "file"
    file.write_bytes(b"one")
    store.write("a", file, lambda _: None)
    (listed,) = store.list()
    file.write_bytes(b"two")
    store.write("a", file, lambda _: None)
    with pytest.raises(Refused) as refused:
        content_of(store, listed)
    assert refused.value.why is Refusal.CHANGED
    assert store.stat("a").size_bytes == 3 and store.stat("gone") is None


@pytest.mark.parametrize("key", ["", "no JSON", "[]", '{"client_email": "a@b"}'])
def test_a_key_that_is_none_of_a_service_account_is_told(key):
    with pytest.raises(Refused, match="no service account's key") as refused:
        open_store("gcs", Place("m", "bucket", "", {"password": key}))
    assert refused.value.why is Refusal.CREDENTIALS


def test_google_refuses_a_bucket_that_is_not_there(tmp_path, google):
    program = of_google(tmp_path, google, "there")
    code, told = program.run("check", STORE_CONTAINER="gone")
    assert code == 1 and "has no container 'gone'" in told


@pytest.mark.parametrize(("changed", "told"), [
    ({"STORE_PASSWORD": base64.b64encode(b"x" * 64).decode()}, "refuses the user name or the pass"),
    ({"STORE_PASSWORD": "hunter2!"}, "`password` is no account key"),
    ({"STORE_CONTAINER": "nope"}, "has no container 'nope', which data store 'mine' names"),
    ({}, "The container 'answers' of data store 'mine' at "),
])  # fmt: skip
def test_a_real_answer_of_azure_says_what_is_wrong(tmp_path, azure, changed, told):
    with contextlib.suppress(HTTPError):  # it is there
        azure.make_container("answers")
    program = StoreProgram(tmp_path, "azure", azure.url, azure, "answers")
    code, output = program.run("check", DLCTL_STORE_PATIENCE_S="0", **changed)
    assert code == 1 and told in output
