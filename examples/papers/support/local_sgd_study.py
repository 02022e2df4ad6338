"""The uni-task paper's experiments with local SGD: the runs, and the projection of time.

A unit is a round of one wave: the time in which a member takes L H samples. A round of K
micro-tasks on N members is ``ceil(K / N)`` of them. (The paper counts a sixteenth of a *round's*
samples as one; its ``16 / K ceil(K / N)`` is the same time for the same samples, because a round of
K micro-tasks has K / 16 times as many.) Uni-tasks take a unit a round for any N.

Source: the uni-task paper, sections 5.1 to 5.4 and A.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from support.local_sgd_runs import Run, Setting
from support.local_sgd_store import Store

from examples.papers.support.round_projection import (
    REFERENCE_MEMBERS,
    elapsed,
    micro_task_units,
    micro_task_units_mixed,
    stepwise,
)

#: L.
BATCH: Final = 8
#: alpha of local SGD by data set: the paper's, and one for the small set.
RATES: Final = {"fashion": 5e-4, "cifar10": 1e-4, "squares": 0.02}
#: Mini-batch SGD: rate of the paper's baseline at a batch of 64; alpha sqrt(B / 64) elsewhere.
MSGD_BATCH: Final = 64
MSGD_RATES: Final = {"fashion": 2e-3, "cifar10": 2e-3, "squares": 0.02}
#: Examples that are trained on.
N_TRAIN: Final = {"fashion": 60_000, "cifar10": 50_000, "squares": 960}

UNI: Final = "uni-tasks"
#: 8 fast members and 8 slow ones; 4 of 16 at 1.2 instead of 2.6 GHz.
MIXED: Final = [1.0] * 8 + [1.5] * 8
THROTTLED: Final = [2.6 / 1.2] * 4 + [1.0] * 12
#: Points of a line: x and test accuracy.
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The runs, and their length."""

    epochs: int = 20
    #: K of micro-tasks.
    tasks: Sequence[int] = (16, 24, 32, 64)
    #: K of the table of fixed members; the largest is also the one that goes to 2 and back.
    members: Sequence[int] = (1, 2, 4, 8)
    #: Batches of Figure 1a.
    batches: Sequence[int] = (64, 128, 256, 512)
    #: Epochs between two changes of the number of members.
    every: float = 2.0
    #: H.
    local_steps: int = 16
    #: Rounds of Figure 11.
    balanced_rounds: int = 50
    seed: int = 0
    rows: int | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, data: str, name: str, **changes: Any) -> Setting:
        """Return a run of local SGD with the paper's numbers."""
        numbers = {
            "learning_rate": RATES[data],
            "batch": BATCH,
            "local_steps": self.local_steps,
            "epochs": self.epochs,
            "seed": self.seed,
            "model_options": dict(self.model_options),
        }
        return Setting(name=name, **{**numbers, **changes})

    def static(self, data: str, members: int) -> Setting:
        """Return a run on this many members, or logical tasks."""
        return self.setting(data, f"members-{members}", members=members)

    def msgd(self, data: str, batch: int) -> Setting:
        """Return mini-batch SGD; the tasks that share a batch do not change its result."""
        rate = MSGD_RATES[data] * (batch / MSGD_BATCH) ** 0.5
        changes = {"batch": batch, "local_steps": 1, "learning_rate": rate}
        return self.setting(data, f"msgd-{batch}", **changes)

    def scaling(self, data: str, counts: Sequence[int]) -> Setting:
        """Return uni-tasks with members that join and leave."""
        name = "-".join(str(n) for n in (counts[0], *_turns(counts), counts[-1]))
        schedule = self.schedule(data, counts)
        return self.setting(data, name, members=counts[0], schedule=schedule)

    def schedule(self, data: str, counts: Sequence[int]) -> list[tuple[float, int]]:
        """Return the number of members over time, as (from unit, members)."""
        every = self.every * self.n_train(data) / (max(counts) * BATCH * self.local_steps)
        return [(k * every, n) for k, n in enumerate(counts)]

    def n_train(self, data: str) -> int:
        """Count the examples that are trained on."""
        return N_TRAIN[data] if self.rows is None else min(self.rows, N_TRAIN[data])

    def unequal(self, data: str, name: str, factors: Sequence[float], **changes: Any) -> Setting:
        """Return members of unequal speed."""
        slow = {slot: factor for slot, factor in enumerate(factors) if factor != 1.0}
        return self.setting(data, name, members=len(factors), slow=slow, **changes)


def counts(start: int, end: int) -> list[int]:
    """Count members by twos: the papers' steps from one number to another."""
    return [members for _, members in stepwise(start, end)]


