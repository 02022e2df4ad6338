"""The store of marks: which containers the resource manager asks for, and until when.

There is one store per scheduler and one per virtual world. A mark is removed when it is lifted,
when its container ends, or when it expires (:func:`~elasticml.protocol.notices.life_of`). Nothing
else keeps a mark or decides how long it holds. Pure: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticml.protocol.notices import ContainerMarked, MarkLifted, life_of

#: Seconds after a mark's end in which a container may still be released for it: the job had chosen
#: the container by then, and its release waits while other notices are handled.
LATE_S = 5.0


@dataclass(slots=True, kw_only=True)
class _Mark:
    notice: ContainerMarked
    #: When the container is stopped, at the earliest.
    deadline_s: float
    expires_s: float
    #: A container has been released for it.
    is_answered: bool = False

    @property
    def is_open(self) -> bool:
        """Whether a container released now may be meant for it: jobs know it, any will do."""
        return self.notice.negotiable and bool(self.notice.address) and not self.is_answered

    def remaining(self, now_s: float) -> ContainerMarked:
        """Return the notice with the grace that is left."""
        return replace(self.notice, grace_s=max(0.0, self.deadline_s - now_s))


class MarkStore:
    """Live marks, by container; by address where containers have no name."""

    def __init__(self) -> None:
        #: Oldest first.
        self._marks: dict[str, _Mark] = {}
        #: When marks ended that had not been answered, oldest first.
        self._ended_open: list[float] = []

    def add(self, notice: ContainerMarked, now_s: float) -> None:
        """Add a mark, or repeat it: a repeated mark needs another answer."""
        key = self._key(notice.container, notice.address)
        former = self._marks.get(key)
        if former is not None and former.is_open and not notice.negotiable:
            self._ended_open.append(now_s)
        # A repeated mark keeps its place in the order.
        self._marks[key] = _Mark(
            notice=notice,
            deadline_s=now_s + notice.grace_s,
            expires_s=now_s + life_of(notice),
        )

    def register(self, container: str, address: str, now_s: float) -> ContainerMarked | None:
        """Set the address of a marked container's worker; return the mark if jobs learn of it."""
        mark = self._marks.get(container)
        if mark is None or mark.notice.address:
            return None
        mark.notice = replace(mark.notice, address=address)
        return mark.remaining(now_s)

    def remove(self, container: str, address: str, now_s: float) -> ContainerMarked | None:
        """Remove and return a mark that was lifted, or whose container ended."""
        mark = self._marks.pop(self._key(container, address), None)
        if mark is None:
            return None
        if mark.is_open:
            self._ended_open.append(now_s)
        return mark.notice

    def expire(self, now_s: float) -> list[MarkLifted]:
        """Remove expired marks, the first to expire first; return the notices for the jobs."""
        expired = [mark for mark in self._marks.values() if mark.expires_s <= now_s]
        lifted: list[MarkLifted] = []
        for mark in sorted(expired, key=lambda mark: mark.expires_s):  # stable: then the oldest
            notice = mark.notice
            self.remove(notice.container, notice.address, now_s)
            lifted.append(
                MarkLifted(
                    container=notice.container,
                    address=notice.address,
                    # A source that states the life of its marks withdraws them by that alone.
                    why="void" if notice.life_s is None else "withdrawn",
                )
            )
        return lifted

    def live(self, now_s: float) -> list[ContainerMarked]:
        """List the marks that jobs know, with the grace that is left, by address."""
        marks = [m.remaining(now_s) for m in self._marks.values() if m.expires_s > now_s]
        return sorted((m for m in marks if m.address), key=lambda m: m.address)

    def answer(self, container: str, now_s: float) -> bool:
        """Count a container that is released towards an open mark: its own, else the oldest.

        Returns
        -------
        bool
            Whether it was released for a mark, so that a replacement has to be requested.
        """
        self._ended_open = [at_s for at_s in self._ended_open if now_s - at_s < LATE_S]
        waiting = [key for key, mark in self._marks.items() if mark.is_open]
        if waiting:
            self._marks[container if container in waiting else waiting[0]].is_answered = True
            return True
        if self._ended_open:
            del self._ended_open[0]
            return True
        return False

    def _key(self, container: str, address: str) -> str:
        """Return the key of a mark; some sources know only its container, others its address."""
        if container in self._marks or not address:
            return container
        for key, mark in self._marks.items():
            is_other = bool(container and mark.notice.container)  # an address is used again
            if mark.notice.address == address and not is_other:
                return key
        return container or address
