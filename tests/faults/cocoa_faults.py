"""A CoCoA job in the in-memory world under random faults from a seed, checked against its data.

Chunks have one or two holders, policies reshuffle them, retire members and request others, members
have little memory; kills are aimed at members that send, receive or hold something at that moment.
At the end every reported gap and objective is compared with numpy's over all rows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.control.driver import Driver
from elasticml.data.readers.arrays import ArraySource, from_arrays
from elasticml.errors import ElasticmlError
from elasticml.ids import MemberId
from tests.memory_world import TRANSPORTS, World, transport_options
from tests.primal_reference import PrimalReference

N_ROWS, N_COLUMNS, CHUNK_BYTES, L2 = 240, 6, 768, 1e-2
#: Rounds pass quickly while a job waits for members.
GAP, ROUNDS_MAX = 1e-5, 100_000
KILLS_MAX, PAUSES_MAX, NOTICES_MAX, JOINS_MAX = 12, 2, 3, 16
#: Turns after which there are no more faults, and turns between the workers that join then.
TURNS_OF_FAULTS, TURNS_BETWEEN_LATE, TURNS_MAX = 4000, 200, 120_000
GRACE_S = 2.0
#: The error of a job whose data do not fit the remaining members.
FULL = "the chunks on one member take"
LOSSES = ("hinge", "squared_hinge", "logistic")
ABSENT = ("auto", "reload", "freeze", "stall")
POLICIES: tuple[dict[str, Any], ...] = (
    {"name": "redeal", "share": 1.0},
    {"name": "knee", "factor": 2, "minimum": 2},
    {"name": "gap_per_container_second", "factor": 2, "window": 2, "probe": 2, "cool": 2},
    {"name": "rebalance", "tolerance": 0.0, "share": 1.0},
    {"name": "straggler", "factor": 1.5, "confirm": 1},
    {"name": "shuffle", "share": 0.2},
    {"name": "tune_local_work", "window": 2, "cool": 2},
)


@dataclass(slots=True, kw_only=True)
class CocoaRun:
    """The result of one run."""

    seed: int
    what: str = ""
    state: str = "hangs"
    error: str = ""
    rounds: int = 0
    gap: float | None = None
    faults: Counter[str] = field(default_factory=Counter)
    #: Members lost without a fault aimed at them.
    collateral: list[str] = field(default_factory=list)
    #: Wrong rows of the history.
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the job reached its certified end, reported no wrong value and lost no member
        needlessly.
        """
        is_over = self.state in ("done", "too little memory")
        return is_over and not (self.collateral or self.wrong)


