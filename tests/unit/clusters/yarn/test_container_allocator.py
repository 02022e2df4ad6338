"""The container allocator: how many worker containers are requested, when, and when it gives up."""

from __future__ import annotations

import pytest

from elasticml.clusters.yarn.container_allocator import (
    INSIST_S,
    YOUNG_S,
    Add,
    ContainerAllocator,
    EndApplication,
    Kill,
)
from elasticml.clusters.yarn.exit_reasons import last_line
from elasticml.clusters.yarn.yarn_client import ContainerState, ServiceContainer
from elasticml.protocol.marks import MarkStore
from elasticml.protocol.notices import ContainerMarked

PREEMPTED = ("preempted", -102, "Container preempted by scheduler")


def seen(instance: int, state: ContainerState = "running") -> ServiceContainer:
    return ServiceContainer(
        service="dask.worker",
        name=f"w{instance}",
        instance=instance,
        state=state,
        container=f"container_{instance}" if state != "requested" else "",
    )


def running(n: int, **limits: int) -> ContainerAllocator:
    allocator = ContainerAllocator(**limits)
    assert allocator.see([seen(i) for i in range(n)], now_s=0.0) == []
    for i in range(n):
        allocator.registered(f"w{i}")
    return allocator


class Marks(MarkStore):
    """Marks on the containers of the workers ``w0``, ``w1``, …"""

    def mark(self, *names: str, strict: bool = False, now_s: float = 0.0) -> None:
        for name in names:
            self.add(
                ContainerMarked(
                    container=container_of(name), address=name, grace_s=9.0, negotiable=not strict
                ),
                now_s,
            )

    def end(self, name: str, now_s: float) -> None:
        self.remove(container_of(name), name, now_s)


@pytest.fixture
def marks() -> Marks:
    return Marks()


def container_of(name: str) -> str:
    return f"container_{name[1:]}"


def release(
    allocator: ContainerAllocator, names: list[str], marks: MarkStore, now_s: float
) -> list[object]:
    return [*allocator.release({name: container_of(name) for name in names}, marks, now_s)]


def preempt(
    allocator: ContainerAllocator, instance: int, now_s: float, replacement: int | None = None
) -> list[object]:
    """Pre-empt a container; skein requests its replacement, the next one, at the same time."""
    next_one = seen(instance + 1 if replacement is None else replacement, "requested")
    actions = allocator.see([seen(instance, "failed"), next_one], now_s)
    return [*actions, *allocator.ended(f"w{instance}", *PREEMPTED, now_s)]


def test_a_container_preempted_young_repeatedly_is_requested_later_and_later():
    allocator = running(1)
    assert preempt(allocator, 0, now_s=10.0) == []
    now_s, instance, waits = 10.0, 1, []
    for _ in range(8):
        now_s += 5.0
        allocator.see([seen(instance)], now_s)
        assert preempt(allocator, instance, now_s) == [Kill(name=f"w{instance + 1}")]
        waits.append(0.0)
        while not (due := allocator.see([], now_s + waits[-1])):
            waits[-1] += 1.0
        assert due == [Add(streak=len(waits) + 1)]
        now_s += waits[-1]
        instance += 2
        allocator.added(f"w{instance}", instance, streak=len(waits) + 1)
        assert allocator.count == 1
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    # One that lived long is requested at once again.
    allocator.see([seen(instance)], now_s)
    assert preempt(allocator, instance, now_s + YOUNG_S) == []


def test_a_replacement_that_appears_later_is_found():
    allocator = running(1)
    preempt(allocator, 0, now_s=1.0)
    allocator.see([seen(1)], now_s=2.0)
    allocator.see([seen(1, "failed")], now_s=3.0)
    assert allocator.ended("w1", *PREEMPTED, 3.0) == []
    assert allocator.see([seen(2, "requested")], now_s=3.5) == [Kill(name="w2")]


def test_a_request_overtaken_by_a_younger_one_is_repeated():
    allocator = running(1)
    allocator.see([seen(1, "requested"), seen(2, "requested")], now_s=1.0)
    assert allocator.see([seen(1, "requested"), seen(2)], now_s=2.0) == []
    assert allocator.see([seen(1, "requested"), seen(2)], now_s=4.0) == [Kill(name="w1"), Add()]


