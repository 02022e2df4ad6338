"""What the driver machine knows that another process must know to go on with the next round.

Members, owners and holders are not in it: there everybody is new and the data are read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from elasticml.control.driver import Driver
from elasticml.control.policy import Progress
from elasticml.control.settings import PlannedFault
from elasticml.terms import ExchangeId, Generation


def remember(driver: Driver) -> dict[str, Any]:
    """Write down, as plain values, where the machine stands between two rounds.

    Finished rounds are not in it, which only become more: see :func:`progress_entry`.
    """
    state = driver.state
    return {
        "round": state.round,
        "exchange": state.last_exchange,
        "generation": state.generation,
        "order": state.last_order,
        "group": state.ledger.next_group,
        "incarnations": state.membership.incarnations(),
        "tuned": dict(driver.advising.tuned),
        **driver.rounds.remember(),
        "policies": {p.name: dict(p.state()) for p in driver.advising.remembering},
    }


def recall(driver: Driver, known: Mapping[str, Any], progress: Sequence[Progress]) -> None:
    """Have a new machine go on after the rounds that another one has finished.

    Ids of members, exchanges and groups go on counting, so that none is used twice in a story.

    Parameters
    ----------
    known : mapping
        As :func:`remember` wrote it.
    progress : sequence of Progress
        Finished rounds, oldest first.
    """
    state = driver.state
    state.round = int(known["round"])
    state.last_exchange = state.closed_exchange = ExchangeId(int(known["exchange"]))
    state.generation = Generation(int(known["generation"]))
    state.last_order = int(known["order"])
    state.ledger.next_group = int(known["group"])
    state.membership.count_from(known["incarnations"])
    driver.history.recall(progress)
    driver.advising.tuned.update(known["tuned"])
    driver.rounds.recall(known)
    driver.rounds.planned = remaining_faults(driver.rounds.planned, state.round)
    for policy in driver.advising.remembering:
        if policy.name in known["policies"]:
            policy.restore(known["policies"][policy.name])


def remaining_faults(planned: Sequence[PlannedFault], round: int) -> list[PlannedFault]:
    """Leave out what was planned for earlier rounds, and returns of nobody who is gone."""
    found: list[PlannedFault] = []
    gone = 0
    for fault in planned:
        if fault.round < round:
            continue
        if fault.kind == "lose":
            gone += fault.count
            found.append(fault)
        elif gone:
            back = min(fault.count, gone)
            gone -= back
            found.append(replace(fault, count=back))
    return found


def progress_entry(progress: Progress) -> dict[str, Any]:
    """Write a finished round as plain values."""
    return asdict(progress)


def progress_of(entry: Mapping[str, Any]) -> Progress:
    """Read a finished round back from :func:`progress_entry`."""
    return Progress(**entry)
