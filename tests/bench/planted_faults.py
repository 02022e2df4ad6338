"""Plant one small fault at a time and count those that tests find.

``python tests/bench/planted_faults.py [--out FILE] [--only TEXT ...] [--seconds 600]``

    --out FILE      where the table is written as JSON (default runs/planted_faults.json)
    --only TEXT     faults whose name contains one of these texts
    --seconds S     limit of one core's time per fault
    --stages N      only the first, quickest N groups of tests
    --skip-check    do not run the tests without a fault first

Each fault of :data:`FAULTS` replaces one piece of text of the package. It is planted in a temporary
copy, never in the checkout. Tests then run on the copy, quick ones first, until one fails: unit
tests of the faulty room, the machines' tests, the simulator's tests, other property tests. Property
tests draw new examples in every run. The digests in ``tests/frozen`` are left out, because they
notice any change, right or wrong.

Times are seconds of one core. The exit code is 1 if fewer than ``SHARE_MIN`` of the faults are
found within the limit.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARE_MIN = 0.95
#: Imported once, so that processes that run tests need not do so.
LIBRARIES = "hypothesis.stateful numba numpy pydantic scipy.sparse".split()
#: A test that takes longer hangs: undisturbed ones take at most a quarter of it.
TEST_SECONDS_MAX = 150

MACHINES = (
    "tests/property/test_driver_machine.py",
    "tests/property/test_copy_pacing.py",
    "tests/property/test_late_draining.py",
    "tests/property/test_async_machine.py",
    "tests/property/test_policies.py",
    "tests/property/test_stop_seconds.py",
)


class Fault(NamedTuple):
    """One wrong change."""

    #: Of the package.
    file: str
    #: Occurs exactly once.
    text: str
    replacement: str
    #: What is wrong then.
    wrong: str

    @property
    def name(self) -> str:
        """Name in tables: the file and what is wrong."""
        return f"{self.file}: {self.wrong}"

    def planted(self, source: str) -> str:
        """Return the file's source with the fault."""
        n = source.count(self.text)
        if n != 1:
            raise SystemExit(
                f"planted_faults: elasticml/{self.file} has {n} times {self.text!r}, wanted one; "
                "adapt the fault to the present code"
            )
        return source.replace(self.text, self.replacement)


class Result(NamedTuple):
    """The fate of one fault."""

    file: str
    wrong: str
    #: The first test that failed; None if the fault survived.
    found_by: str | None
    #: Of one core.
    seconds: float


NODE, EXCHANGE = "control/tree_node.py", "control/exchange.py"
LEDGER, TRANSFERS = "control/ledger.py", "control/chunk_transfers.py"
MEMBER, STATE = "control/member_machine.py", "control/job_state.py"
MEMBERSHIP, CHANGES = "control/membership.py", "control/membership_changes.py"
DRIVER, DETECTOR = "control/driver.py", "control/failure_detector.py"
PREEMPTION, SCHEDULER = "control/preemption.py", "control/round_scheduler.py"
PLACEMENT, CHECKPOINT = "control/initial_placement.py", "control/checkpoint_state.py"
ROUNDS, ASYNC, MARKS = "control/rounds.py", "control/async_mode.py", "protocol/marks.py"
READMISSION = "policies/readmission.py"
STAND_INS = "algorithms/batch_gradient/stand_ins.py"
GRADIENT = "algorithms/batch_gradient/elastic_gradient.py"
GUARD = "algorithms/batch_gradient/stand_in_guard.py"
FROZEN = "algorithms/cocoa/frozen_loss_bound.py"

