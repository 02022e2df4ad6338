"""The virtual network: order, shared links, deaths and pauses."""

from __future__ import annotations

import math

import pytest

from elasticml.sim.network import Endpoint, Network, NetworkCard
from elasticml.sim.processors import Processors
from elasticml.sim.virtual_loop import VirtualLoop


class Net:
    """A network, and what each of its endpoints has received and when."""

    def __init__(self, latency_s=1.0, bandwidth=1000.0, detect_s=5.0, message_s=0.0, cores=None):
        self.clock = VirtualLoop()
        processors = Processors(cores)
        self.network = Network(self.clock, latency_s, bandwidth, detect_s, message_s, processors)
        self.heard = []

    def link(self, a, b):
        one, two = self.network.connect(a, b)
        for port in (one, two):
            port.on_message = lambda m, port=port: self.hear(port.owner.address, m)
            port.on_closed = lambda port=port: self.hear(port.owner.address, "closed")
        return one, two

    def hear(self, who, what):
        self.heard.append((round(self.clock.now_s, 6), who, what))

    def run(self):
        self.clock.run(math.inf)
        return self.heard


def test_a_message_takes_its_bytes_and_the_latency():
    net = Net()
    net.link(Endpoint("a"), Endpoint("b"))[0].send("x", 500)
    assert net.run() == [(1.5, "b", "x")]


def test_two_senders_share_the_receivers_link():
    net = Net()
    root = Endpoint("root")
    for name in ("a", "b"):
        net.link(Endpoint(name), root)[0].send(name, 10_000)
    assert net.run() == [(11.0, "root", "a"), (21.0, "root", "b")]


def test_messages_sent_before_a_death_arrive_and_the_rest_do_not():
    net = Net()
    sender = Endpoint("a")
    port = net.link(sender, Endpoint("b"))[0]
    port.send("whole", 2000)
    port.send("cut", 2000)
    net.clock.at(3.0, net.network.kill, sender)
    assert net.run() == [(3.0, "b", "whole"), (8.0, "b", "closed")]


def test_a_close_arrives_after_what_was_sent():
    net = Net()
    port = net.link(Endpoint("a"), Endpoint("b"))[0]
    port.send("last", 1000)
    port.close()
    assert net.run() == [(2.0, "b", "last"), (2.0, "b", "closed")]


def test_a_paused_process_catches_up_in_order():
    net = Net()
    paused = Endpoint("b")
    port = net.link(Endpoint("a"), paused)[0]
    net.network.pause(paused)
    port.send("first", 1000)
    port.send("second", 1000)
    port.close()
    net.clock.at(30.0, net.network.resume, paused)
    assert net.run() == [(30.0, "b", "first"), (30.0, "b", "second"), (30.0, "b", "closed")]


def test_events_due_at_one_moment_happen_as_planned():
    clock, done = VirtualLoop(), []
    for name in "abc":
        clock.at(1.0, done.append, name)
    clock.run(math.inf)
    assert (done, clock.now_s) == (["a", "b", "c"], 1.0)


def test_processes_of_a_host_share_its_link_and_do_not_use_it_among_themselves():
    net, card = Net(), NetworkCard()
    one, two, far = Endpoint("one", card), Endpoint("two", card), Endpoint("far")
    net.link(one, far)[0].send("first", 10_000)
    net.link(two, far)[0].send("second", 10_000)
    net.link(one, two)[0].send("near", 10_000)
    assert net.run() == [(1.0, "two", "near"), (11.0, "far", "first"), (21.0, "far", "second")]


@pytest.mark.parametrize(("cores", "last_s"), [(None, 3.0), (2, 3.0), (1, 5.0)])
def test_messages_take_processor_time_one_after_another_in_a_process(cores, last_s):
    net = Net(message_s=1.0, cores=cores)
    sender, a, b = Endpoint("sender"), Endpoint("a"), Endpoint("b")
    to_a, to_b = (net.link(sender, each)[0] for each in (a, b))
    for port in (to_a, to_b):
        port.send("first", 0)
        port.send("second", 0)
    heard = net.run()
    assert [t for t, _, _ in heard][-1] == last_s
    for name in "ab":
        assert [what for _, who, what in heard if who == name] == ["first", "second"]


def test_a_core_that_would_idle_until_the_work_begins_is_left_to_others():
    processors = Processors(2)
    assert processors.done_s(0.0, 1.0) == 1.0
    assert processors.done_s(1.0, 1.0) == 2.0
    assert processors.done_s(0.0, 1.0) == 1.0
