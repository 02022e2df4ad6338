"""Attack the links of running jobs: ``python -m tests.bench fuzzed_frames [--frames 10000]``.

    --seed N        another sequence of frames (default 0)
    --members N     workers (default 4)
    --tls           on stock workers with TLS; attackers have the cluster's certificate or another
    --asynchronous  against ``async_sgd``, whose members send each other states

A job runs on a cluster of real processes, first undisturbed, then again and again while
another process's links are opened to the scheduler and to all workers, with

openings    messages of any form: wrong types, missing fields, offers of other files as memory
strangers   right openings in the name of a member or the driver, without the job's key
insiders    openings with the job's key, in the name of a member that is not there
foreigners  with TLS: right openings with a certificate of another cluster

and frames on them, of all kinds: right ones, and ones with bits flipped, fields overwritten by
hostile numbers, prefixes of other JSON, parts cut off. Raw bytes go to the ports too.

An effect is anything that a job shows of it: another model, in any bit, another history, a lost
member, an error. No two runs of an asynchronous job are the same: there an effect is another number
of visited examples, a state in a mailbox that is not to the bit one that a member has sent, or an
objective farther from the undisturbed one than ``SPREAD`` of it. Reported too: the memory that the
processes took meanwhile, whether an answer held a traceback, and whether the job's key is in a log
or in the saved run. Exit code 1 if there is any.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client
from distributed.comm import connect
from distributed.security import Security

import elasticml as em
from elasticml.collective.frames import VERSION as PROTOCOL
from elasticml.collective.frames import Frame, Kind
from elasticml.data.synthetic.splice_sites import synthetic_splice
from tests.play.problems import source_of
from tests.stock_cluster import stock_cluster
from tests.waiting import until

NUMBERS = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1, 12345)
PREFIXES: tuple[Any, ...] = (
    *({}, [], 7, None, "x", {"type": "Arrive"}, {"type": "Failed", "reason": "x"}),
    {"type": "Attached", "child": "99.1", "generation": 1, "has_model": 0},
    {"type": "Dismiss", "member": "0.1", "reason": "ended"},
    {"type": "Welcome", "member": "0.1", "arrival": 1, "record": {}, "spec": {}, "n_members": 1},
    {"type": "Lost", "member": "0.1", "reason": "x"},
    {"of": "0x1", "order": "0"},
    {"of": "zz", "order": 7, "compute_s": {"a": 1}},
    {"of": "0x" + "f" * 3000, "order": "0", "sent": [1], "done": 3},
    {"anchor_of": "1.1"},
    {"order": 1, "chunks": ["s.0.0"], "bodies": [0], "sizes": [64], "body_bytes": 64},
    {"order": 1, "chunks": ["s.0.0"], "bodies": [0], "sizes": [2**62], "body_bytes": 2**62},
    {"order": 1, "chunks": ["s.0.0"], "bodies": [7], "sizes": [1], "body_bytes": -1},
    {"order": 1, "chunks": [], "bodies": [], "sizes": [], "body_bytes": 0, "states": {"looks": 1}},
    {"whole": 2**40, "of": {"model": {"w": [2**37]}}},
    {"rows": -1},
    {"rows": 2**50, "asked": True},
    {"model": {"w": [10]}, "returns": {"w": [10]}, "operation": "x", "generation": 1},
    {"shared": True},
)
#: Frames sent on one link at most.
LINK_FRAMES = 8
#: Jobs are attacked until all frames are sent; each is long enough for a few thousand.
ROUNDS = 400
PASSES = 400.0
#: Largest relative distance of two asynchronous jobs' objectives. Undisturbed ones differ by .03
#: after few passes, by .001 after many; a model of zeros is 300 times as bad as theirs.
SPREAD = 0.25
ANSWER_S_MAX = 20.0
ENDED = ("done", "failed", "cancelled")


def _has_begun(handle: em.Handle) -> bool:
    status = handle.status()
    return status.round >= 1 or status.state in ENDED


def job(is_asynchronous: bool, rounds: int = ROUNDS, passes: float = PASSES) -> em.Job:
    settings: dict[str, Any] = {"name": "attacked", "absent": "ignore"}
    if is_asynchronous:
        linear = {"loss": "logistic", "l2": 1e-3}
        return em.Job(
            em.AsyncSGD("linear", passes=passes, report_every=0.2, **linear, scale="none"),
            source_of({"name": "async_sgd", **linear}, {"rows": 4000, "columns": 40, "seed": 5}),
            chunk_size=16384,
            **settings,
        )
    return em.Job(
        em.BatchGradient(loss="logistic", l2=1e-3, optimizer="gd", scale="none"),
        synthetic_splice(rows=4000, length=40, seed=5),
        stop=em.Stop(rounds=rounds),
        collective=em.Collective(topology="tree", fan_out=2),
        chunk_size=4096,
        **settings,
    )


def keys_of(dask_worker: Any) -> dict[str, str]:
    """Return the keys of a worker's jobs; runs on the worker."""
    from elasticml.runtime.member_plugin import _plugin_of

    plugin = _plugin_of(dask_worker)
    return (
        {} if plugin is None else {j: getattr(a, "key", "") for j, a in plugin.host.agents.items()}
    )


