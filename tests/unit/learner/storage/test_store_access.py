"""Whose rights count at a store: a temporary key's, the machine's role's, the public's.

The server checks signatures and tokens, as Amazon's does.
"""

import hashlib
import json
import os
import re
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest
from answering_server import answering, signed
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from faulty_proxy import faulty_proxy
from moto_server import running_moto
from store_program import StoreProgram
from swift_server import PYTHON

from dlctl.request.profiles import LoggedOut, key_of

pytestmark = pytest.mark.slow  # servers of moto
NO_KEY = {"STORE_USER_NAME": "", "STORE_PASSWORD": ""}
NODE = {**NO_KEY, "STORE_ACCESS": "node"}
SIGNED = (
    "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
    "Signature=00"
)
ROLE = "arn:aws:iam::123456789012:role/r"


@pytest.fixture(scope="module")
def strict():
    """A server with a bucket, and a role's temporary key: that takes five requests."""
    with running_moto(checks_after=5) as server:
        server.bucket("data", {"a": b"1"})
        yield SimpleNamespace(url=server.url, key=server.role_key())


@pytest.fixture
def program(tmp_path, strict):
    key = SimpleNamespace(user=strict.key["AccessKeyId"], password=strict.key["SecretAccessKey"])
    return StoreProgram(tmp_path, "s3", strict.url, key, "data")


def test_a_temporary_key_works_with_its_token_alone(program, strict):
    """The token was dropped: `refuses the user name or the password`."""
    token = strict.key["SessionToken"]
    assert program.load(STORE_SESSION_TOKEN=token) == {"a": b"1"}
    code, said = program.run("check")
    assert code == 1 and "refuses the user name or the password" in said, said
    code, said = program.run("check", STORE_SESSION_TOKEN="another")
    assert code == 1 and "InvalidToken" in said and "another" not in said, said


@pytest.mark.parametrize("variable", ["AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE"])
def test_a_key_of_the_manifest_is_not_mixed_with_the_shells(tmp_path, variable):
    """obstore adds what the environment has: a lasting key was sent with another one's token."""
    with running_moto() as server, faulty_proxy(server.port) as proxy:
        server.bucket("data", {"a": b"1"})
        sent = []
        proxy.rewrite = lambda data: sent.append(data) or data
        mine = StoreProgram(tmp_path, "s3", f"http://{proxy.host}", server, "data")
        mine.done("check", **{variable: "true"})
    assert sent and all(b"security-token" not in each.lower() for each in sent)
    assert all(b"authorization:" in each.lower() for each in sent if each.startswith(b"GET"))


def metadata(key, method, path):
    """Answer as the metadata of one of Amazon's machines, or of a container."""
    role = "/latest/meta-data/iam/security-credentials/"
    if path == role:
        return b"the-role"
    if path == f"{role}the-role" or path == "/container":
        return json.dumps({
            "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z",
            "AccessKeyId": key["AccessKeyId"], "SecretAccessKey": key["SecretAccessKey"],
            "Token": key["SessionToken"], "Expiration": "2036-01-01T00:00:00Z",
        }).encode()  # fmt: skip
    return b"a token" if method == "PUT" else b""


def identity(key, *_):
    """Answer as the service that gives a role's key for a token."""
    parts = {**key, "Expiration": "2036-01-01T00:00:00Z"}
    row = "".join(f"<{name}>{value}</{name}>" for name, value in parts.items())
    of = "AssumeRoleWithWebIdentity"
    return (f"<{of}Response><{of}Result><Credentials>{row}</Credentials></{of}Result>"
            f"</{of}Response>").encode()  # fmt: skip


@pytest.mark.parametrize("where", ["machine", "container", "web identity"])
def test_a_store_opens_with_the_role_of_the_node(program, strict, tmp_path, where):
    authority, server = signed(tmp_path, -1, 1)
    token = tmp_path / "token"
    token.write_text("a token")
    by_identity = where == "web identity"
    answer = identity if by_identity else metadata
    with answering(200, lambda *asked: answer(strict.key, *asked),
                   server if by_identity else None) as url:  # fmt: skip
        env = {
            "machine": {"AWS_METADATA_ENDPOINT": url},
            "container": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/container",
                          "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token)},
            "web identity": {"AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ROLE_ARN": ROLE,
                             "AWS_ENDPOINT_URL_STS": url, "SSL_CERT_FILE": str(authority)},
        }[where]  # fmt: skip
        assert program.load(**NODE, **env) == {"a": b"1"}


