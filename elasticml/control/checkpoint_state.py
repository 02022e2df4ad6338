"""The driver machine's part of a checkpoint: what another process needs for the next round.

Members, owners and holders are not part of it: after a restart all members are new and the data
are read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from elasticml.control.driver import Driver
from elasticml.control.policy import Progress
from elasticml.ids import ExchangeId, Generation
from elasticml.specification.sections import Fault


def snapshot(driver: Driver) -> dict[str, Any]:
    """Return the machine's state between two rounds as plain values.

    Finished rounds are stored separately, as their list only grows: see :func:`progress_entry`.
    """
    state = driver.state
    return {
        "round": state.round,
        "exchange": state.last_exchange,
        "generation": state.generation,
        "order": state.last_order,
        "group": state.ledger.next_group,
        "incarnations": state.membership.incarnations(),
        "tuned": dict(driver.policy_engine.tuned),
        **driver.rounds.snapshot(),
        "policies": {p.name: dict(p.state()) for p in driver.policy_engine.remembering},
    }


def restore(driver: Driver, machine: Mapping[str, Any], progress: Sequence[Progress]) -> None:
    """Continue in a new machine after the rounds that another one finished.

    Ids of members, exchanges and groups continue, so that no id is used twice in a story.

    Parameters
    ----------
    machine : mapping
        As returned by :func:`snapshot`.
    progress : sequence of Progress
        Finished rounds, oldest first.
    """
    state = driver.state
    state.round = int(machine["round"])
    state.last_exchange = state.closed_exchange = ExchangeId(int(machine["exchange"]))
    state.generation = Generation(int(machine["generation"]))
    state.last_order = int(machine["order"])
    state.ledger.next_group = int(machine["group"])
    state.membership.count_from(machine["incarnations"])
    driver.history.restore(progress)
    driver.policy_engine.tuned.update(machine["tuned"])
    driver.rounds.restore(machine)
    driver.rounds.planned = remaining_faults(driver.rounds.planned, state.round)
    for policy in driver.policy_engine.remembering:
        if policy.name in machine["policies"]:
            policy.restore(machine["policies"][policy.name])


def remaining_faults(planned: Sequence[Fault], round: int) -> list[Fault]:
    """Drop faults planned for earlier rounds, and returns of members that are not lost."""
    remaining: list[Fault] = []
    gone = 0
    for fault in planned:
        if fault.round < round:
            continue
        if fault.kind == "lose":
            gone += fault.count
            remaining.append(fault)
        elif gone:
            back = min(fault.count, gone)
            gone -= back
            remaining.append(fault.model_copy(update={"returned": back}))
    return remaining


def progress_entry(progress: Progress) -> dict[str, Any]:
    """Return a finished round as plain values."""
    return asdict(progress)


def progress_of(entry: Mapping[str, Any]) -> Progress:
    """Return the finished round of a :func:`progress_entry`."""
    return Progress(**entry)
