"""The roles that a node can have, from its configuration to what the supervisor keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.config import Config
from quire.link.network import Address
from quire_broker.cli.supervisor.crash import REPORT_MS_MAX, CrashReport
from quire_broker.cli.supervisor.keeper import GRACE_MS, Role, Stage
from quire_broker.cli.supervisor.logfile import LogFile

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
NAMES: Final = (BROKER, CONTROLLER)

_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def stop_ms_max(config: Config) -> int:
    """How long a supervisor may take to stop: its stages stop one after the other, and what is killed is reported."""
    return len(Stage) * (config.node.stop_ms_max + GRACE_MS + REPORT_MS_MAX) + GRACE_MS


def role(config: Config, name: str, arguments: Sequence[str], *, log: LogFile | None) -> Role:
    """`arguments` are those from which `config` was read: the process reads them again."""
    is_broker = name == BROKER
    port = config.metrics.broker_port if is_broker else config.metrics.controller_port
    report = CrashReport(config.node.id, config.controllers, tls=config.tls.files) if is_broker else None
    return Role(
        node=config.node.id,
        name=name,
        module=f"quire_{name}",
        arguments=tuple(arguments),
        stage=Stage.BROKER if is_broker else Stage.CONTROLLER,
        stop_ms_max=config.node.stop_ms_max,
        health=Address(_ANY.get(config.metrics.host, config.metrics.host), port) if port else None,
        log=log,
        on_crash=report,
    )
