"""Who asks, for whom, by when: known before a handler runs, and the same for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from quire.link.handshake import NodeIdentity
from quire.link.tls import identify

DEFAULT_PRINCIPAL: Final = "default"
DEFAULT_TENANT: Final = "default"
"""The one of each that there is as long as nobody has to prove who he is."""

CLIENT_ID_KEY: Final = "quire-client-id"
TRACE_KEY: Final = "traceparent"
CLIENT_ID_CHARACTERS_MAX: Final = 128

_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SANS: Final = "x509_subject_alternative_name"


@dataclass(frozen=True, slots=True)
class RequestContext:
    principal: str
    """`node:<id>` of whoever proved to be a node, else `default`."""
    node_id: str | None
    """The node whose certificate the caller has; None where connections are plain text."""
    tenant: str
    """From the identity, never from the request."""
    client_id: str
    """What the caller calls itself, for logs. Empty if it does not."""
    listener: str
    """The name of the listener that the call came by."""
    deadline: float
    """When the caller gives up, or we do, on the event loop's clock."""
    trace: str | None
    """The W3C `traceparent`, if there is one."""


_current: Final[ContextVar[RequestContext]] = ContextVar("quire-request-context")


def current() -> RequestContext:
    """The context of the call that this task serves."""
    return _current.get()


def enter(context: RequestContext) -> None:
    """From now on this task serves that call. gRPC runs each call in a task of its own."""
    _current.set(context)


def caller(context: grpc.aio.ServicerContext[Any, Any]) -> NodeIdentity | None:
    """The node that the caller proved to be; None without TLS. Raises PeerRefusedError for another certificate."""
    names: Iterable[bytes] | None = context.auth_context().get(_SANS)
    if names is None:
        return None
    return identify({"subjectAltName": [("URI", name.decode("utf-8", "replace")) for name in names]})


def metadata_of(context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, str | None]:
    """(client id, trace) as the caller says; what does not have the right form is left out."""
    given: Mapping[str, object] = dict(context.invocation_metadata() or ())
    client_id, trace = given.get(CLIENT_ID_KEY), given.get(TRACE_KEY)
    shown = client_id[:CLIENT_ID_CHARACTERS_MAX] if isinstance(client_id, str) else ""
    return (
        shown if shown.isprintable() else "",
        trace if isinstance(trace, str) and _TRACE.fullmatch(trace) else None,
    )
