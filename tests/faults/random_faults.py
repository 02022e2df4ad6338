"""A toy job in the in-memory world under random kills, pauses, notices and returns, from a seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from elasticml.errors import ElasticmlError
from tests.memory_world import TRANSPORTS, World, toy_record, toy_source, transport_options

N_ROWS, CHUNK_BYTES, ROUNDS = 120, 640, 14
#: Maximum of faults of each kind in one run.
KILLS_MAX, PAUSES_MAX, NOTICES_MAX, RETURNS_MAX = 8, 3, 3, 12
#: Turns after which there are no more faults, and turns between the workers that join then: a job
#: that waits for all members gets them.
TURNS_OF_FAULTS, TURNS_BETWEEN_LATE = 3000, 200
#: Virtual seconds of every notice.
GRACE_S = 2.0
ABSENT = ("taylor", "ignore", "stall", "reload")


@dataclass(slots=True, kw_only=True)
class RandomRun:
    """The result of one run."""

    seed: int
    state: str = "hangs"
    error: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    #: Members lost without a fault aimed at them.
    collateral: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.state == "done" and not self.collateral


class Faults:
    """Draws faults at every turn of the event loop."""

    def __init__(self, world: World, rng: random.Random, n_members: int, *, early: bool) -> None:
        self.world = world
        self.rng = rng
        self.n_members = n_members
        #: Faults start while the data are read, not only with the first round.
        self.early = early
        self.counts: Counter[str] = Counter()
        #: Workers at which a fault was aimed.
        self.touched: set[str] = set()
        self._paused: set[str] = set()
        self._joining: list[object] = []

    def turn(self, k: int) -> None:
        """Maybe inject a fault."""
        if not self.early and self.world.shell.machine.state.stage != "training":
            return
        hosts, draw = sorted(self.world.hosts), self.rng.random()
        if k > TURNS_OF_FAULTS:
            if k % TURNS_BETWEEN_LATE == 0:
                self.add()
        elif len(hosts) < 2:
            self.add()
        elif draw < 0.005 and self.counts["kills"] < KILLS_MAX:
            self.counts["kills"] += 1
            self.world.kill(self.touch(hosts))
        elif draw < 0.012 and len(hosts) < self.n_members + 2:
            if self.counts["returns"] < RETURNS_MAX:
                self.add()
        elif draw < 0.014 and self.counts["pauses"] < PAUSES_MAX:
            self.counts["pauses"] += 1
            address = self.touch(hosts)
            self.world.pause(address)
            self._paused.add(address)
        elif draw < 0.016 and self._paused:
            self.world.resume(self._paused.pop())
        elif draw < 0.018 and self.counts["notices"] < NOTICES_MAX:
            self.counts["notices"] += 1
            self.world.notice(self.touch(hosts), GRACE_S)

    def touch(self, hosts: list[str]) -> str:
        address = self.rng.choice(hosts)
        self.touched.add(address)
        return address

    def add(self) -> None:
        self.counts["returns"] += 1
        self.world.join()


async def random_run(seed: int) -> RandomRun:
    """Run one job; the seed gives mode, shape, anchors, faults and the network's interleaving."""
    rng = random.Random(seed)
    n_members = rng.randint(3, 7)
    absent = ABSENT[seed % len(ABSENT)]
    topology = {"topology": rng.choice(["star", "tree", "tree"]), "fan_out": rng.randint(1, 3)}
    record = toy_record(
        members={"start": n_members}, absent=absent, collective=topology, chunk_bytes=CHUNK_BYTES
    )
    anchor = rng.choice(["cached", "correction"])
    record["algorithm"] = {**record["algorithm"], "anchor": anchor, "rounds": ROUNDS}
    world = World(
        record,
        seed,
        source=toy_source(N_ROWS),
        **transport_options(TRANSPORTS[seed // len(ABSENT) % 3]),
    )
    for _ in range(n_members):
        await world.add()
    faults = Faults(world, rng, n_members, early=rng.random() < 0.25)
    run = RandomRun(seed=seed, faults=faults.counts)
    try:
        await world.run(faults.turn)
        run.state = world.shell.state
        run.error = "" if world.shell.error is None else world.shell.error["message"]
        joined = {r["member"]: f"w{r['pid']}" for r in world.events("MemberJoined")}
        lost = {joined[r["member"]] for r in world.events("MemberLost")}
        run.collateral = sorted(lost - faults.touched)
    except (AssertionError, ElasticmlError) as error:
        run.error = str(error)
    finally:
        await world.close()
    return run