AWS = f"""#!{PYTHON}
import json, sys, botocore.session
assert sys.argv[1:-1] == ["configure", "export-credentials", "--profile"]
found = botocore.session.Session(profile=sys.argv[-1]).get_credentials()
key = found.get_frozen_credentials()
print(json.dumps({{"AccessKeyId": key.access_key, "SecretAccessKey": key.secret_key,
                  "SessionToken": key.token, "Expiration": found._expiry_time.isoformat()}}))
"""
"""AWS's command line as far as it counts here: their library finds the profile's key."""
PROFILES = {
    "assumes a role": f"role_arn = {ROLE}\nsource_profile = other\n",
    "runs a program": "credential_process = cat {folder}/process.json\n",
    "logs in": "sso_session = mine\nsso_account_id = 123456789012\nsso_role_name = r\n"
    "[sso-session mine]\nsso_start_url = https://mine.example/start\nsso_region = us-east-1\n",
}


@pytest.mark.parametrize("way", PROFILES)
def test_the_key_that_awss_own_library_gets_for_a_profile_opens_a_store(tmp_path, monkeypatch, way):
    with running_moto(checks_after=6) as server:  # of which one assumes a role
        server.bucket("data", {"a": b"1"})
        key = server.role_key()
        found = found_by_aws(tmp_path, monkeypatch, way, key, server.url)
        assert found.ends_at is not None
        assert (found.user_name != key["AccessKeyId"]) == (way == "assumes a role")
        user = SimpleNamespace(user=found.user_name, password=found.password)
        mine = StoreProgram(tmp_path, "s3", server.url, user, "data")
        assert mine.load(STORE_SESSION_TOKEN=found.session_token) == {"a": b"1"}


def found_by_aws(tmp_path, monkeypatch, way, key, url):
    """Return the key of a profile; the session of one that logs in has ended then."""
    ends = "2036-01-01T00:00:00Z"
    (tmp_path / "aws").write_text(AWS)
    (tmp_path / "aws").chmod(0o755)
    (tmp_path / "credentials").write_text(
        f"[other]\naws_access_key_id = {key['AccessKeyId']}\naws_secret_access_key = "
        f"{key['SecretAccessKey']}\naws_session_token = {key['SessionToken']}\n"
    )
    config = PROFILES[way].format(folder=tmp_path)
    (tmp_path / "config").write_text(f"[profile mine]\nregion = us-east-1\n{config}")
    (tmp_path / "process.json").write_text(json.dumps({"Version": 1, "Expiration": ends, **key}))
    logged_in = tmp_path / f".aws/sso/cache/{hashlib.sha1(b'mine').hexdigest()}.json"
    logged_in.parent.mkdir(parents=True)
    token = {"accessToken": "a token", "expiresAt": ends, "region": "us-east-1",
             "startUrl": "https://mine.example/start"}  # fmt: skip
    logged_in.write_text(json.dumps(token))
    role = {name[0].lower() + name[1:]: text for name, text in key.items()}
    answer = json.dumps({"roleCredentials": {**role, "expiration": 2082758400000}}).encode()
    with answering(200, answer, Content_Type="application/json") as portal:
        for name, text in {
            "HOME": tmp_path, "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "AWS_SHARED_CREDENTIALS_FILE": tmp_path / "credentials",
            "AWS_CONFIG_FILE": tmp_path / "config", "AWS_ENDPOINT_URL_STS": url,
            "AWS_ENDPOINT_URL_SSO": portal,
        }.items():  # fmt: skip
            monkeypatch.setenv(name, str(text))
        found = key_of("mine")
        if way == "logs in":
            logged_in.write_text(json.dumps({**token, "expiresAt": "2020-01-01T00:00:00Z"}))
            with pytest.raises(LoggedOut, match="gives no key: .*expired") as caught:
                key_of("mine")
            assert caught.value.hint == "log in again: aws sso login --profile mine"
    return found