def watch_states() -> None:
    """Note the digests of all states that this worker sends and accepts; runs on the worker."""
    import hashlib

    from elasticml.runtime.async_mode import async_gossip as gossip

    if hasattr(gossip, "states_seen"):
        return
    seen: dict[str, list[bytes]] = {"sent": [], "accepted": []}
    gossip.states_seen = seen  # type: ignore[attr-defined]
    post, answer, on_frame = (
        gossip.SendQueue.post,
        gossip.AsyncGossip._answer,
        gossip.AsyncGossip._on_frame,
    )

    def digest(vector: Any) -> bytes:
        return hashlib.sha256(np.ascontiguousarray(vector)).digest()

    def noting_post(self: Any, vector: Any, rows: int | None) -> None:
        seen["sent"].append(digest(vector))
        post(self, vector, rows)

    def noting_answer(self: Any, peer: Any, vector: Any) -> None:
        if vector is not None:
            seen["sent"].append(digest(vector))
        answer(self, peer, vector)

    def noting_frame(self: Any, peer: Any, frame: Any) -> None:
        on_frame(self, peer, frame)
        if frame.kind == gossip.Kind.MAIL:
            seen["accepted"].append(digest(gossip.vector_of(frame)))

    changed: Any = gossip
    changed.SendQueue.post = noting_post
    changed.AsyncGossip._answer, changed.AsyncGossip._on_frame = noting_answer, noting_frame


def seen_states(what: str) -> list[bytes]:
    """Return the digests since the last call; runs on the worker."""
    from elasticml.runtime.async_mode import async_gossip as gossip

    digests: list[bytes] = getattr(gossip, "states_seen", {}).get(what, [])
    given = digests.copy()
    del digests[: len(given)]
    return given


def foreign_states(client: Client, sent: set[bytes]) -> tuple[int, int]:
    """Return how many states members accepted, and how many of them no member has sent.

    Adds to ``sent`` what members have sent. What was accepted is asked first: it was sent before.
    """
    accepted = [digest for some in client.run(seen_states, "accepted").values() for digest in some]
    sent.update(*client.run(seen_states, "sent").values())
    return len(accepted), sum(digest not in sent for digest in accepted)


