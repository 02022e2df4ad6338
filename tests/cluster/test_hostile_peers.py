"""Garbage on the links of a running job has no effect on it, and finds no secret.

``tests/unit/collective/test_hostile_peers.py`` has the single messages. ``ELASTICML_FRAMES=10000``
sends that many here, and ``ELASTICML_SEED`` draws others.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from distributed.comm import connect

import elasticml as em
from elasticml.collective.frames import VERSION, Frame, Kind
from tests.play.problems import source_of
from tests.stock_cluster import stock_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster

FRAMES = int(os.environ.get("ELASTICML_FRAMES", 150))
SEED = int(os.environ.get("ELASTICML_SEED", 11))
ANSWER_S_MAX = 20.0
#: A member that is not there; an insider speaks in its name.
ABSENT = "99.1"
NUMBERS = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**40, 2**63 - 1, 2**64 - 1, 12345)
PREFIXES: tuple[Any, ...] = (
    *({}, [], 7, None, "x", {"type": "Arrive"}, {"type": "Failed", "reason": "x"}),
    {"type": "Attached", "child": ABSENT, "generation": 1, "has_model": 0},
    {"type": "Dismiss", "member": "0.1", "reason": "ended"},
    {"type": "Welcome", "member": "0.1", "arrival": 1, "record": {}, "spec": {}, "n_members": 1},
    *({"of": "0x1", "order": "0"}, {"of": "0x" + "f" * 3000, "order": "0", "sent": [1]}),
    {"order": 1, "chunks": ["s.0.0"], "bodies": [0], "sizes": [2**62], "body_bytes": 2**62},
    {"order": 1, "chunks": [], "bodies": [], "sizes": [], "body_bytes": 0, "states": {"looks": 1}},
    {"whole": 2**40, "of": {"model": {"w": [2**37]}}},
    *({"rows": -1}, {"rows": 2**50, "asked": True}, {"anchor_of": "1.1"}, {"shared": True}),
    {"model": {"w": [10]}, "returns": {"w": [10]}, "operation": "x", "generation": 1},
)


def job() -> em.Job:
    return em.Job(
        em.BatchGradient(loss="logistic", l2=1e-3, optimizer="gd", scale="none"),
        source_of(
            {"name": "batch_gradient", "loss": "logistic"}, {"rows": 4000, "columns": 40, "seed": 5}
        ),
        stop=em.Stop(rounds=60),
        # A machine that is busy for a while loses no member.
        collective=em.settings.Collective(topology="tree", fan_out=2, deadline=120.0),
        chunk_size=16384,
        absent="ignore",
    )


def keys_of(dask_worker: Any) -> dict[str, str]:
    """Return the keys of a worker's jobs; runs on the worker."""
    host = next(p.host for p in dask_worker.plugins.values() if hasattr(p, "host"))
    return {job: agent.key for job, agent in host.agents.items()}


