"""Free ports: of several mini YARNs side by side, none must take another's."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from elasticml.clusters.hadoop.settings import HOST
from elasticml.errors import ConfigError

#: Below the ports that Linux gives to outgoing connections, above those of known services.
PORT_MIN, PORT_MAX = 11000, 32000

#: Ports of the daemons that there is one of.
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
    """Return the name of every port that a mini YARN of so many nodes needs."""
    return [*SERVICES, *(f"node-{i}-{name}" for i in range(nodes) for name in NODE_SERVICES)]


def choose_ports(names: Sequence[str], rng: random.Random) -> dict[str, int]:
    """Choose a free port for each name.

    Two that choose at the same time may still choose the same; a daemon that finds its port taken
    says so, and the start is tried again with others.

    Parameters
    ----------
    names : sequence of str
        What the ports are for.
    rng : random.Random
        Chance.

    Raises
    ------
    ConfigError
        When there are not enough.
    """
    found: dict[str, int] = {}
    with ExitStack() as stack:
        # A port that has been tried stays bound until all are chosen, or is not free.
        for port in rng.sample(range(PORT_MIN, PORT_MAX), PORT_MAX - PORT_MIN):
            if len(found) == len(names):
                break
            trial = stack.enter_context(socket.socket())
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            found[names[len(found)]] = port
    if len(found) < len(names):
        raise ConfigError(
            f"no free ports: got {len(found)} free between {PORT_MIN} and {PORT_MAX} on {HOST}, "
            f"wanted {len(names)}; end what listens there (ss -ltnp shows it)"
        )
    return found