#: In the order of the life of a sum, a chunk and a member.
FAULTS: tuple[Fault, ...] = (
    # --- the tree and its sums ---
    Fault(
        NODE,
        "if generation <= self.generation:",
        "if generation == self.generation:",
        "an order about an older tree is obeyed",
    ),
    Fault(
        NODE,
        "                self.gather.sent = False\n",
        "                pass\n",
        "a sum is not sent again to a new parent",
    ),
    Fault(
        NODE,
        "        if parent != self.parent:\n            return []\n        self.parent_ready",
        "        self.parent_ready",
        "a link to a former parent counts as one to the present parent",
    ),
    Fault(
        NODE,
        "if gather is None or child not in self.children or gather.sent:",
        "if gather is None or gather.sent:",
        "a member that is no child is given the model",
    ),
    Fault(
        NODE,
        "if has_model >= gather.exchange or",
        "if has_model >= gather.exchange - 1 or",
        "a child that has only the previous model is not given the present one",
    ),
    Fault(
        NODE,
        "self.attached_with.pop(peer, None)",
        "self.attached_with.get(peer, None)",
        "a child whose link has closed still counts as linked",
    ),
    Fault(
        NODE,
        "if self.gather is not None and exchange <= self.gather.exchange:",
        "if self.gather is not None and exchange < self.gather.exchange:",
        "a second copy of a model starts its exchange again",
    ),
    Fault(NODE, "KEPT_MAX = 2", "KEPT_MAX = 1", "one kept exchange less: the anchor is freed"),
    Fault(
        NODE,
        "        for item in early:\n",
        "        for item in early[1:]:\n",
        "the first of the early partials is forgotten",
    ),
    Fault(
        NODE,
        "item.exchange == current and item.sender not in self.children",
        "False",
        "a partial of a member that is no child is added",
    ),
    Fault(
        NODE,
        "if is_over or repeated == item.contributors:",
        "if is_over:",
        "a partial that was sent again is not refused",
    ),
    Fault(
        NODE,
        "is_over = item.exchange < current or item.exchange <= self.closed",
        "is_over = item.exchange < current",
        "a partial of an exchange that has ended is taken",
    ),
    Fault(
        NODE,
        "        if repeated or gather.sent:\n",
        "        if gather.sent:\n",
        "a partial that overlaps the sum in part is added",
    ),
    Fault(
        NODE,
        "if self._below & gather.covered != self._below:",
        "if self._below and not self._below & gather.covered:",
        "a sum goes up after the first child's contribution",
    ),
    Fault(
        NODE,
        "contributors = Mask(gather.covered | self._own)",
        "contributors = Mask(gather.covered)",
        "an inner node's own share is not in its set of contributors",
    ),
    Fault(
        NODE,
        "for sender in sorted(self.inputs))",
        "for sender in self.inputs)",
        "partials are added in the order of their arrival",
    ),
    Fault(
        NODE,
        "inputs = () if gather.summed else gather.handles()",
        "inputs = gather.handles()",
        "the inputs are added twice if a sum is sent again",
    ),
    Fault(
        NODE,
        "if gather is None or gather.sent or not gather.ready or not self.parent_ready:",
        "if gather is None or gather.sent or not self.parent_ready:",
        "a sum goes up without the node's own share",
    ),
    Fault(
        NODE,
        "if self.gather is None or self.gather.exchange != exchange:",
        "if self.gather is None:",
        "the end of an earlier computation counts for the present exchange",
    ),
    Fault(
        NODE,
        "gather is not None and gather.exchange == exchange and sender in gather.inputs:",
        "gather is not None and sender in gather.inputs:",
        "a kept input of another exchange is taken",
    ),
    Fault(
        NODE,
        "gather is not None and gather.exchange == exchange and gather.summed",
        "gather is not None and gather.exchange == exchange",
        "an exchange without a sum counts as kept",
    ),
    Fault(
        STATE,
        "done=self.closed_exchange,\n            is_new",
        "done=self.last_exchange,\n            is_new",
        "the running exchange counts as closed when members are moved in the tree",
    ),
    Fault(
        STATE,
        "take_out(self.parents, self.below, lost)\n"
        "        self.generation = Generation(self.generation + 1)\n",
        "take_out(self.parents, self.below, lost)\n",
        "the generation is not incremented when a tree is mended",
    ),
    Fault(
        STATE,
        "{*orphans, *([] if heir is None else [heir])}",
        "{*orphans}",
        "the new parent of orphans is not informed",
    ),
    Fault(
        "control/tree_layout.py",
        "order[k // fan_out - 1]",
        "order[(k + 1) // fan_out - 1]",
        "positions in the tree are off by one",
    ),
    # --- exchanges and anchors ---
    Fault(EXCHANGE, "AnchorTerm(sign=-1,", "AnchorTerm(sign=1,", "a term of an anchor is added"),
    Fault(
        EXCHANGE,
        "            if member not in living:\n                return None\n",
        "",
        "a lost member is asked for a term of an anchor",
    ),
    Fault(
        EXCHANGE,
        "subtree += below.get(node, ())",
        "subtree = [*subtree, *below.get(node, ())]",
        "the mask of a subtree lacks its lower levels",
    ),
    Fault(
        EXCHANGE,
        "kept.versions.get(m) != state.ledger.last_versions.get(m, -1)",
        "m not in kept.versions",
        "the chunk sets of an anchor and of a loss are not compared",
    ),
    Fault(
        EXCHANGE,
        "if run.header.keep and not run.disturbed:",
        "if run.header.keep:",
        "a disturbed exchange serves as an anchor",
    ),
    Fault(
        EXCHANGE,
        "for m in sorted(self.state.ledger.open) if m not in in_sum]",
        "for m in sorted(self.state.ledger.open)]",
        "a member that was lost after it had contributed counts as missing",
    ),
    Fault(
        EXCHANGE,
        'answer is None or (answer == "computing" and has_median)',
        'answer is None or answer == "computing"',
        "a member that computes a first exchange is fenced",
    ),
    Fault(
        EXCHANGE,
        "        run.answers.clear()\n",
        "",
        "an old answer counts for a later request of a member's status",
    ),
    Fault(
        EXCHANGE,
        "if self.running is not None and event.exchange == self.running.id:",
        "if self.running is not None:",
        "the status in another exchange counts for the present one",
    ),
    Fault(
        EXCHANGE,
        "if any(at == member for at, _ in run.anchor_terms):",
        "if False:",
        "the term of an anchor is awaited from a lost member",
    ),
    Fault(
        EXCHANGE,
        "if run.anchor_terms and now_s >= run.anchor_deadline_s:",
        "if False:",
        "the deadline of an anchor is ignored",
    ),
    Fault(
        EXCHANGE,
        "if run is not None and run.anchor_of == event.exchange:",
        "if run is not None:",
        "a term of another anchor is taken",
    ),
    Fault(
        EXCHANGE,
        "examples = run.n_rows - sum(run.rows[m] for m in lacking)",
        "examples = run.n_rows",
        "examples of lost participants are counted",
    ),
    Fault(
        DRIVER,
        "if run is None or event.exchange != run.id or event.sender not in run.participants:",
        "if run is None or event.exchange != run.id:",
        "a new incarnation's partial counts for its former one",
    ),
    Fault(
        DRIVER,
        "if run is None or event.exchange != run.id or event.sender not in run.participants:",
        "if run is None or event.sender not in run.participants:",
        "a partial of another exchange is passed on",
    ),
    Fault(
        DRIVER,
        "if request.require_everybody and deliver.absent_examples:",
        "if request.require_everybody and deliver.absent:",
        "a sum that lacks newly lost examples is delivered although all are needed",
    ),
    Fault(
        DRIVER,
        "            self._stalled = True\n",
        "            pass\n",
        "chunks move during an exchange that had to wait for absent ones",
    ),
    Fault(
        DRIVER,
        "if n_working < (max(1, state.settings.members_min) if self.at_round_start else 1):",
        "if n_working < 1:",
        "a round starts with fewer members than the job allows",
    ),
    Fault(
        DRIVER,
        "is_training and not waits and now_s <= latest_s",
        "is_training and not waits",
        "a step that hangs outlasts the job's time",
    ),
    # --- the ledger ---
    Fault(
        LEDGER,
        "        self.versions[former] += 1\n",
        "",
        "the version of a chunk set does not change when a chunk leaves it",
    ),
    Fault(
        LEDGER,
        "        for members in self._early.values():\n            members.discard(member)\n",
        "",
        "a lost member becomes the holder of a chunk that is read later",
    ),
    Fault(
        LEDGER,
        "for member, chunks in self.open.items() if member not in in_sum for c in chunks",
        "for member, chunks in self.open.items() for c in chunks",
        "lost chunks that a sum contains are reported as missing from it",
    ),
    Fault(
        LEDGER,
        "if self._reported is None or self._reported[1] != missing:",
        "if self._reported is None:",
        "a further loss is reported under the id of an earlier one",
    ),
    Fault(
        LEDGER,
        "        group_id, chunks = self._reported\n        self._reported = None\n",
        "        group_id, chunks = self._reported\n",
        "a group is sealed twice",
    ),
    Fault(
        LEDGER,
        "if c and c <= chunks",
        "if c",
        "chunks lost after the last report join a sealed group",
    ),
    Fault(
        LEDGER,
        "        if target not in self.holders[chunk]:\n"
        '            raise LocalProtocolError(f"chunk {chunk} cannot go to {target}, which has no '
        'copy")\n',
        "",
        "a chunk may be moved to a member without its body",
    ),
    Fault(
        LEDGER,
        'raise LocalProtocolError(f"chunk {chunk.id} added twice, now from {member}")',
        "continue",
        "a chunk that is added twice is accepted",
    ),
    # --- moves and copies of chunks ---
    Fault(
        TRANSFERS,
        "is_of = move is not None and event.order == move.order",
        "is_of = move is not None",
        "an acknowledgement of an earlier order commits a move",
    ),
    Fault(
        TRANSFERS,
        "came = [c for c in event.chunks if c not in self.dropping.get(event.member, ())]",
        "came = list(event.chunks)",
        "a member becomes the holder of a chunk that it was told to drop",
    ),
    Fault(
        TRANSFERS,
        "        if event.member not in self.state.membership.members:\n            return []\n",
        "",
        "an acknowledgement of a lost member is taken",
    ),
    Fault(
        TRANSFERS,
        "            if event.order == move.order:\n                del self.moves[chunk]\n"
        "                self.next_move_s",
        "            if True:\n                del self.moves[chunk]\n"
        "                self.next_move_s",
        "the failure of an earlier order ends a move",
    ),
    Fault(
        TRANSFERS,
        "        self.moves.clear()\n        self.rereading.clear()\n",
        "        self.moves.clear()\n",
        "chunks that are read again are committed during an exchange",
    ),
    Fault(
        TRANSFERS,
        "if len(ledger.holders[chunk]) < 2 or",
        "if len(ledger.holders[chunk]) < 1 or",
        "the last copy of a chunk may be dropped",
    ),
    Fault(
        TRANSFERS,
        "if move is not None and member in (move.source, move.target):\n            return False",
        "if move is not None and member == move.source:\n            return False",
        "the copy at the target of a move may be dropped",
    ),
    Fault(
        TRANSFERS,
        "return all(owners.get(chunk) != member for owners in self.returning.values())",
        "return True",
        "a copy that a returning group needs may be dropped",
    ),
    Fault(
        TRANSFERS,
        "for c in sorted(chunks) if c not in self.rereading",
        "for c in sorted(chunks)",
        "a chunk that is being read again is assigned to another reader",
    ),
    Fault(
        TRANSFERS,
        "                ledger.last_versions.pop(former, None)\n",
        "",
        "a lost member's anchor stands for a part of its chunks",
    ),
    Fault(
        TRANSFERS,
        "        if all(ledger.holds(target, chunk) for chunk, target in owners.items()):\n"
        "            self.at_hand.add(group.id)\n",
        "",
        "a round does not wait for a group whose bodies are all there",
    ),
    Fault(
        TRANSFERS,
        "            del self.returning[group], self.loading[group]\n"
        "            self.at_hand.discard(group)\n",
        "            del self.returning[group], self.loading[group]\n",
        "a round waits for a group whose return was broken off",
    ),
    Fault(
        TRANSFERS,
        "[m for m in holders - busy if",
        "[m for m in holders if",
        "a source is given a second batch of copies before the first has arrived",
    ),
    Fault(
        TRANSFERS,
        "            if member not in (copy.source, copy.target)\n",
        "            if member != copy.source\n",
        "a copy to a lost member is not forgotten",
    ),
    Fault(
        TRANSFERS,
        "if event.order in (None, copy.order):",
        "if True:",
        "the failure of an earlier order ends a copy",
    ),
    Fault(
        TRANSFERS,
        "alone_s = now_s - max(self._arrived_s.get(host, 0.0), now_s - seconds)",
        "alone_s = seconds",
        "time that several moves share counts for each of them",
    ),
    Fault(
        TRANSFERS,
        "bodies = tuple(c for c in chunks if not ledger.holds(target, c))",
        "bodies = tuple(c for c in chunks if not ledger.holds(source, c))",
        "a move sends no body",
    ),
    Fault(
        TRANSFERS,
        "        self.dropping.setdefault(member, set()).update(dropped)\n",
        "",
        "it is not recorded which copies are being dropped",
    ),
    Fault(
        PLACEMENT,
        "if self.pending.get(event.block) != event.member:",
        "if event.block not in self.pending:",
        "the report of another member than the reader of a block is taken",
    ),
    Fault(
        PLACEMENT,
        "            if reader == member:\n                self.pending[block] = None\n",
        "            pass\n",
        "blocks of a lost reader are not read by another one",
    ),
    Fault(
        PLACEMENT,
        "if not state.ledger.info or self.unready():",
        "if not state.ledger.info:",
        "the first round does not wait for kernels that are being compiled",
    ),
    Fault(
        PLACEMENT,
        "if chunk_moves.moves or chunk_moves.rereading or state.ledger.open:",
        "if chunk_moves.moves or chunk_moves.rereading:",
        "the first round starts while chunks have no owner",
    ),
    # --- the member ---
    Fault(
        MEMBER,
        "return chunk not in self.owned and order >=",
        "return order >=",
        "a member overwrites the state of a chunk that it owns",
    ),
    Fault(
        MEMBER,
        "return chunk not in self.owned and order >= self._state_orders.get(chunk, order)",
        "return chunk not in self.owned",
        "a state of an earlier order overwrites that of a later one",
    ),
    Fault(
        MEMBER,
        "fx.SetStates(arrival=arrival, chunks=states)",
        "fx.SetStates(arrival=arrival, chunks=states[1:])",
        "the state of the first chunk of a transfer is not taken along",
    ),
    Fault(
        MEMBER,
        "            self._state_orders.update(dict.fromkeys(states, arrival.order))\n",
        "",
        "the order of a state is not remembered",
    ),
    Fault(
        MEMBER,
        "        is_new = event.generation > self.node.generation\n",
        "        is_new = False\n",
        "a model is computed before the order about its tree",
    ),
    Fault(
        MEMBER,
        "if attaching is None or event.peer != self.node.parent:",
        "if attaching is None:",
        "a failed link to a former parent is reported",
    ),
    Fault(
        MEMBER,
        "if attaching is None or event.peer is None or event.peer != self.node.parent:",
        "if attaching is None or event.peer is None:",
        "a member reports for duty to a former parent",
    ),
    Fault(
        MEMBER,
        "        self._attempts_left -= 1\n",
        "",
        "a member tries to reach its parent for ever",
    ),
    Fault(
        MEMBER,
        "if gather is not None and exchange <= gather.exchange:",
        "if gather is not None and exchange < gather.exchange:",
        "a second copy of a model is received",
    ),
    Fault(
        MEMBER,
        "        self.owned -= frozenset(order.chunks)\n",
        "",
        "a dropped chunk still counts as owned",
    ),
    Fault(
        MEMBER,
        "                if copies.k == len(copies.order.chunks):\n",
        "                if copies.k == len(copies.order.chunks) - 1:\n",
        "the last body of an order to copy is not sent",
    ),
    Fault(
        MEMBER,
        "        self._copies.move_ended(event.source, event.order)\n",
        "",
        "copies wait for a move that has arrived",
    ),
    Fault(
        MEMBER,
        "        if order.is_full:\n            self.peers.clear()\n",
        "",
        "peers that are gone are kept",
    ),
    # --- membership ---
    Fault(
        MEMBERSHIP,
        "incarnation = self._incarnations.get(slot, 0) + 1",
        "incarnation = self._incarnations.get(slot, 1)",
        "a returned member has the id of its former incarnation",
    ),
    Fault(
        MEMBERSHIP,
        "if slot is None or slot in self._taken:",
        "if slot is None:",
        "two members have one slot",
    ),
    Fault(
        CHANGES,
        '            commands += self.lost(former.id, "joined again", now_s)\n',
        "            pass\n",
        "an earlier incarnation at the address of a newcomer is not lost",
    ),
    Fault(
        CHANGES,
        "record.deadline_s = now_s + event.grace_s",
        "record.deadline_s = event.grace_s",
        "the deadline of a notice counts from the start of the job",
    ),
    Fault(
        CHANGES,
        "now_s <= record.deadline_s + 60.0",
        "now_s <= record.deadline_s - 60.0",
        "a notice is void before its deadline",
    ),
    Fault(
        CHANGES,
        "        elif not record.is_victim:\n",
        "        else:\n",
        "a victim stays because another notice was withdrawn",
    ),
    Fault(
        CHANGES,
        "        dismiss = Dismiss(cause=reason, member=member, reason=reason)\n"
        "        return [dismiss, *self.lost(member, reason, now_s)]",
        "        return self.lost(member, reason, now_s)",
        "a fenced member is not informed",
    ),
    Fault(
        CHANGES,
        "            commands += self.loading.lost(member)\n",
        "            pass\n",
        "the loss of a reader of blocks is not noted",
    ),
    Fault(
        DETECTOR,
        '        """Record a sign of life."""\n        self._silent.pop(member, None)\n',
        '        """Record a sign of life."""\n',
        "an answer is no sign of life",
    ),
    Fault(
        DETECTOR,
        "            if asked:\n",
        "            if True:\n",
        "a silent member is fenced before it was asked",
    ),
    Fault(
        DETECTOR,
        "if now_s - since_s > limit_s]",
        "if now_s - since_s >= 0]",
        "a member is fenced as soon as a link closes",
    ),
    Fault(
        DETECTOR,
        "parents.get(member) != self._down[member][0]:",
        "member not in parents:",
        "a link that is no longer in the tree counts as broken",
    ),
    # --- notices and marks ---
    Fault(
        PREEMPTION,
        "assignment.deadline_s < record.deadline_s",
        "assignment.deadline_s > record.deadline_s",
        "of two deadlines the later one counts",
    ),
    Fault(
        PREEMPTION,
        "return assignment.deadline_s - safety_s - DRAIN_FACTOR * drain_s",
        "return assignment.deadline_s - safety_s",
        "a drain that is put off has no time to send chunks",
    ),
    Fault(
        PREEMPTION,
        "return now_s + self._rounds.longest_s(now_s) < self.begin_s(assignment, record)",
        "return now_s < self.begin_s(assignment, record)",
        "a drain that is put off may begin in the middle of a round",
    ),
    Fault(
        PREEMPTION,
        "        is_gone = reason not in FENCED\n",
        "        is_gone = True\n",
        "a fenced member's container counts as given back",
    ),
    Fault(
        PREEMPTION,
        "if len(staying) <= max(1, state.settings.members_min) and",
        "if len(staying) < max(1, state.settings.members_min) and",
        "the last member of a job leaves for a mark",
    ),
    Fault(
        PREEMPTION,
        'staying = [r for r in living if r.stage != "leaving"]',
        "staying = list(living)",
        "one member is the victim of two marks",
    ),
    Fault(
        PREEMPTION,
        'return record if record is not None and record.stage == "leaving" else None',
        "return record",
        "a mark waits for a victim that stays after all",
    ),
    Fault(
        PREEMPTION,
        "victim=former.victim if former is not None and is_repeated else None,",
        "victim=None,",
        "a repeated mark takes a second victim",
    ),
    Fault(
        PREEMPTION,
        'if m != member and r.stage != "leaving"}',
        "if m != member}",
        "copies at members that leave count as safe",
    ),
    Fault(
        SCHEDULER,
        "if not state.ledger.owned.get(record.id) and not chunk_moves.is_target(record.id):",
        "if not state.ledger.owned.get(record.id):",
        "a member is released while chunks are on their way to it",
    ),
    Fault(
        SCHEDULER,
        "        chunk_moves.abandon_moves()\n",
        "",
        "moves that took too long end during an exchange",
    ),
    Fault(
        SCHEDULER,
        "busy = chunk_moves.moves or chunk_moves.rereading or chunk_moves.at_hand",
        "busy = chunk_moves.moves or chunk_moves.at_hand",
        "a round does not wait for chunks that are read again",
    ),
    Fault(
        MARKS,
        "is_answered = True\n            return True",
        "is_answered = False\n            return True",
        "a mark is answered twice",
    ),
    Fault(
        MARKS,
        "grace_s=max(0.0, self.deadline_s - now_s)",
        "grace_s=self.notice.grace_s",
        "the grace of a mark does not get shorter",
    ),
    Fault(
        MARKS,
        "if m.expires_s > now_s]",
        "]",
        "an expired mark is live",
    ),
    Fault(
        MARKS,
        "if mark.notice.address == address and not is_other:",
        "if mark.notice.address == address:",
        "a mark is that of a former container at the same address",
    ),
    # --- rounds, checkpoints, policies ---
    Fault(
        ROUNDS,
        '            and row.objective_kind == "exact"\n',
        "",
        "an estimated objective ends the job",
    ),
    Fault(
        ROUNDS,
        "self._now.setdefault(exchange, {}).update(seconds)",
        "self._now.setdefault(ExchangeId(len(self._now)), {}).update(seconds)",
        "seconds of a partial that was sent again count twice",
    ),
    Fault(
        CHECKPOINT,
        "        if fault.round < round:\n",
        "        if fault.round <= round:\n",
        "faults planned for the round of a checkpoint are skipped",
    ),
    Fault(
        CHECKPOINT,
        '    state.membership.count_from(machine["incarnations"])\n',
        "",
        "ids of members are used again after a restart",
    ),
    Fault(
        CHECKPOINT,
        'state.last_order = int(machine["order"])',
        "state.last_order = 0",
        "numbers of orders are used again after a restart",
    ),
    Fault(
        ASYNC,
        "gone = tuple(m for m in sorted(self._peers) if m not in peers)",
        "gone = ()",
        "members are not informed of peers that are gone",
    ),
    Fault(
        READMISSION,
        "if len(free) >= size or (is_late and waited < alone_s):",
        "if len(free) >= size - 1 or (is_late and waited < alone_s):",
        "a group returns with one replacement too few",
    ),
    Fault(
        READMISSION,
        "            if not self._with_room(chunk, [member]):\n"
        "                self._rows, self._nbytes = before\n",
        "            if not self._with_room(chunk, [member]):\n",
        "memory reserved for a group that does not fit is not given back",
    ),
    # --- stand-ins and certificates ---
    Fault(
        STAND_INS,
        "loss=at_w.loss - theta * present.loss,",
        "loss=at_w.loss,",
        "a stand-in with borrowed curvature counts the present examples' loss besides",
    ),
    Fault(
        STAND_INS,
        "entry.borrowing(w, entry.at(w, old), new)",
        "entry.borrowing(w, entry.at(w, new), new)",
        "a stand-in is moved to new present examples without its old value",
    ),
    Fault(
        STAND_INS,
        "        dropped = [self.entries.pop(group) for group in back]\n        if dropped:\n"
        "            self._sum()\n",
        "        dropped = [self.entries.pop(group) for group in back]\n",
        "the totals keep the gradient of a returned group",
    ),
    Fault(
        GRADIENT,
        "        self.last_evaluated = replace(evaluated, sums=survivors)\n",
        "",
        "after a loss the known sums still contain the lost examples",
    ),
    Fault(
        GRADIENT,
        "is_same = (latest.opened, latest.absent) == (outcome.opened, outcome.absent)",
        "is_same = True",
        "a sum is used after more examples were lost",
    ),
    Fault(
        GRADIENT,
        "if self.last_evaluated is None or self._evaluated_changes != self.changes:",
        "if self.last_evaluated is None:",
        "two points over different examples are compared",
    ),
    Fault(
        GUARD,
        "certain = estimated + error.high",
        "certain = estimated",
        "the guard judges by the estimate and not by its certain bound",
    ),
    Fault(
        FROZEN,
        "        for group in before - set(outcome.absent):\n            del self.groups[group]\n",
        "",
        "the bound counts a group that has returned",
    ),
    Fault(
        FROZEN,
        "                total += frozen.image\n",
        "                total = frozen.image\n",
        "the image of the present examples is replaced by that of the absent ones",
    ),
    Fault(
        FROZEN,
        "return sum(frozen.dual for frozen in self.groups.values())",
        "return 0.0",
        "the dual objective lacks the absent examples",
    ),
    Fault(
        FROZEN,
        "if self.plan is None or anchor is None or anchor.exchange not in self.kept:",
        "if self.plan is None or anchor is None or not self.kept:",
        "an anchor is taken whose certificate is no longer kept",
    ),
)