def _turns(counts: Sequence[int]) -> list[int]:
    inner = zip(counts, counts[1:], counts[2:], strict=False)
    return [now for before, now, after in inner if (now - before) * (after - now) < 0]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """One experiment on one data set: setting -> line."""

    epochs: dict[str, Line] = field(default_factory=dict)
    units: dict[str, Line] = field(default_factory=dict)

    def add(self, name: str, found: Run, ends: Sequence[float] | None = None) -> None:
        """Add a run; ``ends``: when its rounds end, unless the run has that itself."""
        self.epochs[name] = by_epoch(found)
        self.units[name] = [
            (p.units if ends is None else ends[p.rounds - 1], p.test_accuracy) for p in found.points
        ]


def by_epoch(found: Run) -> Line:
    """Return the test accuracy at the end of each epoch."""
    return [(float(p.epoch), p.test_accuracy) for p in found.points]


def fixed(store: Store, data: str, budget: Budget) -> Lines:
    """Compare fixed numbers of members, and the largest number of them to 2 and back."""
    lines = Lines()
    for members in budget.members:
        lines.add(f"K = {members}", store.run(data, budget.static(data, members)))
    most = max(budget.members)
    if most > 2:
        there_and_back = [*counts(most, 2), *counts(2, most)[1:]]
        elastic = store.run(data, budget.scaling(data, there_and_back))
        lines.add(f"{most} to 2 to {most}, {UNI}", elastic)
        when = budget.schedule(data, there_and_back)
        for tasks in (most, 2 * most):
            result = store.run(data, budget.static(data, tasks))
            lines.add(
                f"{most} to 2 to {most}, micro-tasks ({tasks})", result, _waves(result, tasks, when)
            )
    return lines


def scaling(store: Store, data: str, budget: Budget, start: int, end: int) -> Lines:
    """Compare uni-tasks with micro-tasks while members join or leave: Figures 4 and 9."""
    lines, steps = Lines(), counts(start, end)
    when = budget.schedule(data, steps)
    for tasks in budget.tasks:
        result = store.run(data, budget.static(data, tasks))
        lines.add(f"micro-tasks ({tasks})", result, _waves(result, tasks, when))
    lines.add(UNI, store.run(data, budget.scaling(data, steps)))
    return lines


def mixed(store: Store, data: str, budget: Budget) -> tuple[Lines, float]:
    """Compare them on 8 fast and 8 slow members, Figures 5 and 10.

    The number is the length of a round of uni-tasks, in units.
    """
    lines = Lines()
    for tasks in budget.tasks:
        result = store.run(data, budget.static(data, tasks))
        units = micro_task_units_mixed(tasks, MIXED) * tasks / REFERENCE_MEMBERS
        ends = [units * (k + 1) for k in range(len(result.rounds))]
        lines.add(f"micro-tasks ({tasks})", result, ends)
    result = store.run(data, budget.unequal(data, "mixed", MIXED, balances=True))
    lines.add(UNI, result)
    return lines, result.rounds[-1].units


def balanced(store: Store, data: str, budget: Budget) -> list[Run]:
    """Throttle 4 of 16 members, without and with the rebalancing policy: Figure 11."""
    a_round = REFERENCE_MEMBERS * BATCH * budget.local_steps
    epochs = -(-budget.balanced_rounds * a_round // budget.n_train(data))
    return [
        store.run(
            data,
            budget.unequal(
                data,
                f"throttled-{'balanced' if balances else 'fixed'}",
                THROTTLED,
                balances=balances,
                epochs=epochs,
            ),
        )
        for balances in (False, True)
    ]


def parallelism(store: Store, data: str, budget: Budget) -> dict[str, Line]:
    """Run mini-batch SGD with several batch sizes: Figure 1a."""
    return {
        f"batch {batch}": by_epoch(store.run(data, budget.msgd(data, batch)))
        for batch in budget.batches
    }


def baseline(store: Store, data: str, budget: Budget) -> dict[str, Line]:
    """Compare with PyTorch alone over the same steps: Figure 7, and local SGD on one member."""
    lines = {}
    settings = {
        f"mini-batch SGD, batch {MSGD_BATCH}": budget.msgd(data, MSGD_BATCH),
        "local SGD, K = 1": budget.static(data, 1),
    }
    for name, setting in settings.items():
        lines[f"{name}: elasticml"] = by_epoch(store.run(data, setting))
        lines[f"{name}: PyTorch"] = by_epoch(store.plain(data, setting))
    return lines


def _waves(found: Run, tasks: int, when: Sequence[tuple[float, int]]) -> list[float]:
    """Return when rounds of micro-tasks end, in units."""
    lengths = {
        n: micro_task_units(tasks, n) * tasks / REFERENCE_MEMBERS for n in {n for _, n in when}
    }
    return elapsed(len(found.rounds), when, lengths, 1.0)
