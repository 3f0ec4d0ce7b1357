"""mTLS between nodes: TLS 1.3, both sides verified against the cluster's own node CA and nothing else.

Who a node is stands in its certificate as a URI, `quire://<cluster id>/node/<node id>`. Host names are not compared:
the URI says more, and an address may change without a new certificate.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from quire.errors import InvalidArgumentError
from quire.link.handshake import NodeIdentity, Refusal, refused

_URI: Final = re.compile(r"quire://([^/]+)/node/([^/]+)")


class TlsFiles(NamedTuple):
    """What `quire certs` made for a node."""

    ca: Path
    """The certificate of the node CA, `ca.pem`."""
    node: Path
    """The node's private key and certificate in one file, `<node id>.pem`."""


class TlsContexts(NamedTuple):
    accepting: ssl.SSLContext
    dialing: ssl.SSLContext


def node_uri(identity: NodeIdentity) -> str:
    """How a certificate names a node."""
    return f"quire://{identity.cluster_id}/node/{identity.node_id}"


def load(files: TlsFiles) -> TlsContexts:
    """The contexts for both roles. Raises InvalidArgumentError, with the file's name, for what cannot be used."""
    return TlsContexts(
        _context(ssl.PROTOCOL_TLS_SERVER, files),
        _context(ssl.PROTOCOL_TLS_CLIENT, files),
    )


def identify(certificate: Mapping[str, Any] | None) -> NodeIdentity:
    """The node that a verified certificate, as `ssl` shows it, belongs to. Raises PeerRefusedError if to none."""
    names = (certificate or {}).get("subjectAltName", ())
    nodes = [match for kind, name in names if kind == "URI" and (match := _URI.fullmatch(name))]
    if len(nodes) != 1:
        raise refused(
            Refusal.CERTIFICATE,
            f"the certificate names {len(nodes)} nodes, and is to name one as 'quire://<cluster id>/node/<node id>'; "
            "make node certificates with 'quire certs'",
        )
    return NodeIdentity(nodes[0][1], nodes[0][2])


def check_plain_text_is_local(host: str) -> None:
    """Raises InvalidArgumentError unless `host` is this machine's loopback interface."""
    if not is_loopback(host) and host != "localhost":
        raise InvalidArgumentError(
            f"a peer link to or on '{host}' needs TLS: only loopback addresses may do without; "
            "make certificates with 'quire certs init'",
            host=host,
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # every session proves anew who it is
    for path, use in ((files.ca, context.load_verify_locations), (files.node, context.load_cert_chain)):
        try:
            use(path)
        except OSError as error:  # ssl.SSLError is one
            raise InvalidArgumentError(f"{path} cannot be used for the peer link: {error}", path=path) from error
    return context