# --- running tests on a copy ----------------------------------------------------------------------


def stages(file: str) -> list[list[str]]:
    """Return the tests that search for a fault in a file, quickest first."""
    path = Path(file)
    room = f"tests/unit/{path.parent}"
    own = f"{room}/test_{path.stem}.py"
    # pytest takes the files of a folder in its order, also one that is named besides.
    first = [[own], [room]] if (ROOT / own).exists() else [[room]]
    simulator = ["tests/sim", "tests/test_state_orders.py"]
    others = sorted({str(p.relative_to(ROOT)) for p in ROOT.glob("tests/property/test_*.py")})
    others = [test for test in others if test not in MACHINES]
    if path.parts[0] == "algorithms":
        return [*first, others, simulator, [*MACHINES, "tests/unit/control"]]
    rooms = {"tests/unit/control", "tests/unit/protocol", "tests/unit/policies"} - {room}
    return [*first, [*MACHINES], sorted(rooms), simulator, others]


class Copy:
    """A temporary copy of the package and its tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("elasticml", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "docs", "examples"):
            (folder / name).symlink_to(ROOT / name)
        # The simulator's tests compare digests, too; without the files they compare none.
        for name in ("stories", "faults"):
            (folder / "tests" / "frozen" / f"{name}.json").unlink()

    def read(self, file: str) -> str:
        """Return the source of a file of the package."""
        return (self.folder / "elasticml" / file).read_text()

    def write(self, file: str, source: str) -> None:
        """Replace a file of the package, and forget its bytecode."""
        path = self.folder / "elasticml" / file
        path.write_text(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def first_failure(self, tests: Sequence[str], seconds: float) -> tuple[str | None, float]:
        """Run tests in a process until one fails; return its name, and the seconds of one core.

        A process that exceeds ``seconds`` is ended and has found nothing.
        """
        log = self.folder / "pytest.log"
        child = os.fork()
        if child == 0:
            try:
                self._run(tests, seconds, log)
            finally:
                os._exit(99)
        _, status, used = os.wait4(child, 0)
        spent = used.ru_utime + used.ru_stime
        code = os.waitstatus_to_exitcode(status)
        if code == 0 or code == -signal.SIGXCPU:
            return None, spent
        text = log.read_text()
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        if failed is not None:
            return failed.group(1), spent
        if "+ Timeout +" in text:
            return "a test that hangs", spent  # and cannot be interrupted
        raise SystemExit(f"planted_faults: pytest ended with {code}: {text[-500:]}")

    def _run(self, tests: Sequence[str], seconds: float, log: Path) -> None:
        """Run tests in this process, which ends with them."""
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, resource.RLIM_INFINITY))
        os.chdir(self.folder)
        # What the bench itself has imported: libraries, and nothing of the package.
        assert "elasticml" not in sys.modules
        os.environ["PYTHONPATH"] = str(self.folder)
        with log.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            code = pytest.main(
                [
                    *("-q", "-x", "--hypothesis-profile", "search", "--tb", "line"),
                    *("-m", "not slow and not torch", f"--timeout={TEST_SECONDS_MAX}"),
                    *("-p", "no:cacheprovider", "-p", "no:xdist", *tests),
                ]
            )
        sys.stdout.flush()
        os._exit(int(code))


def search(copy: Copy, fault: Fault, seconds_max: float, n_stages: int) -> Result:
    """Plant a fault, run tests until one fails, and mend it."""
    source = copy.read(fault.file)
    copy.write(fault.file, fault.planted(source))
    seconds, found = 0.0, None
    try:
        for tests in stages(fault.file)[:n_stages]:
            found, spent = copy.first_failure(tests, seconds_max - seconds)
            seconds += spent
            if found is not None or seconds >= seconds_max:
                break
    finally:
        copy.write(fault.file, source)
    return Result(fault.file, fault.wrong, found, round(seconds, 1))


def write(results: Sequence[Result], out: Path) -> None:
    """Write the table: whole, then renamed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps([result._asdict() for result in results], indent=1) + "\n")
    part.rename(out)


