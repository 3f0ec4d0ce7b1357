"""Makes the node CA of a cluster and the certificates of its nodes. Needs `cryptography`, part of `quire[server]`.

    ca.key       the CA's private key: signs nodes; keep it where no node runs
    ca.pem       the CA's certificate: every node needs it
    <node>.pem   a node's private key and certificate in one file, so that a renewal replaces both at once

All files can be read by their owner alone, and none is ever overwritten unless a renewal was asked for.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quire.errors import InvalidArgumentError, QuireError
from quire.link.handshake import NodeIdentity, check_name
from quire.link.tls import node_uri

CA_CERTIFICATE: Final = "ca.pem"
CA_KEY: Final = "ca.key"
CA_NAME: Final = "Quire node CA"
CA_DAYS: Final = 3650
NODE_DAYS: Final = 825
CLOCK_SKEW: Final = datetime.timedelta(minutes=5)
"""A certificate is valid from a little before now on: the nodes' clocks may be behind ours."""

_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)


class NodeSpec(NamedTuple):
    """A node, and the host names and addresses under which TLS clients may expect it."""

    node_id: str
    hosts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> NodeSpec:
        """From `NAME` or `NAME=host,ip,…`."""
        node_id, equals, hosts = text.partition("=")
        check_name("node id", node_id)
        if node_id == "ca":
            raise InvalidArgumentError("'ca' is no name for a node: its file would be the CA's")
        named = tuple(hosts.split(",")) if equals else ()
        for host in named:
            _alternative_name(host)
        return cls(node_id, named)


class Made(NamedTuple):
    """A file that was written."""

    path: Path
    what: str
    expires: datetime.datetime | None


class Authority(NamedTuple):
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    cluster_id: str


def init(
    directory: Path, *, cluster_id: str, nodes: Sequence[NodeSpec], days: int, now: datetime.datetime
) -> list[Made]:
    """A new node CA, and certificates for nodes. Writes nothing if any of the files exists."""
    check_name("cluster id", cluster_id)
    paths = [directory / CA_KEY, directory / CA_CERTIFICATE, *_node_paths(directory, nodes)]
    _refuse_existing(paths, "use 'quire certs add' for another node of this cluster, or another directory")
    authority = _new_authority(cluster_id, now)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"{directory} cannot be made: {error.strerror}", path=directory) from error
    made = [
        _write(directory / CA_KEY, private_pem(authority.key), "private key of the node CA", None),
        _write(
            directory / CA_CERTIFICATE,
            public_pem(authority.certificate),
            "certificate of the node CA",
            authority.certificate.not_valid_after_utc,
        ),
    ]
    return made + [_issue_to(directory, authority, node, days=days, now=now) for node in nodes]


def add(
    directory: Path, *, nodes: Sequence[NodeSpec], days: int, now: datetime.datetime, renew: bool = False
) -> list[Made]:
    """Certificates of the CA in `directory` for further nodes or, with `renew`, new ones for those that have one."""
    paths = _node_paths(directory, nodes)
    if not renew:
        _refuse_existing(paths, "use --renew to replace a node's certificate")
    elif missing := [path for path in paths if not path.exists()]:
        raise InvalidArgumentError(f"{missing[0]} does not exist; leave out --renew to make it", path=missing[0])
    authority = load_authority(directory)
    return [_issue_to(directory, authority, node, days=days, now=now, replace=renew) for node in nodes]


def issue(
    authority: Authority, *, uri: str | None, hosts: Sequence[str], days: int, now: datetime.datetime
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A key and a certificate of this CA for whatever `uri` names."""
    ca_expires = authority.certificate.not_valid_after_utc
    if ca_expires <= now:
        raise InvalidArgumentError(
            f"the node CA expired on {ca_expires:%Y-%m-%d}; make a new one in another directory "
            "with 'quire certs init'"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    expires = min(now + datetime.timedelta(days=days), ca_expires)
    names: list[x509.GeneralName] = [] if uri is None else [x509.UniformResourceIdentifier(uri)]
    names += [_alternative_name(host) for host in hosts]
    builder = (
        _builder(authority.certificate.subject, x509.Name([]), key, now, expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        # Critical, since the subject is empty: the names below are all there is.
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
    )
    return key, builder.sign(authority.key, hashes.SHA256())


# --- inside --------------------------------------------------------------------------------------------------------


def _new_authority(cluster_id: str, now: datetime.datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster_id),
            x509.NameAttribute(NameOID.COMMON_NAME, CA_NAME),
        ]
    )
    builder = (
        _builder(name, name, key, now, now + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()), cluster_id)


def load_authority(directory: Path) -> Authority:
    key_path, certificate_path = directory / CA_KEY, directory / CA_CERTIFICATE
    try:
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
    except FileNotFoundError as error:
        raise InvalidArgumentError(
            f"{error.filename} does not exist; is {directory} where 'quire certs init' made the CA?"
        ) from error
    except OSError as error:
        raise InvalidArgumentError(f"{error.filename} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{key_path} or {certificate_path} is damaged: {error}") from error
    cluster_ids = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidArgumentError(f"{key_path} is not the key of {certificate_path}")
    try:
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InvalidArgumentError(f"{certificate_path} is no node CA's certificate: {error}") from error
    if len(cluster_ids) != 1:
        raise InvalidArgumentError(f"{certificate_path} is no node CA's certificate: it names no cluster")
    return Authority(key, certificate, check_name("cluster id", str(cluster_ids[0].value)))


def _issue_to(
    directory: Path,
    authority: Authority,
    node: NodeSpec,
    *,
    days: int,
    now: datetime.datetime,
    replace: bool = False,
) -> Made:
    uri = node_uri(NodeIdentity(authority.cluster_id, node.node_id))
    key, certificate = issue(authority, uri=uri, hosts=node.hosts, days=days, now=now)
    return _write(
        _node_path(directory, node),
        private_pem(key) + public_pem(certificate),
        f"private key and certificate of node '{node.node_id}'",
        certificate.not_valid_after_utc,
        replace=replace,
    )


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _DNS_NAME.fullmatch(host):
            raise InvalidArgumentError(f"{host[:80]!r} is neither a host name nor an IP address") from None
        return x509.DNSName(host)


def _node_paths(directory: Path, nodes: Sequence[NodeSpec]) -> list[Path]:
    paths = [_node_path(directory, node) for node in nodes]
    twice = sorted({path.stem for path in paths if paths.count(path) > 1})
    if twice:
        raise InvalidArgumentError(f"node '{twice[0]}' is named twice")
    return paths


def _node_path(directory: Path, node: NodeSpec) -> Path:
    return directory / f"{node.node_id}.pem"


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _refuse_existing(paths: Sequence[Path], advice: str) -> None:
    for path in paths:
        if path.exists():
            raise _exists(path, advice)


def _exists(path: Path, advice: str) -> QuireError:
    return InvalidArgumentError(f"{path} exists and is not overwritten; {advice}", path=path)


def _write(
    path: Path, content: bytes, what: str, expires: datetime.datetime | None, *, replace: bool = False
) -> Made:
    """Write a file for its owner's eyes, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            if replace:
                temporary.replace(path)
            else:
                os.link(temporary, path)  # unlike a rename, fails if the file has come into being meanwhile
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError as error:
        raise _exists(path, "somebody else has just made it") from error
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be written: {error.strerror}", path=path) from error
    return Made(path, what, expires)
