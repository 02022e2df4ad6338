"""The uni-task study's options for local SGD, and the study itself where they request it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

#: Data sets of local SGD: their module needs PyTorch, their names do not.
NETWORK_SETS: Final = ("fashion", "cifar10", "squares")
_FIGURES: Final = ("1a", "fixed", "4a", "4b", "5", "7", "11")


def add_local_sgd_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of local SGD to the command line."""
    group.add_argument(
        "--figures", nargs="+", default=list(_FIGURES), choices=_FIGURES, metavar="FIGURE",
        help="which to draw (default: %(default)s); 4a and 9, 4b and 9, 5 and 10 come together",
    )  # fmt: skip
    group.add_argument(
        "--epochs", type=int, default=20, help="of every run; the paper trains for 20 minutes"
    )
    group.add_argument(
        "--local-steps", type=int, default=16, help="H, of a member in a round (default 16)"
    )
    group.add_argument("--balanced-rounds", type=int, default=50, help="of Figure 11 (default 50)")
    group.add_argument("--rows", type=int, help="training examples; default all")
    group.add_argument(
        "--change", type=float, default=2.0, metavar="EPOCHS",
        help="epochs on all members between two changes of their number (default 2)",
    )  # fmt: skip
    group.add_argument(
        "--tasks", type=int, nargs="+", default=[16, 24, 32, 64], help="micro-tasks (16 24 32 64)"
    )
    group.add_argument(
        "--members", type=int, nargs="+", default=[1, 2, 4, 8], help="fixed members (1 2 4 8)"
    )
    group.add_argument(
        "--batches", type=int, nargs="+", default=[64, 128, 256, 512], help="of Figure 1a"
    )
    group.add_argument("--channels", type=int, nargs=2, help="of the two convolutions (6 16)")
    group.add_argument("--hidden", type=int, nargs=2, help="widths of the hidden layers (120 84)")


def run_local_sgd(
    arguments: argparse.Namespace, names: Sequence[str]
) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    """Run the study on these sets; return its tables, its lines, and its plots.

    Runs are kept below ``runs`` in the folder of the results.
    """
    from dataclasses import replace

    from support import local_sgd_figures as figures
    from support.local_sgd_store import Store, run_side_by_side
    from support.local_sgd_study import Budget

    sizes = {"channels": arguments.channels, "hidden": arguments.hidden}
    sizes = {name: pair for name, pair in sizes.items() if pair}
    budget = Budget(
        epochs=arguments.epochs,
        tasks=arguments.tasks,
        members=arguments.members,
        batches=arguments.batches,
        every=arguments.change,
        local_steps=arguments.local_steps,
        balanced_rounds=arguments.balanced_rounds,
        seed=arguments.seed,
        rows=arguments.rows,
        model_options=sizes,
    )
    if arguments.quick:
        budget = Budget(
            epochs=6,
            tasks=(16, 32),
            members=(1, 4),
            batches=(64, 128),
            every=0.5,
            local_steps=2,
            balanced_rounds=12,
        )
    store = Store(folder=arguments.out / "runs", rows=budget.rows)
    budgets = [replace(budget, seed=budget.seed + k) for k in range(arguments.seeds)]

    def run_with(some: Store) -> list[figures.Measurements]:
        return [
            figures.run_all(
                names,
                [name for name in arguments.figures if not k or name in figures.SEEDED],
                some,
                budgets[k],
            )
            for k in range(len(budgets))
        ]

    if arguments.jobs > 1:
        run_side_by_side(store, run_with, arguments.jobs)
    results = run_with(store)
    return figures.tell(results), results[0].content(), figures.pictures(results[0])
