"""Faults of the links between hosts, at the ports of a switch."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from elasticml.chaos.switch import Port, Switch
from elasticml.chaos.temporary_faults import TemporaryFault, Undo
from elasticml.clusters.local.cluster import LocalWorker

#: Longest delay of a frame in seconds, largest share of lost frames, and bytes per second.
_LAG_S: Final = (0.005, 0.5)
_LOSS: Final = (0.01, 0.2)
_RATE: Final = (2e4, 1e6)


def network_faults(switch: Switch) -> Mapping[str, TemporaryFault]:
    """Return faults of the hosts of workers.

    ``cut`` separates one host from all others; ``split`` separates up to half of the hosts,
    together, from all others; ``lag`` delays frames by random times, so that they overtake each
    other; ``loss`` loses frames; ``throttle`` limits the rate. The last three hit up to half of the
    hosts, in both directions.
    """
    groups = itertools.count(1)
    draws: dict[str, Callable[[random.Random], dict[str, float]]] = {
        "cut": lambda rng: {"group": next(groups)},
        "split": lambda rng: {"group": next(groups)},
        "lag": lambda rng: {"lag_s": rng.uniform(*_LAG_S)},
        "loss": lambda rng: {"loss": rng.uniform(*_LOSS)},
        "throttle": lambda rng: {"bytes_per_s": rng.uniform(*_RATE)},
    }

    def begin(kind: str, rng: random.Random, workers: Sequence[LocalWorker]) -> Undo:
        here = sorted({host_of(w) for w in workers})
        n = 1 if kind == "cut" else rng.randint(1, max(1, len(here) // 2))
        ports, values = [switch.ports[k] for k in rng.sample(here, n)], draws[kind](rng)
        _set(ports, values)
        normal = {name: getattr(Port(-1), name) for name in values}
        return functools.partial(_set, ports, normal)

    return {kind: functools.partial(begin, kind) for kind in draws}


def host_of(worker: LocalWorker) -> int:
    """Return the number of a worker's host, from its address ``tcp://10.77.0.N:port``."""
    assert worker.address is not None
    return int(worker.address.rpartition(":")[0].rpartition(".")[2]) - 1


def _set(ports: Sequence[Port], values: Mapping[str, float]) -> None:
    for port in ports:
        for name, value in values.items():
            setattr(port, name, value)