class Attack:
    """Opens links and sends frames until it is stopped.

    Parameters
    ----------
    seed : int
    scheduler : str
    workers : list of str
        Addresses.
    job : str
    key : str
        The job's.
    security : Security or None
        The cluster's.
    """

    def __init__(
        self,
        seed: int,
        scheduler: str,
        workers: list[str],
        job: str,
        key: str,
        security: Security | None = None,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.targets = [scheduler, *workers]
        self.workers = workers
        self.job = job
        self.key = key
        self.kinds = ["opening", "raw", "stranger", "stranger", "stranger", "insider"]
        self.arguments = self.foreign = {}
        if security is not None:
            self.kinds += ["foreigner"]
            self.arguments = security.get_connection_args("client")
            self.foreign = Security.temporary().get_connection_args("client")
        self.n_frames = 0
        self.counts: Counter[str] = Counter()
        self.tracebacks = 0

    def _pick(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def _hello(self, is_inside: bool) -> dict[str, Any]:
        n = len(self.workers)
        name = lambda: f"{self.rng.integers(n + 1)}.1"  # noqa: E731
        hello = {
            "job": self.job if is_inside or self.rng.random() < 0.8 else "other",
            "kind": self._pick(
                ["child", "chunks", "mail"]
                if is_inside
                else ["driver", "child", "chunks", "mail", "?"]
            ),
            "to": name(),
        }
        hello["member"] = hello["from"] = "99.1" if is_inside else name()
        if is_inside:
            hello["key"] = self.key
        elif self.rng.random() < 0.3:
            hello["key"] = "0" * 32
        return hello

    def _offer(self) -> Any:
        pid = self._pick([1, os.getpid(), -1, 2**31, "self"])
        fd = self._pick([0, 1, 2, 3, 10**6, -1, "../maps"])
        return self._pick([None, {"pid": pid, "fd": fd, "life": "0" * 32}, 7, {}, {"pid": pid}])

    def _any_message(self) -> dict[str, Any]:
        """Return an opening message of any form."""
        message: dict[str, Any] = {
            "op": "em_link",
            "hello": json.dumps(self._hello(False)),
            "transport": "stream",
            "protocol": PROTOCOL,
            "shared": self._offer(),
        }
        for _ in range(int(self.rng.integers(3))):
            key = self._pick(["hello", "transport", "protocol", "shared", "more"])
            message[key] = self._pick(
                [None, 0, -1, "", "[]", "{", "x" * 9000, [], {}, 2**63, b"\xff"]
            )
        if self.rng.random() < 0.2:
            message.pop(self._pick(["hello", "transport", "protocol"]), None)
        return message

    def frame(self) -> bytes:
        """Return the bytes of a frame, damaged or not."""
        rng = self.rng
        payload = rng.bytes(int(self._pick([0, 8, 64, 80, 4096, 7])))
        made = Frame(
            kind=self._pick(list(Kind)),
            exchange=int(self._pick([0, 1, 3, int(rng.integers(2000)), 2**40])),
            attempt=int(self._pick([0, 0, 0, 1])),
            piece=int(self._pick([0, 1, 2**32 - 1])),
            prefix=self._pick(PREFIXES) or {},
            payload=memoryview(payload) if payload else None,
            shared=bool(rng.random() < 0.15),
        )
        head, body = made.encode()
        data = bytearray(head + (b"" if body is None else bytes(body)))
        match int(rng.integers(5)):
            case 0:
                for _ in range(int(rng.integers(1, 6))):
                    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
            case 1:
                at, form = self._pick(
                    [(5, "<B"), (6, "<H"), (8, "<I"), (12, "<I"), (16, "<Q"), (24, "<Q")]
                )
                mask = 2 ** (8 * struct.calcsize(form)) - 1
                struct.pack_into(form, data, at, int(self._pick(NUMBERS)) & mask)
            case 2:
                del data[int(rng.integers(len(data))) :]
            case _:
                pass
        return bytes(data)

    async def run(self, stopped: asyncio.Event, frames_max: int) -> None:
        """Attack until the event or the number of frames."""
        while not stopped.is_set() and self.n_frames < frames_max:
            kind = self._pick(self.kinds)
            try:
                await asyncio.wait_for(getattr(self, f"_{kind}")(), 2 * ANSWER_S_MAX)
                self.counts[kind] += 1
            except (TimeoutError, OSError) as error:
                self.counts[f"{kind}: {type(error).__name__}"] += 1

    async def _open(self, message: dict[str, Any], address: str) -> tuple[Any, Any]:
        comm = await connect(address, timeout=ANSWER_S_MAX, **self.arguments)
        try:
            await comm.write(message)
            answer = await asyncio.wait_for(comm.read(), ANSWER_S_MAX)
        except BaseException:
            comm.abort()
            raise
        self.tracebacks += "raceback" in str(answer)
        return comm, answer

    async def _opening(self) -> None:
        comm, _ = await self._open(self._any_message(), self._pick(self.targets))
        comm.abort()
        self.n_frames += 1

    async def _raw(self) -> None:
        """Send frames to a port without an opening."""
        host, _, port = self._pick(self.targets).partition("://")[2].rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(self.frame())
        self.n_frames += 1
        await writer.drain()
        writer.close()

    async def _link(self, is_inside: bool) -> None:
        message = {
            "op": "em_link",
            "hello": json.dumps(self._hello(is_inside)),
            "transport": self._pick(["stream", "stream", "comm"]),
            "protocol": PROTOCOL,
            "shared": None if is_inside else self._offer(),
        }
        comm, answer = await self._open(message, self._pick(self.workers))
        try:
            if not isinstance(answer, dict) or "transport" not in answer:
                return
            is_stream = answer["transport"] == "stream"
            first = Frame(kind=Kind.CONTROL, prefix={"shared": False}).encode()[0]
            if self.rng.random() < 0.1:
                first = self.frame()
            for data in (
                first,
                *(self.frame() for _ in range(int(self.rng.integers(LINK_FRAMES)))),
            ):
                if is_stream:
                    await comm.stream.write(data)
                else:
                    await comm.write([data, b""])
                self.n_frames += 1
        finally:
            comm.abort()

    async def _stranger(self) -> None:
        await self._link(False)

    async def _insider(self) -> None:
        await self._link(True)

    async def _foreigner(self) -> None:
        """Open a link with a certificate that the cluster does not know."""
        self.n_frames += 1
        with contextlib.suppress(OSError):
            comm = await connect(self._pick(self.targets), timeout=2.0, **self.foreign)
            self.counts["foreigner: ACCEPTED"] += 1
            comm.abort()


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """A running cluster."""

    client: Client
    scheduler_pid: int
    log_dir: Path
    security: Security | None = None

    def memory_mib(self) -> int:
        """Return the resident memory of the cluster's processes."""
        pids = {*self.client.run(os.getpid).values(), self.scheduler_pid}
        return sum(psutil.Process(pid).memory_info().rss for pid in pids) >> 20


@contextlib.contextmanager
def local_cluster(n_members: int) -> Generator[Attacked]:
    """Start a ``LocalCluster``."""
    with em.LocalCluster(n_members) as local, Client(local, set_as_default=False) as client:
        pid, log_dir = local.scheduler_pid, Path(local.log_dir)
        yield Attacked(client=client, scheduler_pid=pid, log_dir=log_dir)


@contextlib.contextmanager
def tls_cluster(n_members: int) -> Generator[Attacked]:
    """Start stock processes that accept only connections with a new certificate."""
    made = Security.temporary()
    with tempfile.TemporaryDirectory() as name:
        folder, options = Path(name), ["--protocol", "tls"]
        pems = {"ca-file": made.tls_ca_file, "cert": made.tls_client_cert}
        for word, pem in {**pems, "key": made.tls_client_key}.items():
            (folder / word).write_text(pem)
            options += [f"--tls-{word}", str(folder / word)]
        with stock_cluster(folder, options) as stock:
            for k in range(n_members):
                stock.worker(f"w{k}", "--no-nanny", *options)
            with stock.client(security=made) as client:
                stock.await_workers(client, n_members)
                yield Attacked(
                    client=client,
                    scheduler_pid=stock.processes["scheduler"].pid,
                    log_dir=folder,
                    security=made,
                )


def trained(result: Any) -> dict[str, Any]:
    """Return what must be the same to the bit."""
    lost = [r["event"] for r in result.story if r["event"] in ("MemberLost", "Failed")]
    last = result.history[-1]
    if "posted" in last:
        return {"examples": last["examples"], "batches": last["batches"], "lost": lost}
    rows = [(row["round"], row["objective"]) for row in result.history]
    model = {name: array.tobytes() for name, array in sorted(result.arrays.items())}
    return {"history": rows, "model": model, "lost": lost}


def effects_on(result: Any, undisturbed: Any) -> list[str]:
    """Compare a job with an undisturbed one."""
    after, before, last = trained(result), trained(undisturbed), result.history[-1]
    found = [f"another {what}" for what in before if after[what] != before[what]]
    if "posted" in last:
        ratio = result.summary["objective"] / undisturbed.summary["objective"]
        if not abs(ratio - 1.0) <= SPREAD:
            found.append(f"the objective is {ratio} times the undisturbed one")
        if last["received"] > last["posted"]:
            found.append(f"{last['received']} states received, {last['posted']} sent")
    return found


def files_with(folder: Path, text: str) -> list[str]:
    """Return the files below a folder that contain a text."""
    places = (path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in places if text.encode() in path.read_bytes()]


def attack(
    seed: int,
    frames: int,
    n_members: int,
    attacked_job: em.Job | None = None,
    has_tls: bool = False,
) -> dict[str, Any]:
    """Attack jobs until all frames are sent; return what was seen."""
    job_of = job(False) if attacked_job is None else attacked_job
    seen: dict[str, Any] = {
        "frames": 0,
        "jobs": 0,
        "effects": [],
        "kinds": Counter(),
        "tracebacks": 0,
        "states": 0,
        "sent": set(),
    }
    with (tls_cluster if has_tls else local_cluster)(n_members) as cluster:
        undisturbed = job_of.start(cluster.client).result()
        again = effects_on(job_of.start(cluster.client).result(), undisturbed)
        assert not again, f"the job differs without an attack: {again}"
        cluster.client.run(watch_states)
        seen["before_mib"] = cluster.memory_mib()
        while seen["frames"] < frames:
            _attack_once(cluster, job_of, seed, frames, undisturbed, seen)
        seen["after_mib"] = cluster.memory_mib()
    return seen


def _attack_once(
    cluster: Attacked,
    attacked_job: em.Job,
    seed: int,
    frames: int,
    undisturbed: Any,
    seen: dict[str, Any],
) -> None:
    """Attack one job while it runs, and add to what was seen."""
    handle = attacked_job.start(cluster.client)
    until(partial(_has_begun, handle), "the first round", look_s=0.05)
    known = [k for k in cluster.client.run(keys_of).values() if k]
    name = handle.job_id
    key = next((keys[name] for keys in known if name in keys), "")
    workers = list(cluster.client.scheduler_info(n_workers=-1)["workers"])
    address = cluster.client.scheduler.address
    attacking = Attack(seed + seen["jobs"], address, workers, name, key, cluster.security)

    async def session() -> None:
        stopped = asyncio.Event()

        async def watch() -> None:
            while (await asyncio.to_thread(handle.status)).state not in ENDED:
                await asyncio.sleep(0.2)
            stopped.set()

        watching = asyncio.create_task(watch())
        await attacking.run(stopped, frames - seen["frames"])
        watching.cancel()

    asyncio.run(session())
    found = []
    try:
        result = handle.result()
    except em.ElasticmlError as error:
        found.append(error.message)
    else:
        found += effects_on(result, undisturbed)
        with tempfile.TemporaryDirectory() as folder:
            result.save(Path(folder) / "run")
            leaks = files_with(Path(folder), key) if key else ["no key was seen"]
        leaks += files_with(cluster.log_dir, key) if key else []
        found += [f"the key is in {place}" for place in leaks]
    accepted, foreign = foreign_states(cluster.client, seen["sent"])
    seen["states"] += accepted
    if foreign:
        found.append(f"{foreign} of {accepted} accepted states were sent by no member")
    if attacking.counts["foreigner: ACCEPTED"]:
        found.append("a certificate of another cluster was accepted")
    seen["effects"] += [f"job {seen['jobs']}: {text}" for text in found]
    seen["frames"] += attacking.n_frames
    seen["kinds"] += attacking.counts
    seen["tracebacks"] += attacking.tracebacks
    seen["jobs"] += 1


def main(
    *,
    frames: int = 10_000,
    seed: int = 0,
    members: int = 4,
    tls: bool = False,
    asynchronous: bool = False,
) -> int:
    """Attack, and print what was seen; return the exit status."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    seen = attack(seed, frames, members, job(asynchronous), has_tls=tls)
    print(f"{seen['frames']} frames against {seen['jobs']} jobs of {members} members")
    print("links: " + ", ".join(f"{k} {n}" for k, n in sorted(seen["kinds"].items())))
    if asynchronous:
        print(f"states accepted: {seen['states']}")
    print(f"memory of all processes: {seen['before_mib']} MiB before, {seen['after_mib']} after")
    print(f"answers with a traceback: {seen['tracebacks']}; effects: {len(seen['effects'])}")
    for effect in seen["effects"][:20]:
        print(effect)
    return 1 if seen["effects"] or seen["tracebacks"] else 0