def test_a_grant_that_skein_could_not_assign_belongs_to_the_oldest_request():
    allocator = running(1)
    allocator.see([seen(1, "requested"), seen(2, "requested")], now_s=1.0)
    allocator.unplaced()
    assert allocator.see([], now_s=2.0) == []
    assert allocator.see([], now_s=5.0) == [Kill(name="w1"), Add()]
    allocator.added("w3", 3, streak=0)
    assert allocator.see([seen(3, "requested")], now_s=9.0) == []


def test_a_mark_on_a_container_whose_worker_has_not_registered_is_not_answered(marks):
    # Jobs do not know of it: a policy released another container meanwhile, and that one was
    # requested again, one container too many.
    allocator = running(2)
    allocator.see([seen(2)], now_s=0.0)
    marks.add(ContainerMarked(container="container_2", grace_s=9.0, negotiable=True), 0.0)
    release(allocator, ["w1"], marks, now_s=1.0)
    assert allocator.count == 2
    marks.register("container_2", "w2", 2.0)
    release(allocator, ["w0"], marks, now_s=3.0)
    assert allocator.count == 2, "now it is answered"


def test_a_container_released_for_a_mark_that_has_just_ended_is_requested_again(marks):
    # The job released it for the mark; meanwhile YARN took the marked one, or withdrew the request.
    allocator = running(4)
    marks.mark("w0")
    marks.mark("w1")
    marks.end("w1", 4.5)
    marks.end("w0", 5.0)
    preempt(allocator, 0, 5.0, 4)
    release(allocator, ["w2", "w3"], marks, now_s=5.1)
    assert allocator.count == 4
    assert allocator.see([], now_s=9.0) == [Add(), Add()]
    assert release(allocator, ["w4"], marks, now_s=5.2) == [Kill(name="w4")]
    assert allocator.count == 1, "each is answered once"


def test_strict_marks_are_answered_with_nothing(marks):
    # Four strict marks were executed, and three seconds later a policy retired four members: all of
    # those were requested again, as if they had been released for the marks.
    allocator = running(8)
    marks.mark("w0", "w1", strict=True)
    assert release(allocator, ["w4"], marks, now_s=1.0) == [Kill(name="w4")]
    marks.end("w0", 2.0)
    allocator.ended("w0", *PREEMPTED, 2.0)
    marks.end("w1", 2.0)
    assert release(allocator, ["w5", "w6"], marks, now_s=3.0) == [Kill(name="w5"), Kill(name="w6")]
    assert allocator.see([seen(8, "requested")], now_s=9.0) == []
    assert allocator.count == 5


def test_a_mark_that_becomes_strict_may_have_been_answered_before_that(marks):
    allocator = running(3)
    marks.mark("w0")
    marks.mark("w0", strict=True, now_s=4.0)
    release(allocator, ["w1"], marks, now_s=4.5)
    release(allocator, ["w2"], marks, now_s=4.6)
    assert allocator.see([], now_s=9.0) == [Add()]


def test_a_container_released_for_a_mark_is_requested_again_when_dask_has_left_it(marks):
    # skein shows it running until its worker has been retired; the replacement request was dropped
    # for lack of capacity, and then the container ended: one container fewer for good.
    allocator = running(3, maximum=3)
    marks.mark("w0")
    release(allocator, ["w2"], marks, now_s=5.0)
    for now_s in (5.5, 6.5, 7.5):
        assert allocator.see([seen(i) for i in range(3)], now_s) == []
        assert allocator.count == 3
    assert allocator.see([seen(0), seen(1), seen(2, "killed")], now_s=8.5) == [Add()]


def test_a_container_that_yarn_takes_during_its_retirement_is_requested_once(marks):
    # skein takes it for failed and requests another itself, besides the delayed request.
    allocator = running(3, maximum=3)
    marks.mark("w0")
    release(allocator, ["w2"], marks, now_s=5.0)
    allocator.see([seen(2)], now_s=5.2)
    assert allocator.ended("w2", *PREEMPTED, 5.5) == []
    assert allocator.see([seen(2, "failed"), seen(3, "requested")], 5.6) == [Kill(name="w3")]
    assert allocator.count == 3
    assert allocator.see([seen(3, "killed")], now_s=6.0) == [Add()]


