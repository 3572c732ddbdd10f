"""The certificates of one search: an authority of its own, and a certificate for each role.

Nobody keeps the authority's key, so nobody can add a certificate later.
"""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER_NAME = "search.dlctl"
SERVERS = ("broker", "nameserver")
ROLES = (*SERVERS, "model", "worker", "client")
"""`client` may ask a broker what is in its queues, and nothing more."""
AUTHORITY = "ca.pem"
_AUTHORITY = "search authority"
_USAGES = (
    "digital_signature", "key_cert_sign", "crl_sign", "content_commitment", "key_encipherment",
    "data_encipherment", "key_agreement", "encipher_only", "decipher_only",
)  # fmt: skip
_LASTS = dt.timedelta(days=5 * 365)
_CLOCKS_DIFFER = dt.timedelta(days=1)


def make_certificates() -> dict[str, str]:
    """Return the files of the search's folder of keys: name → PEM text.

    `ca.pem`, and `<role>.pem` and `<role>.key` for each role. Keys need the mode 0600.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _builder(
        _AUTHORITY, _name(_AUTHORITY), authority_key.public_key(), signs=True
    ).sign(authority_key, hashes.SHA256())
    made = {AUTHORITY: _pem(authority)}
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        made[f"{role}.pem"] = _pem(_certificate(role, key.public_key(), authority, authority_key))
        made[f"{role}.key"] = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
    return made


def _certificate(
    role: str,
    key: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(role, authority.subject, key, signs=False)
    if role in SERVERS:  # nobody else's certificate has a server's name: a worker is no broker
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False
        )
    usage = x509.ExtendedKeyUsage(uses)
    return builder.add_extension(usage, critical=False).sign(authority_key, hashes.SHA256())


def _builder(subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, signs: bool) -> (
    x509.CertificateBuilder
):  # fmt: skip
    """Return a certificate that signs others, or answers for a role."""
    now = dt.datetime.now(dt.timezone.utc)
    usage = dict.fromkeys(_USAGES, False)
    usage |= dict.fromkeys(("key_cert_sign", "crl_sign") if signs else ("digital_signature",), True)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _LASTS)
        .add_extension(x509.BasicConstraints(signs, 0 if signs else None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
