"""The control machines of a whole job, without arrays, links or time: for property tests.

Every message waits in an ordered queue until a test delivers one of them, so that the test controls
the interleaving. A partial is the multiset of the chunks in it; a chunk that is counted twice, or
both counted and replaced by a stand-in, shows at once.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from elasticml.control import effects as fx
from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.policy import Policy
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.registry import make_policies
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.marks import MarkStore
from elasticml.protocol.notices import ContainerEnded, ContainerMarked, MarkLifted, Reason
from elasticml.story.records import StoryRecord
from tests.pure_member import Incarnation, Link, Sums, Worker, chunks_of_block

#: Sender, receiver, and the channel between them; "driver" is an end, too.
Key = tuple[str, str, str]
Partial = Callable[[int], ev.PartialArrived]
#: Maximum of workers that ``run`` adds, so that a job that waits for all members continues.
WORKERS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResult:
    """The result of an exchange as the trainer gets it."""

    deliver: cmd.Deliver
    sums: Sums
    anchor: Sums | None


class PureWorld:
    """A driver and its members as machines.

    Parameters
    ----------
    settings : Settings
        Of the driver; every block has three chunks.
    rounds : int
        Rounds after which the trainer stops.
    policies : sequence of Policy
        Beyond those that every job has.
    limit_bytes : int, optional
        Memory of each worker; a body has 100.
    """

    def __init__(
        self,
        settings: DriverSettings,
        rounds: int = 4,
        policies: Sequence[Policy] = (),
        limit_bytes: int | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        always = make_policies([], absent=settings.absent, holders=settings.holders or 2)
        self.driver = Driver(settings, [*always, *policies])
        self.settings = settings
        self.chunks = {
            c.id: c for block in range(settings.n_blocks) for c in chunks_of_block(block)
        }
        self.now = 0.0
        #: The containers that the resource manager asks for.
        self.marks = MarkStore()
        self.workers: dict[str, Worker] = {}
        #: Pairs of workers that can open no link to each other.
        self.severed: set[frozenset[str]] = set()
        self.queues: dict[Key, deque[Callable[[], None]]] = {}
        #: When members are to be told that time is up.
        self.timers: list[tuple[float, Incarnation]] = []
        self.story: list[StoryRecord] = []
        #: All commands that the driver has sent to members.
        self.orders: list[cmd.Order] = []
        self.ended: cmd.EndJob | None = None
        self.arrays: dict[int, Sums] = {}
        self.computations: Counter[tuple[MemberId, int]] = Counter()
        #: Partials that members have sent to the driver.
        self.sent: list[tuple[Incarnation, Partial, Sums]] = []
        self.delivered: list[ExchangeResult] = []
        self.refused: list[cmd.Refuse] = []
        #: The trainer's stand-in for each absent group.
        self.stand_ins: dict[int, Sums] = {}
        #: The last exchange in which each chunk was computed by an owner, without a break.
        self.states: dict[ChunkId, int] = {}
        #: Settings, requests and releases by policies.
        self.tuned: list[dict[str, Any]] = []
        self.requested = 0
        self.given_back: list[MemberId] = []
        self._known: dict[MemberId, Incarnation] = {}
        self._arrivals: dict[int, Incarnation] = {}
        self._numbers = itertools.count(1)
        self._events: deque[ev.Event] = deque()
        self._handling = False
        self._trainer = self._train(rounds)

    def next_number(self) -> int:
        return next(self._numbers)

    # --- the queues ---------------------------------------------------------------------------

    def post(self, key: Key, thunk: Callable[[], None]) -> None:
        self.queues.setdefault(key, deque()).append(thunk)

    def ready(self) -> list[Key]:
        """Queues whose first message can arrive now."""
        stopped = {w.life.name for w in self.workers.values() if w.is_stopped and w.life}
        return sorted(k for k, q in self.queues.items() if q and not stopped & {k[0], k[1]})

    def step(self, choice: int) -> bool:
        """Deliver one message; return False if none can arrive."""
        ready = self.ready()
        if not ready:
            return False
        self.queues[ready[choice % len(ready)]].popleft()()
        return True

    def settle(self, where: Callable[[Key], bool] = lambda key: True) -> None:
        """Deliver everything on these channels that can arrive without time passing."""
        while ready := [key for key in self.ready() if where(key)]:
            self.queues[ready[0]].popleft()()

    def run(self, choices: Callable[[int], int], turns_max: int = 5_000) -> None:
        """Deliver everything; time passes, and a worker joins, when nothing else can happen."""
        for k in range(turns_max):
            if self.ended is not None:
                return
            if not self.step(choices(k)):
                self.tick(1.0)
                if len(self.workers) < WORKERS_MAX and not self.ready():
                    self.join()
        raise AssertionError(f"the job hangs\n{self.describe()}")

    def tick(self, seconds: float) -> None:
        self.now += seconds
        due = [life for at_s, life in self.timers if at_s <= self.now]
        self.timers = [(at_s, life) for at_s, life in self.timers if at_s > self.now]
        for life in due:
            if not life.over:
                life.feed(fx.TimeUp())
        for lifted in self.marks.expire(self.now):
            self.feed(lifted)
        self.feed(ev.Ticked(cause="clock"))

    def describe(self) -> str:
        """Format the state of all members, for messages of failed tests."""
        driver, state = self.driver, self.driver.state
        lines = [
            f"stage {state.stage} round {state.round} request {driver.request}",
            f"running {driver.exchanges.running}",
            f"root waits for {state.root.waits_for()} tree {state.parents}",
            f"members {state.membership.members}",
            f"open {state.ledger.open} groups {state.ledger.groups}",
            f"moves {driver.chunk_moves.moves} returning {driver.chunk_moves.returning}",
            f"rereading {driver.chunk_moves.rereading} pending {driver.loading.pending}",
            *(f"{w.name}: {w.life and w.life.id} {w.is_stopped}" for w in self.workers.values()),
            *(f"{record.event} {record.fields_json()}" for record in self.story[-12:]),
        ]
        return "\n".join(lines)

    # --- workers ------------------------------------------------------------------------------

    def join(self, name: str | None = None) -> str:
        """Start a worker, or a new incarnation on an existing one."""
        name = name or f"w{self.next_number():03d}"
        worker = self.workers.setdefault(name, Worker(name))
        number = self.next_number()
        former, life = worker.life, Incarnation(self, worker, number)
        worker.life = self._arrivals[number] = life
        arrived = ev.Arrived(
            arrival=number,
            address=name,
            host="here",
            pid=number,
            slot=former.id.slot if former is not None and former.id is not None else None,
            holdings=tuple(sorted(worker.held)),
            limit_bytes=self.limit_bytes,
        )
        life.up(lambda: self.feed(arrived))
        return name

    def kill(self, name: str, n_kept: int = 0) -> None:
        """End a worker; of its sent messages, ``n_kept`` per channel still arrive."""
        worker = self.workers.pop(name)
        life = worker.life
        if life is not None:
            life.end(n_kept)
        if life is None or not self.knows(life):
            self.feed(ev.WorkerGone(cause="scheduler", address=name))

    def links(self) -> list[Link]:
        """Return the links between members, by the name of the child's worker."""
        lives = [worker.life for _, worker in sorted(self.workers.items())]
        return [life.parent for life in lives if life is not None and life.parent is not None]

    def sever(self, link: Link) -> None:
        """Break a link for good; each end notices in its turn."""
        self.severed.add(frozenset({link.child.worker.name, link.parent.worker.name}))
        link.parent.send(link, lambda: link.child.lost_link(link))
        link.child.send(link, lambda: link.parent.lost_link(link))

    def life(self, name: str) -> Incarnation:
        life = self.workers[name].life
        assert life is not None
        return life

    def alive(self, member: MemberId) -> Incarnation | None:
        """Find a member's incarnation, as another process would by its address."""
        lives = (w.life for w in self.workers.values())
        return next((x for x in lives if x is not None and x.id == member), None)

    def notice(self, name: str, grace_s: float) -> None:
        life = self.life(name)
        if life.machine is not None:
            life.feed(ev.Noticed(member=life.me, grace_s=grace_s, reason="noticed"))

    def withdraw(self, name: str) -> None:
        life = self.life(name)
        if life.machine is not None:
            life.feed(ev.NoticeWithdrawn(member=life.me))

    def mark(
        self, name: str, grace_s: float, negotiable: bool, reason: Reason = "preempted"
    ) -> None:
        """Request a worker's container back."""
        mark = ContainerMarked(address=name, grace_s=grace_s, negotiable=negotiable, reason=reason)
        self.marks.add(mark, self.now)
        self.feed(mark)

    def lift(self, name: str) -> None:
        """Withdraw the request for a worker's container; a container emptied for it serves
        again.
        """
        self.marks.remove("", name, self.now)
        self.feed(MarkLifted(address=name))

    def container_ended(self, name: str) -> None:
        """Report that a worker's container was pre-empted; its process may live on."""
        ended = ContainerEnded(
            address=name, container=f"container_{name}", reason="preempted", status=-102
        )
        self.marks.remove(ended.container, name, self.now)
        self.feed(ended)

    def duplicate(self, choice: int) -> None:
        """Deliver a partial that a member has sent to the driver a second time, old or new."""
        mine = [s for s in self.sent if not s[0].over]
        if mine:
            life, event, sums = mine[choice % len(mine)]
            life.up(lambda: self.partial(life, event, sums))

    def dismissed(self, life: Incarnation, is_final: bool) -> None:
        life.end(n_kept=0)
        if self.workers.get(life.worker.name) is life.worker and life.worker.life is life:
            if is_final:
                del self.workers[life.worker.name]
            else:
                self.join(life.worker.name)

    def computing(self, life: Incarnation, exchange: int) -> None:
        """Check that an owner has each chunk's newest state, and make it newer."""
        ledger = self.driver.state.ledger
        if not self.knows(life):
            return
        for chunk in life.owned:
            if ledger.owner(chunk) == life.me:
                newest, mine = self.states.get(chunk), life.worker.states.get(chunk)
                assert newest in (None, mine), f"{life.me} has {mine} of {chunk}, not {newest}"
                self.states[chunk] = exchange
            life.worker.states[chunk] = exchange

    def check_stores(self) -> None:
        """Compare what members hold with the ledger; call it when no message is in transit."""
        ledger, dropping = self.driver.state.ledger, self.driver.chunk_moves.dropping
        for worker in self.workers.values():
            life = worker.life
            members = self.driver.state.membership.members
            if life is None or not self.knows(life) or life.me not in members:
                continue
            early = {c for c, holders in ledger._early.items() if life.me in holders}
            books = ledger.held.get(life.me, set()) | early
            assert books <= worker.held, f"{life.me} lacks {books - worker.held}"
            queues = [q for k, q in self.queues.items() if q and life.name in k]
            if not queues:
                assert worker.held == books, f"{life.me} has {worker.held - books} beyond the books"
                assert life.me not in dropping

    # --- the driver's shell -------------------------------------------------------------------

    def knows(self, life: Incarnation) -> bool:
        return life.id is not None and self._known.get(life.id) is life

    def driver_link_closed(self, life: Incarnation) -> None:
        if self.knows(life):
            del self._known[life.me]
            self.feed(ev.Lost(cause="link", member=life.me, reason="killed"))

    def feed(self, event: ev.Event) -> None:
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for command in self.driver.handle(self._events.popleft(), self.now):
                    self._perform(command)
                for chunk in [c for c in self.states if self.driver.state.ledger.owner(c) is None]:
                    del self.states[chunk]  # absent: its state was lost with its owner
        finally:
            self._handling = False

    def partial(self, life: Incarnation, event: Partial, sums: Sums) -> None:
        if self.knows(life):
            handle = self.next_number()
            self.arrays[handle] = sums
            self.feed(event(handle))

    def anchor(self, life: Incarnation, kept: fx.SendKept, sums: Sums) -> None:
        if self.knows(life):
            handle = self.next_number()
            self.arrays[handle] = sums
            self.feed(
                ev.AnchorArrived(
                    member=life.me, exchange=kept.exchange, sender=kept.sender, handle=handle
                )
            )

    def _perform(self, command: cmd.Command) -> None:
        match command:
            case cmd.Record():
                self.story.append(command.record)
            case cmd.Welcome():
                self._welcome(command)
            case cmd.Dismiss():
                life = self._known.pop(command.member, None)
                self._down(life, lambda: life.obey(command))
            case cmd.Order():
                self._check_target(command)
                self._check_room(command)
                self.orders.append(command)
                life = self._known.get(command.member)
                self._down(life, lambda: life.obey(command))
            case cmd.ForwardModel():
                self._forward(command)
            case cmd.Refuse():
                self.refused.append(command)
                del self.arrays[command.handle]
            case cmd.Forget():
                for handle in command.handles:
                    del self.arrays[handle]
            case cmd.MergeFacts():
                self.feed(ev.FactsFixed(cause="blocks", survey=command.survey))
            case cmd.StartTrainer():
                self._step_trainer(None)
            case cmd.Deliver():
                self._step_trainer(self._read(command))
            case cmd.Continue():
                self.tuned.append(dict(command.tuned))
                self._step_trainer(command.go_on)
            case cmd.RequestMembers():
                self.requested += command.count
            case cmd.ReleaseContainers():
                self.given_back += command.members
            case cmd.EndJob():
                self.ended = command
            case cmd.AddRow() | cmd.Detach():
                pass
            case _:
                raise NotImplementedError(type(command).__name__)

    def _check_target(self, order: cmd.Order) -> None:
        """Check that no chunk goes to a member whose container is requested, while there are
        others that can take it: in training, those that have compiled their kernels.
        """
        state = self.driver.state
        target: MemberId | None = None
        if isinstance(order, (cmd.GiveChunks, cmd.CopyChunks)):
            target = order.target
        elif isinstance(order, (cmd.LoadChunks, cmd.ReadBlocks)):
            target = order.member
        record = None if target is None else state.membership.members.get(target)
        is_training = state.stage == "training"
        staying = state.membership.stage("spare", "active")
        others = [r for r in staying if not r.is_marked and (r.configured or not is_training)]
        if record is not None and record.is_marked:
            assert not others, f"{target} is asked for back and is given {order}"

    def _check_room(self, order: cmd.Order) -> None:
        """Check that the chunks of a returning group fit a member's memory."""
        chunk_moves, ledger = self.driver.chunk_moves, self.driver.state.ledger
        if not isinstance(order, cmd.LoadChunks) or self.limit_bytes is None:
            return
        returning = {(c, m) for o in chunk_moves.returning.values() for c, m in o.items()}
        if not {(c, order.member) for c in order.chunks} <= returning:
            return
        if any(not ledger.holds(order.member, c) for c in order.chunks):
            dropping = sum(
                ledger.info[c].nbytes for c in chunk_moves.dropping.get(order.member, ())
            )
            # What an interrupted round needs at once is read again whether it fits or not.
            rereading = sum(
                ledger.info[c].nbytes for c, m in chunk_moves.rereading.items() if m == order.member
            )
            coming = chunk_moves.bytes_to().get(order.member, 0) - dropping - rereading
            assert ledger.held_bytes(order.member) + coming <= self.limit_bytes, order

    def _welcome(self, command: cmd.Welcome) -> None:
        life = self._arrivals.pop(command.arrival)
        if life.over:
            self.feed(ev.Lost(cause="welcome", member=command.member, reason="closed"))
            return
        life.id = command.member
        self._known[life.id] = life
        self._down(life, lambda: life.obey(command))

    def _down(self, life: Incarnation | None, thunk: Callable[[], None]) -> None:
        if life is not None and not life.over:
            self.post(("driver", life.name, "down"), thunk)

    def _forward(self, command: cmd.ForwardModel) -> None:
        life, run = self._known.get(command.to), self.driver.exchanges.running
        assert run is not None
        assert run.id == command.exchange
        self._down(life, lambda: life.model(run.header))

    def _read(self, command: cmd.Deliver) -> ExchangeResult:
        """Sum the delivered partials before any of them can be freed."""
        sums: Sums = Counter()
        for handle in command.inputs:
            sums.update(self.arrays[handle])
        anchor: Sums | None = None
        if command.anchor_exchange is not None:
            anchor = Counter()
            for part in command.anchor:
                for chunk, n in self.arrays[part.handle].items():
                    anchor[chunk] += part.sign * n
            anchor = Counter({c: n for c, n in anchor.items() if n})
        return ExchangeResult(deliver=command, sums=sums, anchor=anchor)

    # --- the trainer --------------------------------------------------------------------------

    def _step_trainer(self, value: Any) -> None:
        """Step the trainer when its turn comes: in a real job it has its own thread."""

        def advance() -> None:
            if self.ended is None:
                try:
                    event = self._trainer.send(value)
                except StopIteration:
                    event = ev.TrainerFinished(converged=True, reason="rounds", objective=0.0)
                self.feed(event)

        self.post(("driver", "driver", "trainer"), advance)

    def _train(self, rounds: int) -> Generator[ev.Event, Any, None]:
        """Check every outcome as Algorithm 2 needs it: all examples, each once."""
        whole: Sums = Counter(list(self.chunks))
        seal, began = False, False

        def ask(phase: Any, keep: bool) -> ev.ExchangeRequested:
            return ev.ExchangeRequested(
                header=ev.ExchangeHeader(operation="sums", keep=keep),
                phase=phase,
                require_everybody=self.settings.absent in ("stall", "reload"),
                seal=seal,
            )

        for r in range(rounds):
            actual: ExchangeResult = yield ask("compute", keep=True)
            seal = False
            absent = self._check(actual, whole)
            if actual.anchor is not None:
                assert actual.anchor == absent, f"anchor {actual.anchor} is not of {absent}"
            elif actual.deliver.opened is not None and began:
                before = None
                while actual.deliver.opened != before:
                    before = actual.deliver.opened
                    actual = yield ask("correct", keep=False)
                    absent = self._check(actual, whole)
            if actual.deliver.opened is not None:
                self.stand_ins[actual.deliver.opened] = absent
                seal = True
            began = True
            go_on = yield ev.RoundFinished(row={"objective": float(r)})
            if not go_on:
                return

    def _check(self, actual: ExchangeResult, whole: Sums) -> Sums:
        """Return the chunks that no member accounts for yet; everything else is there exactly
        once.
        """
        deliver = actual.deliver
        self.delivered.append(actual)
        for group in [g for g in self.stand_ins if g not in deliver.absent]:
            del self.stand_ins[group]
        assert set(deliver.absent) == set(self.stand_ins), (deliver.absent, self.stand_ins)
        here: Sums = Counter(actual.sums)
        for stand_in in self.stand_ins.values():
            here.update(stand_in)
        twice = [str(c) for c, n in here.items() if n > 1]
        assert not twice, f"exchange {deliver.exchange} has {twice} more than once"
        left = whole - here
        assert bool(left) == (deliver.opened is not None), f"no member accounts for {left}"
        assert sum(self.chunks[c].rows for c in actual.sums) == deliver.examples
        rows = sum(c.rows for c in self.chunks.values())
        assert deliver.examples + deliver.absent_examples == rows
        return left

    def check_arrays(self) -> None:
        """Check that every array, at the driver and at members, is one that a machine can still
        name.
        """
        exchanges = self.driver.exchanges
        _check_named(self.arrays, self.driver.state.root, exchanges._fetched)
        for worker in self.workers.values():
            if worker.life is not None and worker.life.machine is not None:
                _check_named(worker.life.arrays, worker.life.machine.node, [])


def _check_named(arrays: dict[int, Sums], node: Any, others: list[int]) -> None:
    gathers = [*node.kept, *([] if node.gather is None else [node.gather])]
    named = {handle for gather in gathers for handle in gather.handles()}
    assert set(arrays) == named | {item.handle for item in node._early} | set(others)