class Elastic:
    """Starts and ends workers as policies request it."""

    def __init__(self, members_max: int) -> None:
        self.members_max = members_max
        self.world: World | None = None
        #: Workers that were released.
        self.released: set[str] = set()

    async def request(self, count: int) -> int:
        """Start as many as allowed."""
        assert self.world is not None
        count = max(0, min(count, self.members_max - len(self.world.hosts)))
        for _ in range(count):
            await self.world.add()
        return count

    async def release(self, addresses: Sequence[str]) -> None:
        """End workers that a job has released."""
        assert self.world is not None
        for address in addresses:
            self.released.add(address)
            self.world.kill(address)


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

    def turn(self, k: int) -> None:
        """Maybe inject a fault."""
        hosts, draw = sorted(self.world.hosts), self.rng.random()
        if not self.early and self.driver.state.stage != "training":
            return
        if k > TURNS_OF_FAULTS:
            lacking = len(hosts) < self.n_members or self.driver.state.ledger.absent_rows()
            if k % TURNS_BETWEEN_LATE == 0 and lacking:
                self.world.join()
        elif not hosts:
            if draw < 0.05:
                self.join()
        elif draw < 0.006:
            self.kill([self.rng.choice(hosts)], "kills")
        elif draw < 0.012:
            self.kill(self.aimed(), "aimed")
        elif draw < 0.0125:
            self.kill(hosts if self.rng.random() < 0.3 else hosts[: len(hosts) // 2], "many")
        elif draw < 0.02 and len(hosts) < self.n_members + 2:
            if self.counts["joins"] < JOINS_MAX:
                self.join()
        elif draw < 0.022 and self.counts["pauses"] < PAUSES_MAX:
            self.counts["pauses"] += 1
            address = self.rng.choice(hosts)
            self.touched.add(address)
            self._paused.add(address)
            self.world.pause(address)
        elif draw < 0.026 and self._paused:
            self.world.resume(self._paused.pop())
        elif draw < 0.028 and self.counts["notices"] < NOTICES_MAX:
            self.counts["notices"] += 1
            address = self.rng.choice(hosts)
            self.touched.add(address)
            self.world.notice(address, GRACE_S)

    @property
    def driver(self) -> Driver:
        """The driver machine, whose plans identify targets."""
        return self.world.shell.machine

    def aimed(self) -> list[str]:
        """Choose members that send or receive at this moment, or all that hold some chunk."""
        chunk_moves, chunk_copies = self.driver.chunk_moves, self.driver.chunk_copies
        aims: list[list[MemberId]] = []
        for transfer in list(chunk_moves.moves.values())[:1]:
            aims += [[transfer.source], [transfer.target], [transfer.source, transfer.target]]
        for copy in list(chunk_copies.under_way.values())[:1]:
            aims += [[copy.source], [copy.target]]
        aims += [[reader] for reader in list(chunk_moves.rereading.values())[:1]]
        aims += [[owner] for owners in chunk_moves.returning.values() for owner in owners.values()][
            :1
        ]
        aims += [[r.id] for r in self.driver.state.membership.stage("leaving")]
        holders = self.driver.state.ledger.holders
        if holders:
            aims.append(sorted(holders[self.rng.choice(sorted(holders))]))
        if not aims:
            return []
        living = self.driver.state.membership.members
        return [living[m].address for m in self.rng.choice(aims) if m in living]

    def kill(self, addresses: Sequence[str], how: str) -> None:
        """Kill these members, while there are kills left."""
        if self.counts["killed"] + len(addresses) > KILLS_MAX:
            return
        self.counts[how] += 1
        for address in addresses:
            self.counts["killed"] += 1
            self.touched.add(address)
            self.world.kill(address)

    def join(self) -> None:
        """Start a worker."""
        self.counts["joins"] += 1
        self.world.join()


async def cocoa_run(seed: int) -> CocoaRun:
    """Run one job; the seed gives loss, rules, policies, faults and the network's interleaving."""
    rng = random.Random(seed)
    loss, absent, holders = rng.choice(LOSSES), rng.choice(ABSENT), rng.choice([1, 2, 2])
    n_members = rng.randint(2, 7)
    policies = [{**p} for p in POLICIES if rng.random() < 0.4]
    names = [str(p["name"]) for p in policies]
    if {"knee", "gap_per_container_second"} <= set(names):
        policies.pop(names.index(rng.choice(["knee", "gap_per_container_second"])))
    topology = {"topology": rng.choice(["star", "tree", "tree"]), "fan_out": rng.randint(1, 3)}
    source = data()
    record = {
        "version": 1,
        "job": "cocoa",
        "name": "cocoa",
        "chunk_bytes": CHUNK_BYTES,
        "algorithm": {
            "name": "cocoa",
            "loss": loss,
            "l2": L2,
            "mode": rng.choice(["default", "default", "paper"]),
            "gap_every": rng.choice([1, 1, "auto"]),
        },
        "absent": absent,
        "stop": {"rounds": ROUNDS_MAX, "gap": GAP},
        "seed": seed,
        "faults": [],
        "collective": topology,
        "members": {"start": n_members, "min": rng.choice([1, 1, 2])},
        "holders": holders,
        "policies": policies,
        "evaluate": {"every": 1},
    }
    limit_bytes = None
    if rng.random() < 0.4:
        total = sum(len(b) for b in source.chunk_bodies(CHUNK_BYTES, n_members).bodies)
        limit_bytes = int(total * holders * rng.choice([0.5, 0.8, 1.2]))
    scaler = Elastic(n_members + 1)
    world = World(
        record,
        seed,
        source=source,
        scaler=scaler,
        limit_bytes=limit_bytes,
        **transport_options(TRANSPORTS[seed % 3]),
    )
    scaler.world = world
    for _ in range(n_members):
        await world.add()
    faults = Faults(world, rng, n_members, early=rng.random() < 0.25)
    what = f"{loss} {record['algorithm']['mode']} {absent} holders {holders} of {n_members}"
    what += f" {topology['topology']} {[p['name'] for p in policies]} limit {limit_bytes}"
    run = CocoaRun(seed=seed, faults=faults.counts, what=what)
    try:
        await world.run(faults.turn, TURNS_MAX)
        run.state = world.shell.state
        run.error = "" if world.shell.error is None else world.shell.error["message"]
        joined = {r["member"]: f"w{r['pid']}" for r in world.events("MemberJoined")}
        lost = [r for r in world.events("MemberLost") if r["reason"] != "retired"]
        meant = faults.touched | scaler.released
        run.collateral = sorted(
            f"{joined[r['member']]}: {r['reason']}"
            for r in lost
            if joined[r["member"]] not in meant
        )
        run.rounds = world.shell.machine.state.round
        if limit_bytes is not None and FULL in run.error:
            run.state = "too little memory"
        if run.state == "done":
            run.wrong = judged(world, loss)
            run.gap = world.shell.journal.rows[-1].get("gap")
    except (AssertionError, ElasticmlError) as error:
        run.error = str(error)
    finally:
        await world.close()
    return run


# --- checks with numpy ----------------------------------------------------------------------


@cache
def rows() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two overlapping classes."""
    rng = np.random.default_rng(11)
    X = rng.standard_normal((N_ROWS, N_COLUMNS)) / np.sqrt(N_COLUMNS)
    return X, np.sign(X @ rng.standard_normal(N_COLUMNS) + 0.3 * rng.standard_normal(N_ROWS))


def data() -> ArraySource:
    """The same rows as a source."""
    return from_arrays(*rows())


@cache
def judge() -> PrimalReference:
    """Return the reference of these rows."""
    X, y = rows()
    return PrimalReference(X=X, y=y, l2=L2)


def judged(world: World, loss: str) -> list[str]:
    """Compare the job's reports of its models with their true values."""
    journal, state = world.shell.journal, world.shell.machine.state
    wrong = judge().wrong_rows(loss, journal.rows, journal.snapshots)
    last, model = journal.rows[-1], world.shell.driver_session.training
    if last.get("gap") is None or last["gap"] > GAP or last.get("gap_is_bound"):
        wrong.append(f"ended at gap {last.get('gap')} in round {last['round']}")
    if model is not None and model.model is not None and model.model.gap is not None:
        coef = np.asarray(model.model.arrays["coef"])[0]
        if judge().is_below(model.model.gap, loss, coef):
            wrong.append(f"final gap {model.model.gap} is below the distance to the optimum")
    examples = [r for r in world.events("ExchangeEnded")][-1]
    if examples["examples"] + examples["absent_examples"] != N_ROWS:
        wrong.append(f"{examples['examples']} examples at the end")
    if state.ledger.total_rows != N_ROWS:
        wrong.append(f"{state.ledger.total_rows} rows in the ledger")
    return wrong
