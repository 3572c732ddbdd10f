"""Whose rights count at a store: a temporary key's, the machine's role's, the public's.

The server checks signatures and tokens, as Amazon's does.
"""

import json
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest
from answering_server import answering, signed
from faulty_proxy import faulty_proxy
from moto_server import running_moto
from store_program import StoreProgram

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