class Attack:
    """Openings, links with the job's key and without it, and frames."""

    def __init__(self, seed: int, client: Client, job: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.workers = list(client.scheduler_info(n_workers=-1)["workers"])
        self.targets = [client.scheduler.address, *self.workers]
        self.job = job
        self.key = next(keys[job] for keys in client.run(keys_of).values() if job in keys)
        self.n_frames = 0
        self.answers: list[str] = []

    def pick(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def frame(self) -> bytes:
        """Return the bytes of a frame: right, with other bits, sizes or end."""
        payload = self.rng.bytes(int(self.pick([0, 8, 64, 80, 4096, 7])))
        head, body = Frame(
            kind=self.pick(list(Kind)),
            exchange=int(self.pick([0, 1, 3, int(self.rng.integers(2000)), 2**40])),
            piece=int(self.pick([0, 1, 2**32 - 1])),
            prefix=self.pick(PREFIXES) or {},
            payload=memoryview(payload) if payload else None,
            shared=bool(self.rng.random() < 0.15),
        ).encode()
        data = bytearray(head + (b"" if body is None else bytes(body)))
        match int(self.rng.integers(5)):
            case 0:
                data[int(self.rng.integers(len(data)))] ^= 1 << int(self.rng.integers(8))
            case 1:
                at, form = self.pick([(5, "<B"), (6, "<H"), (8, "<I"), (16, "<Q"), (24, "<Q")])
                mask = 2 ** (8 * struct.calcsize(form)) - 1
                struct.pack_into(form, data, at, int(self.pick(NUMBERS)) & mask)
            case 2:
                del data[int(self.rng.integers(len(data))) :]
        return bytes(data)

    def opening(self, is_inside: bool) -> dict[str, Any]:
        """Return what opens a link, with the job's key or in the name of a member without it."""
        names = [f"{k}.1" for k in range(len(self.workers) + 1)]
        me = ABSENT if is_inside else self.pick(names)
        kinds = ["child", "chunks", "mail", *(() if is_inside else ("driver", "?"))]
        hello = {"job": self.job, "kind": self.pick(kinds), "to": self.pick(names)}
        hello |= {"member": me, "from": me, "key": self.key if is_inside else "0" * 32}
        pid, fd = self.pick([1, os.getpid(), -1, 2**31]), self.pick([0, 1, 10**6, "../maps"])
        offer = self.pick([None, {"pid": pid, "fd": fd, "life": "0" * 32}, 7, {}])
        return {
            **{"op": "em_link", "hello": json.dumps(hello), "protocol": VERSION},
            **{"transport": self.pick(["stream", "comm"]), "shared": None if is_inside else offer},
        }

    async def once(self) -> None:
        """Attack one port once."""
        message, target = self.opening(self.rng.random() < 0.4), self.pick(self.workers)
        if self.rng.random() < 0.3:
            values = [None, 0, -1, "", "[]", "{", "x" * 9000, [], {}, 2**63, b"\xff"]
            message[self.pick(list(message)[1:])] = self.pick(values)
            target = self.pick(self.targets)
        elif self.rng.random() < 0.2:
            host, _, port = target.partition("://")[2].rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(self.frame())
            writer.close()
            self.n_frames += 1
            return
        comm = await connect(target, timeout=ANSWER_S_MAX)
        try:
            await comm.write(message)
            answer = await asyncio.wait_for(comm.read(), ANSWER_S_MAX)
            self.answers.append(str(answer))
            self.n_frames += 1
            if not isinstance(answer, dict) or "transport" not in answer:
                return
            first = Frame(kind=Kind.CONTROL, prefix={"shared": False}).encode()[0]
            for data in (first, *(self.frame() for _ in range(int(self.rng.integers(8))))):
                is_stream = answer["transport"] == "stream"
                await (comm.stream.write(data) if is_stream else comm.write([data, b""]))
                self.n_frames += 1
        finally:
            comm.abort()

    async def run(self, handle: em.Handle, frames_max: int) -> None:
        """Attack while the job runs, at most with so many frames."""
        while self.n_frames < frames_max:
            if self.n_frames % 10 == 0:
                status = await asyncio.to_thread(handle.status)
                if status.state in ("done", "failed", "cancelled"):
                    return
            with suppress(TimeoutError, OSError):
                await asyncio.wait_for(self.once(), 2 * ANSWER_S_MAX)


def trained(result: em.Result) -> tuple[Any, ...]:
    """Return what must be the same to the bit."""
    lost = [r for r in result.story if r["event"] in ("MemberLost", "Failed")]
    objectives = [(row["round"], row["objective"]) for row in result.history]
    return objectives, result.arrays["coef"].tobytes(), lost


@pytest.mark.slow
def test_drawn_frames_have_no_effect_on_a_job_and_find_no_secret(tmp_path: Path) -> None:
    with stock_cluster(tmp_path) as cluster:
        for name in ("w0", "w1"):
            cluster.worker(name, "--no-nanny")
        with cluster.client() as client:
            cluster.await_workers(client, 2)
            undisturbed = job().start(client).result()
            n_frames = n_jobs = 0
            while n_frames < FRAMES:
                handle = job().start(client)
                until(lambda handle=handle: handle.status().round >= 1, "a round", look_s=0.05)
                attack = Attack(SEED + n_jobs, client, handle.job_id)
                asyncio.run(attack.run(handle, FRAMES - n_frames))
                result = handle.result()
                assert trained(result) == trained(undisturbed)
                assert not any("raceback" in answer for answer in attack.answers)
                result.save(tmp_path / f"run-{n_jobs}")
                files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
                assert not any(attack.key.encode() in content for content in files)
                n_frames, n_jobs = n_frames + attack.n_frames, n_jobs + 1
