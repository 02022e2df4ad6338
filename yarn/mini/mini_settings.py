"""Settings of a mini YARN: nodes, queues, pre-emption; and the addresses of its daemons."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticml.errors import ConfigError
from elasticml.ids import parse_size

#: Address of all daemons except the NodeManagers.
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Timing of the capacity scheduler's pre-emption.

    Parameters
    ----------
    max_wait_s : float, seconds
        From the notice to the kill.
    interval_s : float, seconds
        Between two pre-emption rounds.
    """

    max_wait_s: float = 2.0
    interval_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniSettings:
    """Settings of a mini YARN.

    Parameters
    ----------
    nodes : int, >= 1
        Number of NodeManagers.
    node_memory : str or int
        Memory of each node for containers, such as ``6 GiB``.
    node_vcores : int
        Virtual cores of each node for containers.
    preemption : Preemption or None
        None disables pre-emption.
    sigkill_delay_s : float, seconds
        From SIGTERM to SIGKILL in a container.
    queues : dict of str to float
        Guaranteed share of each queue, in percent; each queue may use all idle capacity.
    work_preserving_recovery : bool
        Whether applications keep running while the ResourceManager restarts.
    enforce_memory : bool
        Whether a container that uses more memory than it requested is killed.
    node_expiry_s : float, seconds
        Time without a heartbeat after which a node counts as lost.
    """

    nodes: int = 2
    node_memory: str | int = "6 GiB"
    node_vcores: int = 16
    preemption: Preemption | None = field(default_factory=Preemption)
    sigkill_delay_s: float = 5.0
    queues: dict[str, float] = field(default_factory=lambda: {"ml": 25.0, "prod": 75.0})
    work_preserving_recovery: bool = True
    enforce_memory: bool = False
    node_expiry_s: float = 10.0

    def __post_init__(self) -> None:
        """Reject settings that YARN would reject later, with worse messages."""
        if not 1 <= self.nodes <= 100:
            raise ConfigError(f"nodes: got {self.nodes}, wanted 1 to 100")
        share = sum(self.queues.values())
        if abs(share - 100.0) > 1e-3:
            raise ConfigError(
                f"queues: got shares that sum up to {share:g}, wanted 100; change one of them"
            )
        if self.memory_mib < 512:
            raise ConfigError(f"node_memory: got {self.node_memory!r}, wanted at least 512 MiB")

    @property
    def memory_mib(self) -> int:
        """Memory of a node for containers, in mebibytes."""
        try:
            return parse_size(self.node_memory) // 2**20
        except ValueError as error:
            raise ConfigError(
                f"node_memory: got {self.node_memory!r}, wanted a size such as 6 GiB"
            ) from error


def node_host(number: int) -> str:
    """Return the address of a NodeManager: each has its own, because YARN decommissions hosts."""
    return f"127.0.0.{number + 2}"


def node_name(number: int) -> str:
    """Return the daemon name of a NodeManager, such as ``node-0``."""
    return f"node-{number}"
