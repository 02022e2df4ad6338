"""A switch in user space forwards frames between hosts, and disturbs them as its ports say."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from elasticml.clusters.local.cluster import LocalWorker
from tests.play.faults import network_faults
from tests.play.namespaces import address
from tests.play.plan import Fault, Kind
from tests.play.switch import Switch


class Network:
    """Three hosts whose devices are sockets of this process."""

    def __init__(self) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        for _, port in pairs:
            port.setblocking(False)
        self.hosts = [host for host, _ in pairs]
        self.switch = Switch([port.detach() for _, port in pairs], seed=1)

    def send(self, k: int, text: str) -> None:
        """Send a frame from the first host."""
        self.hosts[0].send(bytes([2, 0, 0, 0, 0, k]) + text.encode())

    def received(self, k: int) -> str:
        """Wait for a host's next frame."""
        return self.hosts[k].recv(100)[6:].decode()


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    with made.switch:
        yield made
    for host in made.hosts:
        host.close()


@pytest.mark.parametrize(
    ("fault", "sent", "lost"),
    [
        (Fault(kind="cut", at=0.0), 1, [1]),
        (Fault(kind="split", at=0.0), 1, [1]),
        (Fault(kind="one_way", at=0.0), 1, [1]),
        (Fault(kind="throttle", at=0.0, amount=0.1), 10, [9]),  # what does not fit its queue
        (Fault(kind="loss", at=0.0, amount=0.5), 100, range(31, 70)),
        (Fault(kind="lag", at=0.0, amount=0.05), 50, [0]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_fault_disturbs_a_port_until_it_is_as_before(
    network: Network, fault: Fault, sent: int, lost: Any
) -> None:
    names = [1, 0] if fault.kind == "one_way" else [1]
    hosts = [
        LocalWorker(name=f"w{k}", address=f"tcp://{address(k)}:1", pid=1, state="running")
        for k in names
    ]
    before = [str(port) for port in network.switch.ports]
    no_world: Any = None
    undo = network_faults(network.switch)[cast("Kind", fault.kind)](no_world, fault, hosts)
    assert undo is not None
    for number in range(sent):
        network.send(1, f"{number}")
    network.send(2, "marker")
    assert network.received(2) == "marker"  # the switch has taken all
    assert network.switch.lost in lost
    if fault.kind == "lag":  # all arrive, in another order
        received = [network.received(1) for _ in range(sent)]
        assert sorted(received, key=int) == [f"{number}" for number in range(sent)] != received
    if fault.kind == "one_way":
        network.hosts[1].send(bytes(6) + b"there")
        assert network.received(0) == "there"
    undo()
    undo()
    network.switch.ports[1].free_s = 0.0
    assert [str(port) for port in network.switch.ports] == before
    network.send(1, "found")
    while (text := network.received(1)) != "found":
        assert text.isdecimal()
