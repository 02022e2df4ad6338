"""Claims the checkpoints of a place for one process, so that no two resumes write them together.

Each attempt of a job has a number, and a file ``attempt-002.json`` that only one process can
create. Its holder renews it. A claim that has not been renewed for long, or whose process is known
to be dead, is free, and the next attempt claims the next number. A holder that finds a later
attempt writes and removes nothing more. All functions block.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from elasticml.data.storage.filesystem import (
    create,
    join,
    names,
    read_bytes,
    remove,
    remove_empty,
    write_whole,
)
from elasticml.errors import ConfigError, ElasticmlError
from elasticml.protocol.job_record import CheckpointPlace

#: Files of checkpoints: kind, attempt, number of the checkpoint or round.
FILE_NAME: Final = re.compile(
    r"(?:(checkpoint|journal|model)-(\d{3,})-(\d{8,})\.(?:bin|jsonl)|(attempt)-(\d{3,})\.json)"
)
#: Shortest time after which a claim that is not renewed is free; renewals per such time.
FREE_AFTER_S: Final = 30.0
_RENEWALS: Final = 6
#: Pause between two looks at a claim that is held.
_PAUSE_S: Final = 0.1


def attempt_of(name: str) -> int | None:
    """Return the attempt that wrote a file; None if it is not of checkpoints."""
    match = FILE_NAME.fullmatch(name)
    return None if match is None else int(match[2] or match[5])


class AttemptClaim:
    """The claim of one job's process to a place.

    Parameters
    ----------
    job : str
        Its id. The same job takes its claim over: a resource manager has ended its former driver.
    place : CheckpointPlace
        A local directory, or a URL; and how often a checkpoint is written.
    """

    def __init__(self, job: str, place: CheckpointPlace) -> None:
        self.place = place.path
        #: 0 before the claim is taken.
        self.number = 0
        #: Longest time between two renewals.
        self.renew_s = max(FREE_AFTER_S, 3 * place.every_s) / _RENEWALS
        self._job = job
        self._renewed_s = 0.0
        self._is_superseded = False

    @property
    def name(self) -> str:
        """Name of the claim's file."""
        return f"attempt-{self.number:03d}.json"

    def take(self, wait_s: float = 0.0) -> None:
        """Claim the next attempt; wait until the holder, which may be ending, has released it.

        Raises
        ------
        ConfigError
            With ``held_by`` when another job holds the place, without it when the place cannot be
            accessed.
        """
        until_s = time.monotonic() + wait_s
        while True:
            held_by = self._take()
            if self.number:
                return
            if time.monotonic() >= until_s:
                raise ConfigError(
                    f"checkpoint.path: {held_by} writes to {self.place}; attach to that job, end "
                    "it, or name another place",
                    held_by=held_by,
                )
            time.sleep(_PAUSE_S)

    def _take(self) -> str:
        """Try to claim the next attempt; return who holds the place if that failed."""
        present = names(self.place)
        claims = {number: name for name in present if (number := _claim_number(name))}
        if claims:
            held_by = self._holder(claims[max(claims)])
            if held_by is not None:
                return held_by
        number = max((attempt_of(name) or 0 for name in present), default=0) + 1
        self._renewed_s = time.monotonic()
        if not create(join(self.place, f"attempt-{number:03d}.json"), self._content()):
            return "another job, which has just started,"
        self.number = number
        return ""

    def _holder(self, name: str) -> str | None:
        """Describe who holds a claim; None if it is free."""
        try:
            claim = json.loads(read_bytes(join(self.place, name)))
            age_s = time.time() - float(claim["renewed_s"])
            rest_s = float(claim["free_after_s"]) - age_s
            if claim["job"] == self._job or rest_s <= 0 or _is_dead(claim):
                return None
            return (
                f"job {claim['job']}, driven by process {claim['pid']} on {claim['host']} "
                f"(its claim, renewed {max(age_s, 0):.0f} s ago, ends in {rest_s:.0f} s unless "
                "renewed),"
            )
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return None  # released meanwhile, or cut off by the end of its process

    def renew(self) -> None:
        """Take the claim if that failed before; see that it is still this job's, and renew it.

        Raises
        ------
        ConfigError
            When another job has claimed a later attempt, or the place cannot be accessed.
        """
        if not self.number:
            self.take()
            return
        present = names(self.place)
        later = [name for name in present if (attempt_of(name) or 0) > self.number]
        if later or self._is_superseded:
            self._is_superseded = True
            raise ConfigError(
                f"{self.place} is no longer this job's: its claim, attempt {self.number}, had "
                "ended, and a later attempt writes there"
            )
        now_s = time.monotonic()
        if present and now_s - self._renewed_s >= self.renew_s / 2:
            write_whole(join(self.place, self.name), self._content())
            self._renewed_s = now_s

    def release(self) -> None:
        """Let another job claim the place at once."""
        if self.number and not self._is_superseded:
            with suppress(ElasticmlError):  # then it is free after a while
                remove(join(self.place, self.name))
                remove_empty(self.place)

    def _content(self) -> bytes:
        pid = os.getpid()
        claim = {
            "job": self._job,
            "host": socket.gethostname(),
            "pid": pid,
            "machine": _machine(),
            "started": _started(pid),
            "renewed_s": time.time(),
            "free_after_s": _RENEWALS * self.renew_s,
        }
        return json.dumps(claim).encode()


def _claim_number(name: str) -> int | None:
    return attempt_of(name) if name.startswith("attempt-") else None


def _is_dead(claim: dict[str, Any]) -> bool:
    """Whether the process of a claim is known to be dead: it ran on this machine."""
    machine = _machine()
    return (
        bool(machine) and claim["machine"] == machine and _started(claim["pid"]) != claim["started"]
    )


def _machine() -> str:
    """Identify the running kernel and its namespace of process ids; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Return when a process started, in ticks of the kernel; None if it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
