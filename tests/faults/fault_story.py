"""The faults in the story of a job in the in-memory world."""

from __future__ import annotations

from elasticml.ids import member_id
from tests.faults.phase_stops import INNER, N_MEMBERS, OTHER
from tests.memory_world import World


def pid(address: str) -> int:
    return int(address[1:])


def losses(world: World) -> dict[str, str]:
    """Return the lost members by address, and the causes."""
    joined = {r["member"]: f"w{r['pid']}" for r in world.events("MemberJoined")}
    return {joined[r["member"]]: r["reason"] for r in world.events("MemberLost")}


def absent_groups(world: World) -> list[list[str]]:
    """Return the slots whose chunks were absent, a list for each group."""
    return [[member_id(name).slot for name in r["members"]] for r in world.events("ChunksAbsent")]


def others_computed_once(world: World) -> bool:
    """Check that every surviving initial member has computed each exchange once."""
    first = {r["member"] for r in world.events("MemberJoined")[:N_MEMBERS]}
    first -= {r["member"] for r in world.events("MemberLost")}
    computed = world.events("JobEnded")[0]["computations"]
    return {computed[name] for name in first} == {len(world.events("ExchangeEnded"))}


def groups_of(phase: str, *, victim_is_lost: bool) -> list[list[int]]:
    """Return whose chunks must have been absent after a fault in this phase."""
    slots = [INNER.slot] if victim_is_lost else []
    if phase == "load":
        return []  # no member had begun to train: lost chunks are read again
    if phase == "correct":
        slots = [*slots, OTHER.slot]
    return [slots] if slots else []


async def finish(world: World) -> None:
    await world.run()
    assert world.shell.state == "done", world.tail()
