"""The meaning of what servers of S3, Google and Azure answer, as obstore hands it on.

obstore keeps an answer's status and body, in a text, and drops its headers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from urllib.error import HTTPError
from urllib.request import urlopen

import obstore
from obstore.exceptions import InvalidPathError, PreconditionError

from learner.storage.objects.base import Place, Refusal, Refused, Unavailable, title_of

MISSING = (FileNotFoundError, obstore.exceptions.NotFoundError)
BARE = ("400", "403")
"""Details of a refusal of which only the status is known."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_REGION = re.compile(r"<Region>([\w-]+)</Region>")
_REFUSALS = {
    "NoSuchBucket": Refusal.NO_CONTAINER,
    "NoSuchKey": Refusal.NO_OBJECT,
    "SignatureDoesNotMatch": Refusal.CREDENTIALS,
    "InvalidAccessKeyId": Refusal.CREDENTIALS,
    "AuthFailure": Refusal.CREDENTIALS,
    "RequestTimeTooSkewed": Refusal.CLOCK,
    "RequestExpired": Refusal.CLOCK,
    "ExpiredToken": Refusal.KEY_ENDED,
    "TokenRefreshRequired": Refusal.KEY_ENDED,
    "InvalidToken": Refusal.CREDENTIALS,
    "AccessDenied": Refusal.FORBIDDEN,
    "AllAccessDisabled": Refusal.DISABLED,
    "AccountProblem": Refusal.DISABLED,
    "UserProjectAccountProblem": Refusal.DISABLED,
    "NotSignedUp": Refusal.DISABLED,
    "UserSuspended": Refusal.DISABLED,
    "QuotaExceeded": Refusal.FULL,
    "PermanentRedirect": Refusal.OTHER_REGION,
    "AuthorizationHeaderMalformed": Refusal.OTHER_REGION,
    "IllegalLocationConstraintException": Refusal.OTHER_REGION,
    "PreconditionFailed": Refusal.CHANGED,
    "ContainerNotFound": Refusal.NO_CONTAINER,
    "BlobNotFound": Refusal.NO_OBJECT,
    "AuthenticationFailed": Refusal.CREDENTIALS,
    "AuthorizationFailure": Refusal.CREDENTIALS,
    "InvalidAuthenticationInfo": Refusal.CREDENTIALS,
    "AuthorizationPermissionMismatch": Refusal.FORBIDDEN,
    "AccountIsDisabled": Refusal.DISABLED,
    "ConditionNotMet": Refusal.CHANGED,
}
"""By the codes of the servers: Amazon's, Google's and Ceph's, then Azure's."""
_SKEWED = re.compile(r"Request date header too old|in a reasonable timeframe")
"""What Azure and Google say beside the code of wrong credentials."""
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)")
_REASON = re.compile(r'(?:message|error): "([^"]{1,200})"')
_URL = re.compile(r"https?://[^\s?]+")
_DISABLED = re.compile(r"(?i)account is (?:disabled|suspended|inactive)")
"""What MinIO says of a known user's key."""
_NO_ANSWER = re.compile(
    r"invalid list response|Header missing from response|non-partial response when range"
)
"""What obstore says of an answer that is well, and no store's."""
_NO_ROLE = re.compile(
    r"(?i)metadata|169\.254\.|/latest/api/token|security-credentials|token file|token request"
    r"|performing POST REDACTED|HTTP error: "
)
"""What obstore says where it gets no key for a machine's role."""
_IN_HEADERS = (Refusal.OTHER_REGION, Refusal.CREDENTIALS, Refusal.CLOCK, Refusal.WEB_PAGE)
"""Refusals of which an answer's headers tell more."""
_MOST_SKEW_S = 300.0
"""Stores accept signatures of requests that are 15 minutes old; Google's, 5."""
_TIMEOUT_S = 5.0
_MOST_BYTES = 1 << 16