def summary(results: Sequence[Result], seconds_max: float) -> str:
    """Return the share found, and how fast."""
    times = sorted(result.seconds for result in results if result.found_by is not None)
    n, share = len(results), len(times) / len(results)
    lines = [f"{len(times)} of {n} faults found within {seconds_max:g} s of one core: {share:.1%}"]
    if times:
        p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
        lines.append(
            f"seconds to find one: median {statistics.median(times):.1f}, 95th percentile "
            f"{p95:.1f}, largest {times[-1]:.1f}"
        )
    return "\n".join(lines)


def main() -> int:
    """Plant the faults one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "planted_faults.json")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--stages", type=int, default=9)
    parser.add_argument("--skip-check", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("ELASTICML_DATA", str(ROOT.parent / "shared" / "data"))
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    for library in LIBRARIES:
        importlib.import_module(library)
    faults = [f for f in FAULTS if any(text in f.name for text in options.only)]
    for fault in faults:
        fault.planted((ROOT / "elasticml" / fault.file).read_text())
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Copy(Path(folder))
        if not options.skip_check:
            for tests in stages("control/driver.py")[: options.stages]:
                failed, _ = copy.first_failure(tests, 3600.0)
                if failed is not None:
                    raise SystemExit(f"planted_faults: {failed} fails without any fault")
        for fault in faults:
            result = search(copy, fault, options.seconds, options.stages)
            results.append(result)
            print(
                f"{result.seconds:7.1f} s  {fault.name}\n           {result.found_by}", flush=True
            )
            write(results, options.out)
    print(summary(results, options.seconds))
    return 0 if sum(r.found_by is not None for r in results) >= SHARE_MIN * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
