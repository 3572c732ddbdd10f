"""What a store's answer says happened: the clock, a bill, the region, a proxy, a folder's mark."""

import re
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest
from answering_server import answering, signed
from faulty_proxy import faulty_proxy
from moto_server import running_moto
from store_program import StoreProgram

NOBODY = SimpleNamespace(user="me", password="c2VjcmV0")
PAGE = b"<!DOCTYPE html><html><head><title>Guest network:\n log in</title></head></html>"
AT_ONCE = {"DLCTL_STORE_PATIENCE_S": "0"}


def error(code, message="", more=""):
    body = f"<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    return b'<?xml version="1.0" encoding="UTF-8"?>' + body.encode()


DISABLED = "has disabled the account or the container of data store 'mine'"
HOUR_AGO = "Thu, 01 Jan 2026 00:00:00 GMT"
TOO_OLD = "<AuthenticationErrorDetail>Request date header too old: 'x'</AuthenticationErrorDetail>"


@pytest.mark.parametrize(("kind", "status", "body", "headers", "code", "said"), [
    ("s3", 403, error("RequestTimeTooSkewed"), {}, 75, "its clock and that of .* differ by too mu"),
    ("s3", 403, error("RequestTimeTooSkewed"), {"Date": HOUR_AGO}, 75, r"differ by \d+ min \(Req"),
    ("s3", 403, error("SignatureDoesNotMatch"), {"Date": HOUR_AGO}, 75, r"differ by \d+ min \(Sig"),
    ("s3", 403, error("SignatureDoesNotMatch"), {}, 1, "refuses the user name or the password"),
    ("azure", 403, error("AuthenticationFailed", "", TOO_OLD), {}, 75, "its clock and that of"),
    ("s3", 403, error("AllAccessDisabled", "All access to this object has been disabled"), {}, 1,
     rf"{DISABLED} \(AllAccessDisabled: All access to this object has been disabled\)"),
    ("s3", 403, error("UserSuspended"), {}, 1, DISABLED),
    ("s3", 403, error("InvalidAccessKeyId", "Your account is disabled; please …"), {}, 1, DISABLED),
    ("azure", 403, error("AccountIsDisabled"), {}, 1, DISABLED),
    ("s3", 400, error("AuthorizationHeaderMalformed", "", "<Region>eu-west-1</Region>"), {}, 1,
     "in the region 'eu-west-1' .*\n.*Set `connection.region` to eu-west-1, then"),
    ("s3", 301, error("PermanentRedirect"), {"x_amz_bucket_region": "eu-west-1"}, 1,
     "in the region 'eu-west-1'"),
    ("s3", 301, error("PermanentRedirect"), {}, 1, "in another region.*\n.*to the container's own"),
    ("s3", 403, error("AccessDenied", "No ListBucket for me"), {}, 1,
     r"does not let the user .* do this with 'bucket.*' \(AccessDenied: No ListBucket for me\)"),
])  # fmt: skip
@pytest.mark.parametrize("verb", ["check", "save"])
def test_an_answer_says_what_happened(tmp_path, kind, status, body, headers, code, said, verb):
    """To store begins with a HEAD, whose answer has no body."""
    with answering(status, body, **headers) as url:
        program = StoreProgram(tmp_path, kind, url, NOBODY, "bucket")
        source = program.results({"a": b"1"})
        done, told = program.run(verb, **AT_ONCE, **program.saving(source))
    assert (done, re.search(said, told) is not None) == (code, True), told
    if done == 75 or "disabled" in said:
        assert "Neither" in told and "refuses the user name" not in told


@pytest.mark.parametrize(("kind", "container", "path", "titled"), [
    ("s3", "bucket", "", False), ("azure", "bucket", "", True), ("swift", "c", "/auth/v1.0", True),
    ("swift", "c", "/v3", True), ("http", "data.h5", "", False), ("http", "data", "", False),
])  # fmt: skip
def test_the_log_in_page_of_a_proxy_is_no_store(tmp_path, kind, container, path, titled):
    """S3: `the container is empty`; a web server: its page was the training data."""
    with answering(200, PAGE, Content_Type="text/html; charset=utf-8") as url:
        program = StoreProgram(tmp_path, kind, url + path, NOBODY, container)
        program.env["STORE_URL"] = url
        if kind != "http":
            del program.env["STORE_URL"]
        for verb, more in (("check", {}), ("check", {"STORE_QUICK_S": "4"}), ("load", {})):
            done, told = program.run(verb, **AT_ONCE, **more)
            assert done == 75, told
            assert "can't be reached from" in told and "log-in page of a proxy" in told
            assert ("(Guest network: log in)" in told) == titled
        assert not program.data.exists()


def test_a_page_in_the_middle_of_storing_is_none_either(tmp_path):
    with answering(200, PAGE, Content_Type="text/html") as url:
        program = StoreProgram(tmp_path, "s3", url, NOBODY, "bucket")
        source = program.results({"a": b"1"})
        done, told = program.run("save", **AT_ONCE, **program.saving(source))
    assert done == 75 and "a web page (Guest network: log in) answers in its place" in told


