"""One sentence for each way in which a store fails: what, where, and what to do next."""

from __future__ import annotations

import socket

from learner.errors import SiteFault, UserFault
from learner.storage.objects.base import Place, Refusal, Refused, Unavailable

_CHECK = "then try: dlctl stores check manifest.yml"
_SENTENCES = {
    Refusal.CREDENTIALS: (
        "{server} refuses the user name or the password of data store {id!r}{detail}.",
        f"Check `connection.user_name` and `connection.password`, {_CHECK}",
    ),
    Refusal.EXPIRED: (
        "{server} no longer accepts the token of data store {id!r}, nor a new one{detail}.",
        f"Check that the account is still active, {_CHECK}",
    ),
    Refusal.KEY_ENDED: (
        "{server} no longer accepts the temporary key of data store {id!r}{detail}.",
        "Log in again where the key comes from, such as `aws sso login`, and send the new one: "
        "dlctl resume ID; for long waits in the queue use `access: node` or a key that lasts",
    ),
    Refusal.NO_ROLE: (
        "{here} has no role that opens the container {container!r} of data store {id!r}{detail}.",
        "Have an administrator give the machine one, or replace `access: node` in `connection` by "
        f"`user_name` and `password`, {_CHECK}",
    ),
    Refusal.CLOCK: (
        "{server} takes no request of data store {id!r}, because its clock and that of {here} "
        "differ by {apart}{detail}.",
        "Neither the user name nor the password is wrong: set the clock of {here}, which "
        f"`timedatectl` shows, {_CHECK}",
    ),
    Refusal.DISABLED: (
        "{server} has disabled the account or the container of data store {id!r}{detail}.",
        "Neither the password nor a permission is wrong: ask the store's operator, or check that "
        f"the account's bills are paid, {_CHECK}",
    ),
    Refusal.FORBIDDEN: (
        "{server} does not let the user of data store {id!r} do this with {what}{detail}.",
        f"Ask the container's owner for the permission to read or write it, {_CHECK}",
    ),
    Refusal.NO_CONTAINER: (
        "{server} has no container {container!r}, which data store {id!r} names{detail}.",
        f"Create it there, or correct `container` in the manifest, {_CHECK}",
    ),
    Refusal.NO_OBJECT: (
        "{server} has no object {key!r} in the container {container!r} of data store {id!r}"
        "{detail}.",
        "Put it back, or submit a new training, which lists the container again",
    ),
    Refusal.CHANGED: (
        "The object {key!r} in the container {container!r} of data store {id!r} has changed since "
        "this training's data was listed{detail}.",
        "All attempts of a training use the same data: submit a new training to use the new object",
    ),
    Refusal.BAD_NAME: (
        "The object {key!r} in the container {container!r} of data store {id!r} can't become a "
        "file of DATA_DIR: {detail_only}.",
        "Rename it in the store, or name a prefix that leaves it out: `container: NAME/PREFIX`",
    ),
    Refusal.HOST_KEY: (
        "{server} of data store {id!r} shows an SSH key that is not in ~/.ssh/known_hosts of "
        "{here}{detail}.",
        "Log in to it once with ssh from there, and compare the fingerprint that ssh shows",
    ),
    Refusal.CERTIFICATE: (
        "{server} of data store {id!r} shows a certificate that {here} does not trust{detail}.",
        "If your own authority has signed it, name the authority's file in SSL_CERT_FILE (at a "
        "site: `environment.variables`); if it has expired, tell the store's operator, or set the "
        f"clock of {{here}}; {_CHECK}",
    ),
    Refusal.FULL: (
        "{server} takes no more from the user of data store {id!r}: the quota is used up{detail}.",
        "Remove what nobody needs there, or ask for a larger quota",
    ),
    Refusal.OTHER_REGION: (
        "{server} has the container {container!r} of data store {id!r} in {region}{detail}.",
        f"Set `connection.region` to {{own_region}}, {_CHECK}",
    ),
    Refusal.NO_SUCH_SERVICE: (
        "{server} does not answer as the type of data store {id!r} demands{detail}.",
        f"Check `type` and `connection.auth_url`, {_CHECK}",
    ),
    Refusal.WEB_PAGE: (
        "{server} of data store {id!r} can't be reached from {here}: a web page{detail} answers in "
        "its place, such as the log-in page of a proxy.",
        "Log in there from {here}, or go around it: `endpoints` and `data_via` in the site's file; "
        f"if `connection` has a wrong address, correct it; {_CHECK}",
    ),
}
_OF_THE_SITE = (Refusal.NO_ROLE, Refusal.CLOCK, Refusal.CERTIFICATE, Refusal.WEB_PAGE)
"""The user's manifest may be right: it works from another machine, or later."""


def explained(error: Refused | Unavailable, place: Place) -> UserFault:
    """Return what a person is told: a `SiteFault` where another try may help."""
    if isinstance(error, Unavailable):
        return SiteFault(
            f"The store {place.endpoint} of data store {place.id!r} can't be used now: "
            f"{error.detail}.",
            hint="Try again later; if it stays so, check from there: dlctl stores check "
            "manifest.yml, and `endpoints` and `data_via` in the site's file",
        )
    message, hint = _SENTENCES[error.why]
    container = place.container
    region = f"the region {error.instead!r}" if error.instead else "another region"
    values = {
        "apart": error.instead or "too much", "region": region,
        "own_region": error.instead or "the container's own",
        "here": socket.gethostname(), "server": f"The store {place.endpoint}", "id": place.id,
        "container": container,
        "key": error.key, "what": repr(f"{container}/{error.key}" if error.key else container),
        "detail": f" ({error.detail})" if error.detail else "", "detail_only": error.detail,
    }  # fmt: skip
    kind = SiteFault if error.why in _OF_THE_SITE else UserFault
    return kind(message.format(**values), hint=hint.format(**values))