def test_a_retired_container_that_yarn_takes_during_its_retirement_is_not_replaced(marks):
    allocator = running(3)
    release(allocator, ["w2"], marks, now_s=5.0)
    assert allocator.see([seen(2, "failed")], now_s=5.5) == []
    assert allocator.ended("w2", *PREEMPTED, 5.6) == []
    assert allocator.see([seen(3, "requested")], now_s=6.0) == [Kill(name="w3")]
    assert allocator.see([seen(3, "killed"), seen(4, "requested")], now_s=7.0) == []
    assert allocator.count == 3, "the next one is another's"


def test_a_failed_release_is_repeated(marks):
    allocator = running(2)
    release(allocator, ["w1"], marks, now_s=0.0)
    assert allocator.see([seen(1)], now_s=INSIST_S - 1.0) == []
    assert allocator.see([seen(1)], now_s=INSIST_S) == [Kill(name="w1")]
    assert allocator.see([seen(1)], now_s=INSIST_S + 1.0) == []
    assert allocator.see([seen(1, "killed")], now_s=3 * INSIST_S) == []


def test_a_job_gets_at_most_the_remaining_maximum_of_which_delayed_requests_are_a_part(marks):
    allocator = running(3, maximum=4)
    assert allocator.request(5) == [Add()]
    allocator.added("w3", 3, streak=0)
    assert allocator.request(1) == []
    marks.mark("w0")
    release(allocator, ["w1"], marks, now_s=0.0)
    assert allocator.request(1) == []


def test_a_job_releases_down_to_the_minimum(marks):
    allocator = running(3, minimum=2)
    assert release(allocator, ["w0", "w1"], marks, now_s=0.0) == [Kill(name="w0")]


LOST = ("exit", 127, "Exit code: 127\nLast 4096 bytes of stderr :\nbash: python: not found\n")


@pytest.mark.parametrize(
    ("ends", "registered", "n_ended"),
    [
        # Three that fail alike before they register end the application, once.
        ([LOST] * 5, [], 1),
        # Containers that others end never do so, nor failures of different kinds.
        *(([(reason, -100, "")] * 9, [], 0) for reason in ("preempted", "node", "aborted")),
        ([("released", -100, "")] * 9, [], 0),
        ([("exit", i % 2 + 1, "") for i in range(9)], [], 0),
        # One registered worker shows that workers can start.
        ([("exit", 1, "")] * 9, [2, 5, 8], 0),
    ],
)
def test_an_application_whose_workers_cannot_start_is_ended(ends, registered, n_ended):
    allocator = ContainerAllocator()
    ended = []
    for instance, (reason, status, message) in enumerate(ends):
        allocator.see([seen(instance)], now_s=float(instance))
        if instance in registered:
            allocator.registered(f"w{instance}")
        actions = allocator.ended(f"w{instance}", reason, status, message, float(instance))
        ended += [action for action in actions if isinstance(action, EndApplication)]
    message = (
        "3 worker containers in a row ended before they registered (exit, status 127): "
        "bash: python: not found; fix that and submit again"
    )
    assert ended == [EndApplication(message=message)] * n_ended


def test_the_relevant_line_is_found_in_yarns_message():
    message = (
        "[2026-01-01 10:00:00.000]Container exited with a non-zero exit code 1. "
        "Error file: prelaunch.err.\nLast 4096 bytes of prelaunch.err :\n"
        "Last 4096 bytes of stderr :\nTraceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'elasticml'\n\n\n.\n"
    )
    assert last_line(message) == "ModuleNotFoundError: No module named 'elasticml'"
    assert last_line("") == "no reason was reported; see the containers' logs"


def test_missing_containers_below_the_minimum_are_requested():
    allocator = running(3, minimum=3)
    allocator.ended("w1", "success", 0, "", now_s=4.0)
    assert allocator.see([seen(1, "succeeded")], now_s=4.0) == [Add()]
