"""Registry of an application's containers: YARN's ids, skein's names, Dask's worker addresses."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

#: Suffix of the application master's id: it is the first container of each attempt.
_MASTER_SUFFIX = "_000001"


@dataclass(slots=True, kw_only=True)
class ContainerRegistry:
    """The containers of an application; entries stay when a container ends.

    Parameters
    ----------
    own_container : str
        YARN id of the scheduler's container.
    own_address : str
        Dask address of the scheduler.
    """

    own_container: str = ""
    own_address: str = ""
    _names: dict[str, str] = field(default_factory=dict, init=False)
    #: Containers of other services than ``dask.worker``.
    _services: set[str] = field(default_factory=set, init=False)
    _addresses: dict[str, str] = field(default_factory=dict, init=False)
    _nodes: dict[str, str] = field(default_factory=dict, init=False)

    def granted(self, container: str, name: str) -> None:
        """Record skein's name of a worker's container."""
        self._names[container] = name

    def registered(self, container: str, name: str, address: str, node: str) -> None:
        """Record the worker in a container, and its node."""
        self._names[container] = name
        self._addresses[container] = address
        self._nodes[container] = node

    def add_service(self, container: str) -> None:
        """Record a container of another service than ``dask.worker``."""
        self._services.add(container)

    def is_essential(self, container: str) -> bool:
        """Return whether jobs depend on a container: the master's, the scheduler's, or a service's.

        An unknown container is none of these: YARN may pre-empt what it has just granted, before
        skein has a worker for it. Releasing another container in its place would not pay.
        """
        is_master = container.endswith(_MASTER_SUFFIX)
        return is_master or container == self.own_container or container in self._services

    def is_known(self, container: str) -> bool:
        """Return whether it is a worker's container, or an essential one."""
        return self.is_essential(container) or container in self._names

    def name(self, container: str) -> str | None:
        """Return skein's name of a worker's container."""
        return self._names.get(container)

    def address(self, container: str) -> str | None:
        """Return the address of a container's current or former worker."""
        return self._addresses.get(container)

    def board_address(self, container: str) -> str:
        """Return a container's address on the reclaim board: Dask's, or else YARN's id."""
        if container == self.own_container:
            return self.own_address
        return self._addresses.get(container, container)

    def names(self, addresses: Iterable[str]) -> dict[str, str]:
        """Return skein's container names by worker address; for reused addresses the youngest."""
        by_address = {self._addresses[c]: n for c, n in self._names.items() if c in self._addresses}
        return {address: by_address[address] for address in addresses if address in by_address}

    def on_node(self, node: str, present: Container[str]) -> tuple[str, ...]:
        """List the addresses of the workers on a node that are in ``present``."""
        return tuple(
            address
            for container, address in sorted(self._addresses.items())
            if self._nodes[container] == node and address in present
        )
