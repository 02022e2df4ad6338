"""The virtual network: order, shared links, deaths and pauses."""

from __future__ import annotations

import math

from elasticml.sim.network import Endpoint, Network
from elasticml.sim.virtual_clock import Clock


class Net:
    """A network, and what each of its endpoints has received and when."""

    def __init__(self, latency_s=1.0, bandwidth=1000.0, detect_s=5.0):
        self.clock = Clock()
        self.network = Network(self.clock, latency_s, bandwidth, detect_s)
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


def test_messages_arrive_in_the_order_in_which_they_were_sent():
    net = Net()
    port = net.link(Endpoint("a"), Endpoint("b"))[0]
    port.send("large", 10_000)
    port.send("small", 1)
    port.send("last", 1)
    port.close()
    assert [what for _, _, what in net.run()] == ["large", "small", "last", "closed"]


def test_two_senders_share_the_receivers_link():
    net = Net()
    root = Endpoint("root")
    for name in ("a", "b"):
        net.link(Endpoint(name), root)[0].send(name, 10_000)
    assert net.run() == [(11.0, "root", "a"), (21.0, "root", "b")]


def test_one_sender_shares_its_link_among_receivers():
    net = Net()
    root = Endpoint("root")
    for name in ("a", "b"):
        net.link(root, Endpoint(name))[0].send(name, 10_000)
    assert net.run() == [(11.0, "a", "a"), (21.0, "b", "b")]


def test_messages_sent_before_a_death_arrive_and_the_rest_do_not():
    net = Net()
    sender = Endpoint("a")
    port = net.link(sender, Endpoint("b"))[0]
    port.send("whole", 2000)
    port.send("cut", 2000)
    net.clock.at(3.0, net.network.kill, sender)
    assert net.run() == [(3.0, "b", "whole"), (8.0, "b", "closed")]


def test_a_dead_process_receives_nothing():
    net = Net()
    dead = Endpoint("b")
    net.link(Endpoint("a"), dead)[0].send("x", 1)
    net.network.kill(dead)
    assert net.run() == [(5.0, "a", "closed")]


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
    clock, done = Clock(), []
    for name in "abc":
        clock.at(1.0, done.append, name)
    clock.run(math.inf)
    assert (done, clock.now_s) == (["a", "b", "c"], 1.0)
