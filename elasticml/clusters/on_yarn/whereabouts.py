"""Who is who: YARN's containers, skein's names of them, Dask's addresses of the workers in them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

#: The first container of each attempt is its application master's.
_MASTERS = "_000001"


@dataclass(slots=True, kw_only=True)
class Whereabouts:
    """What is known of an application's containers; nothing is forgotten when one ends.

    Parameters
    ----------
    own_container : str
        YARN's name of the scheduler's container.
    own_address : str
        Dask address of the scheduler.
    """

    own_container: str = ""
    own_address: str = ""
    _names: dict[str, str] = field(default_factory=dict, init=False)
    #: Containers of services other than the workers'.
    _others: set[str] = field(default_factory=set, init=False)
    _addresses: dict[str, str] = field(default_factory=dict, init=False)
    _nodes: dict[str, str] = field(default_factory=dict, init=False)

    def granted(self, container: str, name: str) -> None:
        """Note skein's name of a worker's container."""
        self._names[container] = name

    def registered(self, container: str, name: str, address: str, node: str) -> None:
        """Note the worker in a container, and the node that it is on."""
        self._names[container] = name
        self._addresses[container] = address
        self._nodes[container] = node

    def serves(self, container: str) -> None:
        """Note a container of a service other than the workers'."""
        self._others.add(container)

    def is_essential(self, container: str) -> bool:
        """Tell whether no job can live without a container: the master's, and those of services.

        One that is in nobody's list is none of these: YARN may take back what it has just granted,
        before skein has a worker for it. Nothing is worth giving for that.
        """
        is_masters = container.endswith(_MASTERS)
        return is_masters or container == self.own_container or container in self._others

    def is_known(self, container: str) -> bool:
        """Tell whether it is a worker's container, or one that no job can live without."""
        return self.is_essential(container) or container in self._names

    def name(self, container: str) -> str | None:
        """Return skein's name of a worker's container."""
        return self._names.get(container)

    def address(self, container: str) -> str | None:
        """Return the address of the worker that is, or was, in a container."""
        return self._addresses.get(container)

    def on_board(self, container: str) -> str:
        """Return what any container is called on the board: an address, or YARN's name of it."""
        if container == self.own_container:
            return self.own_address
        return self._addresses.get(container, container)

    def names(self, addresses: Iterable[str]) -> dict[str, str]:
        """Return skein's names of the containers of workers, by address; the youngest count."""
        by_address = {self._addresses[c]: n for c, n in self._names.items() if c in self._addresses}
        return {address: by_address[address] for address in addresses if address in by_address}

    def on_node(self, node: str, present: Container[str]) -> tuple[str, ...]:
        """List the addresses of those workers on a node that are present."""
        return tuple(
            address
            for container, address in sorted(self._addresses.items())
            if self._nodes[container] == node and address in present
        )