def test_an_empty_container_is_still_empty(tmp_path, swift):
    name = swift.container("nothing", {})
    for kind, url in (("s3", swift.s3_url), ("swift", swift.auth_url)):
        code, told = StoreProgram(tmp_path, kind, url, swift, name).run("check")
        assert (
            code == 1 and f"The container '{name}' of data store 'mine' at {url} is empty" in told
        )


@pytest.mark.parametrize(("days", "said"), [
    ((1, 2), r"its clock and that of .* differ by too much \(certificate .*not.* valid"),
    ((-2, -1), r"shows a certificate that .* does not trust \(certificate .*expired\)"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["s3", "swift"])
def test_a_certificate_says_what_is_wrong(tmp_path, kind, days, said):
    """S3: `can't be used now: error sending request`, for five minutes."""
    authority, server = signed(tmp_path, *days)
    with answering(200, b"", server) as url:
        program = StoreProgram(tmp_path, kind, url, NOBODY, "bucket")
        code, told = program.run("check", SSL_CERT_FILE=str(authority))
    assert code == 75 and re.search(said, told), told


@pytest.mark.parametrize("kind", ["s3", "swift"])
def test_an_authority_of_the_site_is_trusted_once_its_file_is_named(tmp_path, kind):
    authority, server = signed(tmp_path, -1, 1)
    with answering(404, b"", server) as url:
        program = StoreProgram(tmp_path, kind, url, NOBODY, "bucket")
        code, told = program.run("check")
        assert code == 75 and "does not trust" in told and "SSL_CERT_FILE" in told
        code, told = program.run("check", SSL_CERT_FILE=str(authority))
    assert code == 1 and "certificate" not in told, told


def test_a_refused_connection_says_so(tmp_path):
    program = StoreProgram(tmp_path, "s3", "http://127.0.0.1:9", NOBODY, "bucket")
    code, told = program.run("check", **AT_ONCE)
    assert code == 75 and "the connection failed: Connection refused." in told


# Real servers -------------------------------------------------------------------------------------


def test_a_real_store_refuses_the_clock(tmp_path, swift):
    """The proxy makes requests as a machine does whose clock is wrong."""

    def rewrite(data):
        return re.sub(rb"(?i)(x-amz-date: )\d{8}T", rb"\g<1>20260101T", data)

    with faulty_proxy(swift.port) as proxy:
        proxy.rewrite = rewrite
        program = StoreProgram(tmp_path, "s3", f"http://{proxy.host}", swift, "any")
        code, told = program.run("check", **AT_ONCE)
    assert code == 75 and "differ by too much (RequestTimeTooSkewed)" in told
    assert "`timedatectl`" in told


def test_a_real_store_names_the_region(tmp_path, swift):
    name = swift.container("elsewhere", {"a": b"1"})
    program = StoreProgram(tmp_path, "s3", swift.s3_url, swift, name)
    code, told = program.run("check", STORE_REGION="paris")
    assert code == 1 and "Set `connection.region` to us-east-1, then try" in told


MARKED = {"a": b"1", "alone/": b"", "deep/alone/": b"", "deep/empty": b"", "empty": b"", "x/": b""}
FILES = {"a": b"1", "deep/empty": b"", "empty": b""}


@pytest.mark.parametrize("kind", ["s3", "swift"])
def test_what_marks_a_folder_is_no_file(tmp_path, swift, kind):
    """`alone/` was a file `alone`, and a program that writes into the folder failed."""
    name = swift.container(f"marked_{kind}", MARKED)
    swift.request("PUT", f"{name}/pseudo", b"", {"Content-Type": "application/directory"})
    url = swift.s3_url if kind == "s3" else swift.auth_url
    program = StoreProgram(tmp_path, kind, url, swift, name)
    assert {key: program.load()[key] for key in FILES} == FILES
    assert program.contents().keys() - FILES.keys() <= ({"pseudo"} if kind == "s3" else set())
    code, told = program.run("check", STORE_CONTAINER=f"{name}/x")
    assert code == 1 and f"The container '{name}/x' of data store 'mine'" in told, "its own mark"


def test_another_implementation_marks_folders_the_same_way(tmp_path):
    with running_moto() as moto:
        moto.bucket("marked", {name: b for name, b in MARKED.items() if name[-1] != "/"})
        for name in MARKED.keys() - FILES.keys():
            urlopen(Request(f"{moto.url}/marked/{name}", b"", method="PUT"), timeout=60).close()
        program = StoreProgram(tmp_path, "s3", moto.url, moto, "marked")
        assert program.load() == FILES
        code, told = program.run("load", STORE_CONTAINER="marked/deep")
        assert "is of the container 'marked', but data store 'mine' names 'marked/deep'" in told