def test_a_node_without_a_role_says_so(program):
    with answering(404, b"") as url:
        code, said = program.run("check", **NODE, AWS_METADATA_ENDPOINT=url)
    assert code == 75 and "has no role that opens the container 'data'" in said, said
    assert "replace `access: node` in `connection` by `user_name` and `password`" in said


@pytest.mark.parametrize("code", ["ExpiredToken", "TokenRefreshRequired"])
def test_a_temporary_key_that_has_ended_says_what_to_do(program, code):
    body = f"<Error><Code>{code}</Code><Message>x</Message></Error>".encode()
    with answering(400, body) as url:
        ended, said = program.run("check", STORE_AUTH_URL=url, STORE_SESSION_TOKEN="t")
    assert ended == 1 and "no longer accepts the temporary key of data store 'mine'" in said, said
    assert "send the new one: dlctl resume ID" in said


CLOUDS = {
    "gcs": b"<ListBucketResult><Contents><Key>a</Key><Size>1</Size><ETag>x</ETag>"
    b"<LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>",
    "azure": b"<EnumerationResults><Blobs><Blob><Name>a</Name><Properties><Content-Length>1"
    b"</Content-Length><Content-Type>x</Content-Type><Etag>x</Etag>"
    b"<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>"
    b"</Properties></Blob></Blobs></EnumerationResults>",
}
"""A list with one object, as each cloud's store answers."""
ROLES = json.dumps({"access_token": "a-token", "token_type": "Bearer", "expires_in": 3600,
                    "expires_on": "2082758400"}).encode()  # fmt: skip


@pytest.mark.parametrize(("kind", "access", "key", "sent"), [
    ("gcs", "node", "", rb"authorization: bearer a-token\r"),
    ("gcs", "public", "", b""),
    ("gcs", "", "service account", rb"authorization: bearer [\w-]+\.[\w-]+\.[\w-]+\r"),
    ("azure", "node", "", rb"authorization: bearer a-token\r"),
    ("azure", "public", "", b""),
    ("azure", "", "bWluZQ==", rb"authorization: sharedkey mine:"),
    ("azure", "", "sv=2026&sig=a%2Fb", rb"^get [^ ]*&sig=a%2fb"),
])  # fmt: skip
def test_other_clouds_are_asked_in_each_way(tmp_path, kind, access, key, sent):
    if key == "service account":
        made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        key = json.dumps({"client_email": "a@b", "private_key": pem, "private_key_id": "1"})
    seen = []
    with answering(200, CLOUDS[kind], Content_Type="application/xml") as store, \
            answering(200, ROLES, Content_Type="application/json") as roles, \
            faulty_proxy(int(store.rpartition(":")[2])) as proxy:  # fmt: skip
        proxy.on_request = lambda data: seen.append(data.lower())
        user = SimpleNamespace(user="mine", password=key)
        mine = StoreProgram(tmp_path, kind, f"http://{proxy.host}", user, "data")
        mine.done("check", STORE_ACCESS=access, STORE_ETAGS="opaque", IDENTITY_ENDPOINT=roles,
                  IDENTITY_HEADER="x", GCE_METADATA_HOST=roles.partition("//")[2])  # fmt: skip
    (asked,) = seen
    if sent:
        assert re.search(sent, asked), asked
    else:
        assert b"authorization" not in asked and b"sig=" not in asked, asked


def test_a_public_bucket_needs_no_key(tmp_path):
    with running_moto() as server:
        server.bucket("open", {})
        for path in ("open", "open/a"):
            request = Request(f"{server.url}/{path}", b"1" * path.count("/"), method="PUT",
                              headers={"x-amz-acl": "public-read", "Authorization": SIGNED,
                                       "Content-Type": "text/plain"})  # fmt: skip
            urlopen(request, timeout=60).close()
        mine = StoreProgram(tmp_path, "s3", server.url, server, "open")
        assert mine.load(**NO_KEY, STORE_ACCESS="public") == {"a": b"1"}
