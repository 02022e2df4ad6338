"""For any view, a policy's suggestions refer to existing things, and are reproducible."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.control.policy import (
    Discard,
    MemberView,
    Move,
    Progress,
    Replicate,
    Request,
    Retire,
    Tune,
    View,
)
from elasticml.ids import ChunkInfo
from elasticml.policies.load_balancing import LAST_CHUNK_MAX, slowdown
from elasticml.policies.registry import POLICIES, make_policy
from tests.policy_world import FakeChunks, chunk, member

ABSENCE = ("whole_group", "reload")
#: Settings that make a policy more active than by default.
EAGER = {
    "knee": {"window": 1, "ratio": 1.01, "avoid": []},
    "gap_per_container_second": {"window": 2, "probe": 2, "cool": 1, "factor": 2},
    "straggler": {"factor": 1.1, "confirm": 1},
    "shuffle": {"share": 0.5},
    "tune_local_work": {"window": 2, "cool": 1},
}


@st.composite
def views(draw) -> View:
    slots = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
    all_members = [member(slot) for slot in sorted(slots)]
    n_leaving = draw(st.integers(0, len(all_members) - 1))
    leaving, working = all_members[:n_leaving], all_members[n_leaving:]
    times = st.floats(1e-9, 1e9)
    n_chunks = draw(st.integers(0, 12))
    infos = {
        chunk(i): ChunkInfo(id=chunk(i), rows=draw(st.integers(0, 500)), nbytes=1000)
        for i in range(n_chunks)
    }
    owners = {c: draw(st.sampled_from(all_members)) for c in infos}
    held = {c: {m} | draw(st.sets(st.sampled_from(all_members))) for c, m in owners.items()}
    chunks = FakeChunks(infos, owners, held)

    def seen(m, stage) -> MemberView:
        seconds = draw(st.lists(times, max_size=5))
        return MemberView(
            id=m,
            host=f"h{m.slot % 2}",
            rows=sum(infos[c].rows for c in chunks.of(m)),
            stage=stage,
            deadline_s=100.0 if stage == "leaving" else None,
            seconds=tuple(seconds),
            seconds_per_row=tuple(s / 100 for s in seconds),
            limit_bytes=draw(st.none() | st.integers(0, 20_000)),
        )

    gaps = st.none() | st.floats(0, 1e6)
    history = [
        Progress(round=i, seconds=i + 1.0, members=len(working), gap=draw(gaps))
        for i in range(draw(st.integers(0, 12)))
    ]
    return View(
        now_s=50.0,
        round=len(history),
        groups=(),
        spares=tuple(seen(member(slot), "spare") for slot in draw(st.sets(st.integers(10, 12)))),
        working=tuple(seen(m, "active") for m in working),
        leaving=tuple(seen(m, "leaving") for m in leaving),
        history=tuple(history),
        chunks=chunks if draw(st.integers(0, 9)) else None,
        holders=draw(st.integers(1, 2)),
        seed=draw(st.integers(0, 3)),
        requested=draw(st.sampled_from([0, 0, 0, 2])),
        move_bytes_per_s=draw(st.sampled_from([1.0, 200e6])),
    )


def check(view: View, suggestion) -> None:
    """Assert that a suggestion is about remaining members and existing chunks."""
    assert suggestion.why
    staying = {m.id for m in (*view.working, *view.spares)}
    match suggestion:
        case Move() | Replicate():
            assert suggestion.targets
            assert set(suggestion.targets.values()) <= staying
            assert set(suggestion.targets) <= set(view.chunks.infos)
            same = [c for c, m in suggestion.targets.items() if view.chunks.owners[c] == m]
            assert same == []
        case Discard():
            assert all(suggestion.member in view.chunks.held[c] for c in suggestion.chunks)
            assert all(view.chunks.owners[c] != suggestion.member for c in suggestion.chunks)
        case Retire():
            lost = set(suggestion.members)
            working = {m.id for m in view.working}
            assert lost < working
            assert set((suggestion.targets or {}).values()) <= working - lost
            if view.chunks is not None:
                owned = {c for m in lost for c in view.chunks.of(m)}
                assert set(suggestion.targets) == owned
        case Request():
            assert suggestion.count >= 1
        case Tune():
            assert suggestion.name in ("redeal_share", "local_epochs")


@settings(max_examples=60)
@given(views(), st.sampled_from([n for n in POLICIES if n not in ABSENCE]), st.booleans())
def test_suggestions_refer_to_existing_things_and_are_reproducible(view, name, eager):
    entry = {"name": name, **(EAGER.get(name, {}) if eager else {})}
    decision = make_policy(entry).suggest(view)
    assert list(decision) == list(make_policy(entry).suggest(view))
    for suggestion in decision:
        check(view, suggestion)


@settings(max_examples=40)
@given(views(), st.sampled_from(["rebalance", "redeal", "straggler"]))
def test_no_member_is_emptied_that_is_neither_released_nor_slow(view, name):
    """Elastic scaling would count it as a newcomer, and fill it again."""
    if view.chunks is None:
        return
    before = {m.id: view.chunks.of(m.id) for m in view.working}
    for suggestion in make_policy(name).suggest(view):
        view.chunks.owners.update(suggestion.targets)
    for m in view.working:
        is_slow = name != "redeal" and slowdown(m, view.working) > LAST_CHUNK_MAX
        assert is_slow or bool(view.chunks.of(m.id)) >= bool(before[m.id])


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 50), min_size=4, max_size=24),
    st.integers(1, 3),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
def test_newcomers_own_a_fair_share_once_they_have_copies_of_it(rows, n_working, n_new, random):
    """Copies arrive in any order, and some fail; no body is sent twice, and none with a move."""
    infos = {chunk(i): ChunkInfo(id=chunk(i), rows=n, nbytes=n) for i, n in enumerate(rows)}
    working, new = [member(k) for k in range(n_working)], [member(9 - k) for k in range(n_new)]
    owners = {c: working[i % n_working] for i, c in enumerate(infos)}
    chunks = FakeChunks(infos, owners, {c: {m} for c, m in owners.items()})
    copying: dict = {}
    policy = make_policy("elastic_scaling")
    failures = 5
    for number in range(500):
        owning = sorted({*owners.values()})
        seen = [
            MemberView(id=m, host="h", rows=sum(infos[c].rows for c in chunks.of(m)))
            for m in (*owning, *new)
        ]
        view = View(
            now_s=float(number),
            round=number,
            groups=(),
            spares=tuple(m for m in seen if m.id not in owning),
            working=tuple(m for m in seen if m.id in owning),
            chunks=chunks,
            copying=dict(copying),
            move_bytes_per_s=10.0,
        )
        for suggestion in policy.suggest(view):
            if isinstance(suggestion, Replicate):
                assert not set(suggestion.targets) & set(copying)
                assert all(m not in chunks.holders(c) for c, m in suggestion.targets.items())
                copying.update(suggestion.targets)
            else:
                for c, m in suggestion.targets.items():
                    assert m in chunks.holders(c)
                    owners[c] = m
                    chunks.held[c].add(m)
        if set(new) <= {*owners.values()}:
            break
        for c in random.sample(sorted(copying), random.randint(min(1, len(copying)), len(copying))):
            m = copying.pop(c)
            if failures and random.random() < 0.2:
                failures -= 1
            else:
                chunks.held[c].add(m)
    loads = [sum(infos[c].rows for c in chunks.of(m)) for m in (*working, *new)]
    assert max(loads) - min(loads) <= 2 * max(rows)
