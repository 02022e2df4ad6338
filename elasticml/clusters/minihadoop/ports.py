"""Choose free ports, so that several mini YARNs can run side by side."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from elasticml.clusters.minihadoop.mini_settings import HOST
from elasticml.errors import ConfigError

#: Below Linux's ephemeral ports, above those of well-known services.
PORT_MIN, PORT_MAX = 11000, 32000

#: Ports of the daemons that run once.
SERVICES = (
    "name-rpc",
    "name-http",
    "data-stream",
    "data-http",
    "data-ipc",
    "resource-client",
    "resource-scheduler",
    "resource-tracker",
    "resource-admin",
    "resource-http",
)

#: Ports of each NodeManager.
NODE_SERVICES = ("rpc", "localizer", "http", "collector")


def port_names(nodes: int) -> list[str]:
    """Return the names of all ports of a mini YARN with this number of nodes."""
    return [*SERVICES, *(f"node-{i}-{name}" for i in range(nodes) for name in NODE_SERVICES)]


def choose_ports(names: Sequence[str], rng: random.Random) -> dict[str, int]:
    """Choose a free port for each name.

    Two processes that choose at the same time may choose the same port; a daemon then reports that
    its port is taken, and the start is retried with other ports.

    Parameters
    ----------
    names : sequence of str
        Names of the ports.
    rng : random.Random
        Decides in which order ports are tried.

    Raises
    ------
    ConfigError
        When there are not enough free ports.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as stack:
        # Each chosen port stays bound until all are chosen.
        for port in rng.sample(range(PORT_MIN, PORT_MAX), PORT_MAX - PORT_MIN):
            if len(chosen) == len(names):
                break
            trial = stack.enter_context(socket.socket())
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            chosen[names[len(chosen)]] = port
    if len(chosen) < len(names):
        raise ConfigError(
            f"too few free ports: got {len(chosen)} between {PORT_MIN} and {PORT_MAX} on {HOST}, "
            f"wanted {len(names)}; end processes that listen there (ss -ltnp lists them)"
        )
    return chosen
