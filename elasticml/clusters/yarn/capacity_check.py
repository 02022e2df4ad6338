"""Check whether a cluster can ever grant a set of containers, and how many fit now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elasticml.clusters.yarn.rm_responses import Node, Queue, Resources
from elasticml.errors import SubmissionError
from elasticml.ids import format_size
from elasticml.specification.settings_model import did_you_mean

#: Memory in MiB, virtual cores, node label ("" for none).
Container = tuple[int, int, str]


def find_queue(queues: Sequence[Queue], name: str, where: str) -> Queue | None:
    """Return the leaf queue of a name or path; None if it would be created on submission.

    Raises
    ------
    SubmissionError
        When there is no such queue, or it accepts no applications; lists the queues.
    """
    path = name if name.split(".")[0] == "root" else f"root.{name}"
    queue = next((queue for queue in queues if queue.path == path), None)
    queue = queue or next((queue for queue in queues if queue.is_leaf and queue.name == name), None)
    if queue is None and _is_created_on_submission(queues, path):
        return None
    leaves = [leaf.name if _is_unique(leaf, queues) else leaf.path for leaf in _leaves(queues)]
    existing = f"its queues are {', '.join(leaves) or 'none'}{did_you_mean(name, leaves)}"
    if queue is None:
        raise SubmissionError(
            f"queue {name!r} is unknown to the resource manager at {where}; {existing}", queue=name
        )
    if not queue.is_leaf:
        raise SubmissionError(
            f"queue {name!r} is a parent queue, wanted a leaf that accepts applications; "
            f"{existing}",
            queue=name,
        )
    if queue.state not in ("", "RUNNING"):
        raise SubmissionError(
            f"queue {name!r} is {queue.state} and accepts no applications; name another or have it "
            f"started; {existing}",
            queue=name,
        )
    return queue


def _leaves(queues: Iterable[Queue]) -> list[Queue]:
    return [queue for queue in queues if queue.is_leaf]


def _is_unique(queue: Queue, queues: Iterable[Queue]) -> bool:
    return sum(other.name == queue.name for other in queues) == 1


def _is_created_on_submission(queues: Iterable[Queue], path: str) -> bool:
    return any(queue.makes_queues and path.startswith(f"{queue.path}.") for queue in queues)


def check_containers(
    queue: Queue | None,
    nodes: Sequence[Node],
    containers: Sequence[Container],
    *,
    smallest_mib: int = 1,
    counts_vcores: bool | None = None,
) -> None:
    """Raise unless an idle cluster could grant all of these containers at the same time.

    Parameters
    ----------
    queue : Queue or None
        None if it is created on submission: its limits are unknown.
    containers : sequence of (memory_mib, vcores, label)
    smallest_mib : int
        Memory is granted in multiples of it.
    counts_vcores : bool or None
        Whether vcores count in placement; None if unknown.

    Raises
    ------
    SubmissionError
        Names what exceeds which limit, and what to lower.
    """
    asked = [(_rounded(m, smallest_mib), vcores, label) for m, vcores, label in containers]
    for container in sorted(set(asked), reverse=True):
        _check_one(queue, container)
        _check_placeable(queue, nodes, container, bool(counts_vcores))
    if queue is not None:
        _check_together(queue, asked, bool(counts_vcores))
        _check_user_limit(queue, asked, smallest_mib)


def _rounded(memory_mib: int, smallest_mib: int) -> int:
    return -(-memory_mib // smallest_mib) * smallest_mib


def _check_one(queue: Queue | None, container: Container) -> None:
    memory, vcores, _ = container
    most = None if queue is None else queue.container_max
    if queue is None or most is None:
        return
    if memory > most.memory_mib:
        raise SubmissionError(
            f"a container of {_size(memory)} was requested, queue {queue.name} grants at most "
            f"{_size(most.memory_mib)}; lower the memory, or have "
            "yarn.scheduler.maximum-allocation-mb raised",
            queue=queue.name,
        )
    if vcores > most.vcores:
        raise SubmissionError(
            f"a container of {vcores} vcores was requested, queue {queue.name} grants at most "
            f"{most.vcores}; lower vcores, or have yarn.scheduler.maximum-allocation-vcores raised",
            queue=queue.name,
        )


def _check_placeable(
    queue: Queue | None, nodes: Sequence[Node], container: Container, counts_vcores: bool
) -> None:
    memory, vcores, label = container
    if queue is not None and label and not {"*", label} & set(queue.labels):
        raise SubmissionError(
            f"queue {queue.name} may not use nodes labelled {label!r}, only "
            f"{', '.join(queue.labels) or 'unlabelled ones'}; name another label or queue",
            queue=queue.name,
        )
    usable = [node for node in nodes if node.is_usable]
    if not usable:
        raise SubmissionError(
            f"no node is running ({len(nodes)} known); start the node managers",
            queue=queue.name if queue else "",
        )
    # Nodes with a shared label also accept containers without one.
    fitting = [node for node in usable if not label or label in node.labels]
    if not fitting:
        labels = sorted({name for node in usable for name in node.labels})
        raise SubmissionError(
            f"no running node is labelled {label!r}; the labels are {', '.join(labels) or 'none'}; "
            "correct node_label or leave it out",
            label=label,
        )
    if any(_holds(node.total, memory, vcores, counts_vcores) for node in fitting):
        return
    largest = max(node.total for node in fitting)
    size = f"{_size(memory)}{f' and {vcores} vcores' if counts_vcores else ''}"
    what = "the memory" if memory > largest.memory_mib else "the vcores or the memory"
    raise SubmissionError(
        f"no node has {size} for a container; the largest has {_size(largest.memory_mib)} and "
        f"{largest.vcores} vcores; lower {what} of a container",
        memory_mib=memory,
    )


def _check_together(queue: Queue, asked: Sequence[Container], counts_vcores: bool) -> None:
    memory = sum(container[0] for container in asked)
    vcores = sum(container[1] for container in asked)
    if queue.maximum is not None and not _holds(queue.maximum, memory, vcores, counts_vcores):
        raise SubmissionError(
            f"{len(asked)} containers with {_size(memory)} and {vcores} vcores in total were "
            f"requested, queue {queue.name} never holds more than "
            f"{_size(queue.maximum.memory_mib)} and {queue.maximum.vcores} vcores; request fewer "
            "or smaller ones",
            queue=queue.name,
        )


def _check_user_limit(queue: Queue, asked: Sequence[Container], smallest_mib: int) -> None:
    if queue.guaranteed is None or queue.user_limit_factor is None:
        return
    memory = sum(container[0] for container in asked)
    limit = _rounded(int(queue.guaranteed.memory_mib * queue.user_limit_factor), smallest_mib)
    # A user beyond the limit gets no more; the container that exceeds it is still granted.
    if memory - max((container[0] for container in asked), default=0) > limit:
        raise SubmissionError(
            f"{len(asked)} containers with {_size(memory)} in total were requested, queue "
            f"{queue.name} gives one user at most {_size(limit)} (user-limit-factor "
            f"{queue.user_limit_factor:g}); request fewer, or have the factor raised",
            queue=queue.name,
        )


def grantable_now(
    queue: Queue | None, nodes: Sequence[Node], container: Container, counts_vcores: bool = False
) -> int:
    """Return how many containers of one size fit into the free resources, without pre-emption."""
    memory, vcores, label = container
    usable = [node for node in nodes if node.is_usable and (not label or label in node.labels)]
    count = sum(_times(node.free, memory, vcores, counts_vcores) for node in usable)
    if queue is not None and queue.maximum is not None:
        left = queue.maximum.minus(queue.used)
        count = min(count, _times(left, memory, vcores, counts_vcores))
    return count


def _times(room: Resources, memory: int, vcores: int, counts_vcores: bool) -> int:
    by_memory = room.memory_mib // max(1, memory)
    return min(by_memory, room.vcores // max(1, vcores)) if counts_vcores else by_memory


def _holds(room: Resources, memory: int, vcores: int, counts_vcores: bool) -> bool:
    return room.memory_mib >= memory and (not counts_vcores or room.vcores >= vcores)


def _size(memory_mib: int) -> str:
    return format_size(memory_mib * 2**20)