def translated(error: Exception, place: Place, key: str = "") -> Refused | Unavailable:
    """Return what an error of obstore means."""
    text, _, source = str(error).partition("Debug source")
    if place.access == "node" and _NO_ROLE.search(text):
        return Refused(Refusal.NO_ROLE, _network(text), key)
    found = _of_code(error, text, key)
    if isinstance(found, Unavailable):
        return _of_network(source) or found
    if found.why not in _IN_HEADERS:
        return found
    headers, body = _ask(next(iter(_URL.findall(text)), "") or place.settings.get("auth_url", ""))
    why, detail, instead = found.why, found.detail, ""
    if why is Refusal.OTHER_REGION:
        instead = next(iter(_REGION.findall(text)), "") or headers.get("x-amz-bucket-region", "")
    elif why is Refusal.WEB_PAGE:
        detail = title_of(body)
    elif (skew_s := abs(_skew_s(headers))) > _MOST_SKEW_S:
        why, instead = Refusal.CLOCK, f"{skew_s / 60:.0f} min"
    elif why is Refusal.CREDENTIALS and _SKEWED.search(text):
        why = Refusal.CLOCK
    return Refused(why, detail, key, instead=instead)


def _of_code(error: Exception, text: str, key: str) -> Refused | Unavailable:
    code = next(iter(_CODE.findall(text)), "")
    status = int(next(iter(_STATUS.findall(text)), "0"))
    if isinstance(error, InvalidPathError):
        name = next(iter(re.findall(r'[Pp]ath "(.*?)"', text)), key)
        return Refused(Refusal.BAD_NAME, "its name leaves the folder, or is no path", name)
    message = next(iter(_MESSAGE.findall(text)), "").strip()
    if code in _REFUSALS:
        why = Refusal.DISABLED if _DISABLED.search(message) else _REFUSALS[code]
        explained = message if why in (Refusal.DISABLED, Refusal.FORBIDDEN) else ""
        return Refused(why, ": ".join(filter(None, (code, explained[:200]))), key)
    if 300 <= status < 400 or "redirect without LOCATION" in text:
        return Refused(Refusal.OTHER_REGION, code or str(status or ""), key)
    if isinstance(error, PreconditionError):
        return Refused(Refusal.CHANGED, key=key)
    if isinstance(error, MISSING) or status == 404:
        return Refused(Refusal.NO_OBJECT if key else Refusal.NO_CONTAINER, code, key)
    if status in (401, 403):
        return Refused(Refusal.CREDENTIALS, code or str(status), key)
    if 400 <= status < 500 and status not in (408, 416, 429):
        return Refused(Refusal.NO_SUCH_SERVICE, code or str(status), key)
    if _NO_ANSWER.search(text):
        return Refused(Refusal.WEB_PAGE, key=key)
    return Unavailable(f"it answers {status} {code}".strip() if status else _network(text))


def _of_network(source: str) -> Refused | Unavailable | None:
    """Return why there was no answer; None if the source of an error does not say."""
    if found := _CERTIFICATE.search(source):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", found[1].removesuffix("Context")).lower()
        why = Refusal.CLOCK if words == "not valid yet" else Refusal.CERTIFICATE
        return Refused(why, f"certificate {words}")
    reason = _REASON.search(source)
    return Unavailable(f"the connection failed: {reason[1]}") if reason else None


def _network(text: str) -> str:
    """Return what failed in the network, without the address that obstore puts before it."""
    last = text.strip().rpartition(" - ")[2] or text
    return "the connection failed: " + " ".join(last.split())[:200]


def _ask(url: str) -> tuple[Mapping[str, str], bytes]:
    """Return headers and body of the answer to a request without credentials; empty if none comes.

    It goes through the same proxy as obstore's.
    """
    try:
        try:
            answer = urlopen(url, timeout=_TIMEOUT_S)  # noqa: S310 - it is obstore's
        except HTTPError as error:
            answer = error
        with answer:
            return answer.headers, answer.read(_MOST_BYTES)
    except (OSError, ValueError):
        return {}, b""


def _skew_s(headers: Mapping[str, str]) -> float:
    """Return how far this machine's clock is ahead of a server's; 0 if the server does not say."""
    date = parsedate_tz(headers.get("date", ""))
    return 0.0 if date is None else time.time() - mktime_tz(date)
