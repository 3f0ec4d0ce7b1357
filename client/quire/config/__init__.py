"""The configuration of every Quire process: flags over environment over file over defaults.

    kinds           what a value may be, and how it is spelled in a file, a variable or a flag
    keys            how a section declares its keys: kind, default, documentation, in one place
    broker          a broker's section; it has most of the keys
    sections        the other sections and their keys, and what must hold between them
    load            from the sources to a `Config`, with all that is wrong said at once
    toml, documents how a configuration, and what can be configured, is shown
    cli             `quire config`

It lives in the client package, as the peer link does, so that broker and controller share one without importing each
other. Clients do not use it.
"""

from quire.config.broker import PEER_LISTENER, BrokerListener, BrokerSection, broker_id
from quire.config.load import Effective, Setting, Source, SourceKind, Survey, load, survey
from quire.config.sections import (
    Config,
    ControllerSection,
    LogFormat,
    LogLevel,
    LogSection,
    Member,
    MetricsSection,
    NodeSection,
    TlsSection,
)

__all__ = [
    "PEER_LISTENER",
    "BrokerListener",
    "BrokerSection",
    "Config",
    "ControllerSection",
    "Effective",
    "LogFormat",
    "LogLevel",
    "LogSection",
    "Member",
    "MetricsSection",
    "NodeSection",
    "Setting",
    "Source",
    "SourceKind",
    "Survey",
    "TlsSection",
    "broker_id",
    "load",
    "survey",
]
