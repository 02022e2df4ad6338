"""Validate the list of planned faults: every lost member exists, every returning one was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticml.errors import ConfigError
from elasticml.jobs.job_sections import Fault
from elasticml.jobs.schema import read_settings


def read_faults(raw: object, path: str = "faults") -> tuple[Fault, ...]:
    """Validate a list of faults.

    Returns
    -------
    tuple of Fault
        Sorted by round; faults of one round keep their order.

    Raises
    ------
    ConfigError
        When it is not a list, or an entry is invalid.
    """
    if raw is None:
        return ()
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise ConfigError(
            f"{path}: got {raw!r}, wanted a list such as [{{round: 100, lose: 7}}]", path=path
        )
    entries: list[Any] = list(raw)
    faults = [
        entry if isinstance(entry, Fault) else read_settings(Fault, entry, f"{path}[{index}]")
        for index, entry in enumerate(entries)
    ]
    return tuple(sorted(faults, key=lambda fault: fault.round))


def check_faults(faults: Sequence[Fault], workers: int) -> None:
    """Check that each fault is possible: members to lose are present, members to return are lost.

    Parameters
    ----------
    faults : sequence of Fault, by round
    workers : int
        Members at round 0, in slots 0 to ``workers - 1``.

    Raises
    ------
    ConfigError
        When a fault removes more members than there are, names an empty slot, or returns more
        members than were lost.
    """
    here = set(range(workers))
    gone: set[int] = set()
    unnamed = 0
    for fault in faults:
        where = f"faults: round {fault.round}"
        n_here = workers - len(gone) - unnamed
        if fault.returned is not None:
            n_gone = len(gone) + unnamed
            if fault.returned > n_gone:
                raise ConfigError(
                    f"{where}: return: {fault.returned}, but {n_gone} of {workers} members have "
                    f"gone by then; lose them in an earlier round",
                    path="faults",
                )
            # The driver chooses which slots return first, so the named ones are unknown from here.
            unnamed += len(gone) - fault.returned
            gone = set()
        elif isinstance(fault.lose, list):
            wrong = [slot for slot in fault.lose if slot not in here or slot in gone]
            if wrong or len(fault.lose) > n_here:
                raise ConfigError(
                    f"{where}: lose: {fault.lose}, but slot {(wrong or fault.lose)[0]} holds no "
                    f"member then; slots are 0 to {workers - 1}",
                    path="faults",
                )
            gone |= set(fault.lose)
        elif fault.lose is not None:
            if fault.lose > n_here:
                raise ConfigError(
                    f"{where}: lose: {fault.lose}, but {n_here} of {workers} members are there "
                    f"then; lose fewer or set cluster.workers",
                    path="faults",
                )
            unnamed += fault.lose
