"""A switch in user space forwards frames, and disturbs them as its ports say."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from elasticml.clusters.local.cluster import LocalWorker
from elasticml.errors import ConfigError
from tests.play.faults import network_faults
from tests.play.namespaces import address, check_root, inside, namespaces
from tests.play.plan import Fault, Kind
from tests.play.switch import Switch, join


class Network:
    """Three hosts whose devices are sockets of this process."""

    def __init__(self) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        for _, port in pairs:
            port.setblocking(False)
        self.hosts = [host for host, _ in pairs]
        self.switch = Switch([port.detach() for _, port in pairs], seed=1)

    def send(self, k: int, text: str, source: int = 0) -> None:
        """Send a frame to a host."""
        self.hosts[source].send(bytes([2, 0, 0, 0, 0, k]) + text.encode())

    def received(self, k: int) -> str:
        """Wait for a host's next frame."""
        return self.hosts[k].recv(100)[6:].decode()

    def settle(self) -> None:
        """Return when the switch has taken all that the first host has sent."""
        self.send(2, "marker")
        assert self.received(2) == "marker"


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    with made.switch:
        yield made
    for host in made.hosts:
        host.close()


def test_a_frame_goes_to_its_host_and_a_multicast_to_all_others(network: Network) -> None:
    network.send(1, "one")
    assert network.received(1) == "one"
    network.hosts[0].send(b"\xff" * 6 + b"all")
    assert [network.received(1), network.received(2)] == ["all", "all"]


@pytest.mark.parametrize(
    ("name", "value", "sent", "lost"),
    [
        ("group", 1, 1, [1]),
        ("deaf_to", frozenset({0}), 1, [1]),
        ("bytes_per_s", 0.1, 10, [9]),  # what does not fit its queue
        ("loss", 0.5, 100, range(31, 70)),
    ],
)
def test_a_disturbed_port_loses_frames_until_it_is_as_before(
    network: Network, name: str, value: Any, sent: int, lost: Any
) -> None:
    port = network.switch.ports[1]
    usual = getattr(port, name)
    setattr(port, name, value)
    for _ in range(sent):
        network.send(1, "before")
    network.settle()
    assert network.switch.lost in lost
    if name == "deaf_to":  # in one direction
        network.send(0, "there", source=1)
        assert network.received(0) == "there"
        network.send(1, "from another", source=2)
        assert network.received(1) == "from another"
    setattr(port, name, usual)
    network.send(1, "found")
    while (text := network.received(1)) == "before":
        pass
    assert text == "found"


def test_delayed_frames_all_arrive_in_another_order(network: Network) -> None:
    network.switch.ports[1].lag_s = 0.05
    sent = [f"{n}" for n in range(50)]
    for text in sent:
        network.send(1, text)
    received = [network.received(1) for _ in sent]
    assert sorted(received, key=int) == sent
    assert received != sent


def test_each_fault_hits_ports_of_workers_and_ends(network: Network) -> None:
    workers = [
        LocalWorker(name=f"w{k}", address=f"tcp://{address(k)}:1", pid=1, state="running")
        for k in (1, 2)
    ]
    no_world: Any = None
    before = [str(port) for port in network.switch.ports]
    for kind, begin in network_faults(network.switch).items():
        fault = Fault(kind=cast("Kind", kind), at=0.0, amount=0.5)
        undo = begin(no_world, fault, workers)
        after = [str(port) for port in network.switch.ports]
        assert after[0] == before[0]
        assert after != before, kind
        assert undo is not None
        undo()
        undo()
        assert [str(port) for port in network.switch.ports] == before


def test_hosts_reach_each_other_through_the_switch() -> None:
    try:
        check_root()
    except ConfigError as error:
        pytest.skip(error.message)
    with namespaces(2) as names, join(names, seed=1):
        with inside(names[1]):
            server = socket.create_server((address(1), 0))
        with server, inside(names[0]), socket.create_connection(server.getsockname()) as client:
            client.sendall(b"1")
            accepted, peer = server.accept()
            with accepted:
                assert accepted.recv(1) == b"1"
                assert peer[0] == address(0)
