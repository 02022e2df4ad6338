"""Schedules of losses and returns, and moves between rounds: inputs for every algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from tests.serial_world import Return, Vanish, World

Schedule = list[Vanish | Return]


def schedules(
    members: int,
    rounds: int,
    operations: Sequence[str],
    returns_during: Sequence[str | None] = (None,),
    *,
    nth_max: int = 1,
    has_state: bool = True,
) -> st.SearchStrategy[Schedule]:
    """Draw up to eight losses and returns, twice as many losses.

    Parameters
    ----------
    operations : sequence of str
        Of the exchanges in which members vanish.
    returns_during : sequence of str or None
        Of those in which they return; None between rounds.
    nth_max : int
        Largest index of a round's exchange of an operation, from 0.
    has_state : bool
        Whether chunks may return with their former state.
    """
    vanishes = st.builds(
        Vanish,
        round=st.integers(0, rounds - 1),
        members=st.sets(st.integers(0, members - 1), min_size=1, max_size=3).map(tuple),
        during=st.sampled_from(operations),
        nth=st.integers(0, nth_max),
        counted=st.booleans(),
    )
    returns = st.builds(
        Return,
        round=st.integers(0, rounds - 1),
        oldest=st.booleans(),
        with_state=st.booleans() if has_state else st.just(False),
        during=st.sampled_from(returns_during),
    )
    return st.lists(st.one_of(vanishes, vanishes, returns), max_size=8)


def moves(share: float) -> Callable[[World], None]:
    """Move this share of the chunks at the beginning of every round, each to a random member."""

    def between(world: World) -> None:
        rng = np.random.default_rng(world.round)
        present = world.present()
        ids = [chunk.id for member in present for chunk in world.chunks[member]]
        moved = [id for id in ids if rng.random() < share]
        world.move_all({id: int(rng.choice(present)) for id in moved})

    return between
