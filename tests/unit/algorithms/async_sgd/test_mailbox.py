"""The mailbox: overwritten states are counted, and a reader never sees half of a state."""

from __future__ import annotations

import threading

import numpy as np

from elasticml.algorithms.async_sgd.base import Mail, Mailbox


def mail(value: float, n: int = 3) -> Mail:
    return Mail(arrays={"w": np.full(n, value)})


def values(mails: list[Mail]) -> list[float]:
    return [float(m.arrays["w"][0]) for m in mails]


def test_a_new_message_replaces_the_oldest_and_is_counted_once():
    box = Mailbox(slots=2)
    for k in range(3):
        box.put(mail(k))
    assert box.count() == (3, 1)
    box.put(mail(3))
    assert values(box.take()) == [2.0, 3.0]
    assert [box.count(), box.count()] == [(1, 1), (0, 0)]


def test_concurrent_threads_take_or_overwrite_every_message_whole():
    box, n = Mailbox(), 20_000
    taken: list[float] = []

    def put() -> None:
        for k in range(n):
            box.put(mail(k, 64))

    writer = threading.Thread(target=put)
    writer.start()
    while writer.is_alive():
        for result in box.take():
            assert (result.arrays["w"] == result.arrays["w"][0]).all()
            taken.append(float(result.arrays["w"][0]))
    writer.join()
    taken += values(box.take())
    received, overwritten = box.count()
    assert received == n
    assert len(taken) + overwritten == n
    assert taken == sorted(taken)
    assert taken[-1] == n - 1
