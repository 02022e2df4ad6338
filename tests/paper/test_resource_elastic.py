"""The resource-elastic paper's Algorithms 1 and 2, sentence by sentence, against sums by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.serial_world import Return, Run, Vanish, World, split_rows

MEMBERS = 7
L2 = 0.05
STEP = 0.4


def problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(91, 4)) * [1.0, 2.0, 0.5, 1.0]
    y = np.where(X @ [1.0, -0.5, 0.3, 0.0] + rng.normal(size=91) > 0, 1.0, -1.0)
    return X, y


X, Y = problem()
BOUNDS = np.linspace(0, len(Y), MEMBERS + 1).astype(int)


def rows_of(*members: int) -> np.ndarray:
    """Return the rows of the data that these members own."""
    return np.concatenate([np.arange(BOUNDS[m], BOUNDS[m + 1]) for m in members])


def loss(w: np.ndarray, *members: int) -> float:
    """Return the summed loss of these members' rows."""
    rows = rows_of(*members)
    return float(np.logaddexp(0.0, -Y[rows] * (X[rows] @ w[:4])).sum())


def gradient(w: np.ndarray, *members: int) -> np.ndarray:
    """Return the gradient of :func:`loss`."""
    rows = rows_of(*members)
    slope = -Y[rows] / (1.0 + np.exp(Y[rows] * (X[rows] @ w[:4])))
    return np.append(X[rows].T @ slope, 0.0)


def penalised(total: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean-form objective for a summed loss gradient."""
    return total / len(Y) + L2 * w


def train(*schedule: Vanish | Return, rounds: int = 8, absent: str = "taylor", **settings) -> Run:
    anchors = settings.pop("has_anchors", False)
    if "mode" not in settings:
        settings = {"mode": "paper", "roll_back": 0, **settings}
    world = World(
        settings={"l2": L2, "optimizer": "gd", "step": "constant", "step_size": STEP, **settings},
        parts=split_rows(X, Y, MEMBERS, chunk_rows=5),
        absent=absent,
        schedule=schedule,
        has_anchors=anchors,
    )
    return world.run(rounds)


ALL_MEMBERS = tuple(range(MEMBERS))
SEARCH = {"step": "line_search", "step_size": None}


def close(actual: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=1e-11, atol=1e-13)


# --- Algorithm 1 --------------------------------------------------------------------------------


def test_undisturbed_rounds_are_distributed_batch_gradient_descent() -> None:
    """Line 5: "w^{r+1} = w^r - eta^r (g^r + lambda w^r)"; one broadcast and reduce a round."""
    run = train(rounds=5)
    w = np.zeros(5)
    for r in range(5):
        close(run.w(r), w)
        objective = loss(w, *ALL_MEMBERS) / len(Y) + L2 / 2 * w @ w
        assert run.rows[r].objective == pytest.approx(objective, rel=1e-13)
        assert run.phases(r) == ["gradient"]
        w = w - STEP * penalised(gradient(w, *ALL_MEMBERS), w)
    close(run.w(5), w)


def test_the_step_may_decay_with_time() -> None:
    """ "The step eta^r is either a constant or decays with time."."""
    run = train(rounds=3, step="decay")
    steps = [row.step for row in run.rows]
    assert steps == [STEP / np.sqrt(1 + r / 50) for r in range(3)]


def test_a_line_search_costs_one_exchange_and_no_pass_over_the_data_but_the_direction() -> None:
    """ "Alternatively, one can also do a line search."."""
    run = train(rounds=6, **SEARCH)
    assert run.phases(0)[:2] == ["gradient", "curvature"]
    assert run.phases(4) == ["gradient", "probe"]
    objectives = [row.objective for row in run.rows]
    assert all(b < a for a, b in itertools.pairwise(objectives))


@pytest.mark.parametrize("settings", [{}, SEARCH], ids=["constant", "line search"])
def test_elasticity_costs_nothing_while_no_member_leaves(settings: dict) -> None:
    plain = train(rounds=6, absent="stall", **settings)
    for absent in ("taylor", "ignore", "ignore_rescaled", "reload"):
        run = train(rounds=6, absent=absent, **settings)
        assert [a.phase for a in run.exchanges] == [a.phase for a in plain.exchanges]
        np.testing.assert_array_equal(run.w(6), plain.w(6))
        assert not any(a.exchange.seal for a in run.exchanges)


# --- Algorithm 2, lines 8 to 17 -----------------------------------------------------------------


def test_vanished_partitions_are_replaced_by_their_gradient_at_the_previous_model() -> None:
    """Lines 9-13 and 17.

    "Once the Master observes that partitions have vanished, it broadcasts w^{r-1} to slave
    partitions and gets g_Q^{r-1} with the Reduce operation. It then calculates
    g^_Q = g^{r-1} - g_Q^{r-1}."
    """
    run = train(Vanish(round=3, members=(1, 4)))
    assert run.phases(3) == ["gradient", "correct"]
    correction = next(a for a in run.exchanges if a.phase == "correct")
    close(correction.exchange.model["w"], run.w(2)[:4])
    there = (0, 2, 3, 5, 6)
    ghat = gradient(run.w(2), 1, 4)
    for r in (3, 4, 5):
        w = run.w(r)
        close(run.w(r + 1), w - STEP * penalised(gradient(w, *there) + ghat, w))
        assert run.rows[r].stand_ins == 1
        assert run.rows[r].objective_kind == "estimated"
        assert run.phases(r) == ["gradient", "correct"][: 2 if r == 3 else 1]


def test_the_objective_of_a_stand_in_is_its_taylor_expansion() -> None:
    """ "l^_Q = g^_Q^T (w - w^{r-1})", and l_Q(w^{r-1}), so that rounds can be compared."""
    run = train(Vanish(round=3, members=(1, 4)))
    for r in (3, 6):
        w, anchor = run.w(r), run.w(2)
        expansion = loss(anchor, 1, 4) + gradient(anchor, 1, 4) @ (w - anchor)
        expected = (loss(w, 0, 2, 3, 5, 6) + expansion) / len(Y) + L2 / 2 * w @ w
        assert run.rows[r].objective == pytest.approx(expected, rel=1e-12)


def test_the_next_exchange_after_a_correction_seals_the_group() -> None:
    run = train(Vanish(round=3, members=(1,)))
    assert run.seals(3) == []
    assert run.seals(4) == ["gradient"]
    searched = train(Vanish(round=3, members=(1,)), **SEARCH)
    assert searched.phases(3)[:3] == ["gradient", "correct", "curvature"]
    assert searched.seals(3) == ["curvature"]


def test_line_16_in_paper_mode_repeats_the_round() -> None:
    """Line 16: "w^{r+1} <- w^r, w^r <- w^{r-1}"."""
    run = train(Vanish(round=3, members=(1, 4)), mode="paper")
    np.testing.assert_array_equal(run.w(4), run.w(3))
    assert run.rows[3].step is None
    assert run.phases(4) == ["gradient"]
    w = run.w(4)
    total = gradient(w, 0, 2, 3, 5, 6) + gradient(run.w(2), 1, 4)
    close(run.w(5), w - STEP * penalised(total, w))


def test_the_other_reading_of_line_16_restarts_at_the_previous_model() -> None:
    run = train(Vanish(round=3, members=(1, 4)), roll_back=2)
    np.testing.assert_array_equal(run.w(4), run.w(2))
    w = run.w(4)
    # The stand-in's gradient is exact where it is anchored.
    close(run.w(5), w - STEP * penalised(gradient(w, *ALL_MEMBERS), w))


@pytest.mark.parametrize("roll_back", [0, 1, 2])
def test_what_vanishes_during_the_correction_is_approximated_together(roll_back: int) -> None:
    """Line 12, "Q also includes vanished partitions from previous reduce".

    "If extra partitions vanish during the reduce operation, the master will compute the
    approximation of all vanished partitions together."
    """
    run = train(
        Vanish(round=3, members=(1,)),
        Vanish(round=3, members=(4, 5), during="correct"),
        roll_back=roll_back,
    )
    # Without roll-back the received gradient lacks too few: it is requested once more.
    expected = ["gradient", "correct"] + ["gradient"] * (roll_back == 0)
    assert run.phases(3) == expected
    ghat = gradient(run.w(2), 1, 4, 5)
    w = run.w(5)
    close(run.w(6), w - STEP * penalised(gradient(w, 0, 2, 3, 6) + ghat, w))
    assert run.rows[5].stand_ins == 1


@pytest.mark.parametrize("roll_back", [0, 1, 2])
def test_a_second_loss_does_not_count_the_first_ones_gradient_again(roll_back: int) -> None:
    """After line 16 the stored previous gradient must be the survivors'.

    Lines 14 and 15: "g^_FN <- g^_FN + g^_Q, FN <- FN u Q; FNQueue.Add(Q, g^_Q)".
    """
    run = train(Vanish(round=3, members=(1,)), Vanish(round=4, members=(5, 6)), roll_back=roll_back)
    first = run.w(2)
    # Anchored at w^3: in default mode the model before w^4, by line 16 (either reading) w^{r-1}.
    second = run.w(3) if roll_back == 0 else run.w(2)
    ghat = gradient(first, 1) + gradient(second, 5, 6)
    w = run.w(6)
    close(run.w(7), w - STEP * penalised(gradient(w, 0, 2, 3, 4) + ghat, w))
    assert run.rows[6].stand_ins == 2


def test_the_regulariser_is_counted_once() -> None:
    """Line 17 adds "lambda w^r" at the master: the members' sums do not depend on it."""
    weak, strong = (train(Vanish(round=1, members=(0,)), rounds=3, l2=l2) for l2 in (0.0, 3.0))
    np.testing.assert_array_equal(
        weak.exchanges[0].outcome.arrays["gradient"], strong.exchanges[0].outcome.arrays["gradient"]
    )
    w = strong.w(1)
    total = gradient(np.zeros(5), 0) + gradient(w, *range(1, MEMBERS))
    close(strong.w(2), w - STEP * (total / len(Y) + 3.0 * w))


def test_without_a_previous_model_the_vanished_are_ignored_and_the_row_reports_it() -> None:
    """At r = 0 there is no w^{-1}."""
    run = train(Vanish(round=0, members=(2,)), Return(round=3))
    assert run.phases(0) == ["gradient"]
    assert "ignored until back" in run.rows[0].extra["note"]
    there = rows_of(0, 1, 3, 4, 5, 6)
    w = run.w(1)
    close(run.w(2), w - STEP * (gradient(w, 0, 1, 3, 4, 5, 6) / len(there) + L2 * w))
    w = run.w(3)
    close(run.w(4), w - STEP * penalised(gradient(w, *ALL_MEMBERS), w))


# --- lines 18 to 21 -----------------------------------------------------------------------------


def test_a_stand_in_ends_exactly_when_its_gradient_is_in_the_sum_again() -> None:
    """Line 21: "g^_FN <- g^_FN - g^_Q, FN <- FN - Q"; first in, first back."""
    run = train(
        Vanish(round=2, members=(1,)),
        Vanish(round=3, members=(5, 6)),
        Return(round=5, oldest=True),
        Return(round=7),
    )
    assert [row.stand_ins for row in run.rows] == [0, 0, 1, 2, 2, 1, 1, 0]
    w = run.w(5)
    total = gradient(w, 0, 1, 2, 3, 4) + gradient(run.w(2), 5, 6)
    close(run.w(6), w - STEP * penalised(total, w))
    w = run.w(7)
    close(run.w(8), w - STEP * penalised(gradient(w, *ALL_MEMBERS), w))
    assert run.rows[7].objective_kind == "exact"


def test_a_loss_in_the_very_exchange_of_a_return_is_not_blamed_for_it() -> None:
    """The previous gradient lacks the returned group's; its stand-in substitutes it."""
    run = train(Vanish(round=2, members=(1,)), Return(round=5), Vanish(round=5, members=(6,)))
    # Attributed to the new loss: the change of the returned group's gradient since its anchor.
    ghat = gradient(run.w(4), 6) + gradient(run.w(1), 1) - gradient(run.w(4), 1)
    w = run.w(6)
    close(run.w(7), w - STEP * penalised(gradient(w, *range(6)) + ghat, w))
    assert run.rows[6].stand_ins == 1


def test_a_group_that_returns_and_vanishes_at_once_keeps_a_stand_in() -> None:
    run = train(Vanish(round=2, members=(1,)), Return(round=5), Vanish(round=5, members=(1,)))
    w = run.w(6)
    close(run.w(7), w - STEP * penalised(gradient(w, 0, *range(2, 7)) + gradient(run.w(1), 1), w))


# --- anchors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, SEARCH], ids=["constant", "line search"])
def test_cached_inputs_are_the_same_anchor_without_a_correction(settings: dict) -> None:
    """ "inner nodes keep an approximation for their inputs available"."""
    events = (Vanish(round=3, members=(1, 4)), Vanish(round=5, members=(2,)), Return(round=6))
    cached = train(*events, has_anchors=True, **settings)
    corrected = train(*events, has_anchors=True, **settings, anchor="correction")
    assert "correct" not in [a.phase for a in cached.exchanges]
    assert [a.phase for a in corrected.exchanges].count("correct") == 2
    np.testing.assert_allclose(cached.w(8), corrected.w(8), rtol=1e-9)


def test_a_cached_input_of_an_older_model_is_not_used_for_the_previous_one() -> None:
    """Losses in two successive rounds: the first exchange was disturbed, and its inputs are not
    kept.
    """
    events = (Vanish(round=3, members=(1, 4)), Vanish(round=4, members=(2,)))
    cached = train(*events, has_anchors=True)
    assert cached.phases(3) == ["gradient"]
    assert cached.phases(4) == ["gradient", "correct"]
    ghat = gradient(cached.w(2), 1, 4) + gradient(cached.w(3), 2)
    w = cached.w(5)
    close(cached.w(6), w - STEP * penalised(gradient(w, 0, 3, 5, 6) + ghat, w))


def test_members_that_vanish_after_their_gradient_was_counted_are_anchored_at_it() -> None:
    """A leaving member that contributes at w^r first needs no older model."""
    run = train(Vanish(round=3, members=(1, 4), counted=True))
    assert run.phases(4) == ["gradient", "correct"]
    w = run.w(4)
    total = gradient(w, 0, 2, 3, 5, 6) + gradient(run.w(3), 1, 4)
    close(run.w(5), w - STEP * penalised(total, w))


# --- line search on the estimated objective -----------------------------------------------------


def estimated(
    w: np.ndarray, there: tuple[int, ...], gone: tuple[int, ...], at: np.ndarray
) -> float:
    expansion = loss(at, *gone) + gradient(at, *gone) @ (w - at)
    return (loss(w, *there) + expansion) / len(Y) + L2 / 2 * w @ w


@pytest.mark.parametrize("during", ["gradient", "probe"])
def test_the_line_search_descends_the_estimated_objective(during: str) -> None:
    """ "Moreover, we perform line search in Algorithms 1 and 2 to find the step eta^r."."""
    run = train(Vanish(round=3, members=(1, 4, 5), during=during), rounds=12, **SEARCH)
    there, lost = (0, 2, 3, 6), (1, 4, 5)
    anchor = run.w(2 if during == "gradient" else 3)
    for r in range(3, 12):
        w, after, step = run.w(r), run.w(r + 1), run.rows[r].step
        total = gradient(w, *there) + gradient(anchor, *lost)
        g = penalised(total, w)
        close(after, w - step * g)
        gain = estimated(w, there, lost, anchor) - estimated(after, there, lost, anchor)
        assert gain >= 0.99e-4 * step * g @ g


def test_a_loss_in_a_probe_is_corrected_at_the_same_model_and_the_probe_repeated() -> None:
    run = train(Vanish(round=3, members=(1, 4), during="probe"), **SEARCH)
    assert run.phases(3) == ["gradient", "probe", "correct", "probe"]
    correction = next(a for a in run.exchanges if a.phase == "correct")
    close(correction.exchange.model["w"], run.w(3)[:4])
    sums = [a for a in run.exchanges if a.round == 3 and a.phase == "probe"]
    assert sums[1].exchange.seal
    assert "direction" not in sums[1].exchange.model


def test_the_step_is_searched_again_when_the_set_of_examples_changes() -> None:
    run = train(Vanish(round=3, members=(1, 4)), Return(round=6), **SEARCH)
    starts = [r for r in range(8) if "curvature" in run.phases(r)]
    assert starts == [0, 3, 6]


# --- the baselines ------------------------------------------------------------------------------


def test_ignore_sums_the_available_and_rescaled_takes_their_mean() -> None:
    """ "Ignore: Distr-BGD continues with only the remaining containers"."""
    there = (0, 2, 3, 5, 6)
    for absent, divisor in (("ignore", len(Y)), ("ignore_rescaled", len(rows_of(*there)))):
        run = train(Vanish(round=3, members=(1, 4)), Return(round=6), absent=absent)
        assert "correct" not in [a.phase for a in run.exchanges]
        for r in (3, 4):
            w = run.w(r)
            close(run.w(r + 1), w - STEP * (gradient(w, *there) / divisor + L2 * w))
            assert run.rows[r].stand_ins == 0
        w = run.w(6)
        close(run.w(7), w - STEP * penalised(gradient(w, *ALL_MEMBERS), w))


@pytest.mark.parametrize("during", ["gradient", "probe"])
@pytest.mark.parametrize("absent", ["stall", "reload"])
def test_stall_waits_and_then_continues_unchanged(during: str, absent: str) -> None:
    """ "Stall: Distr-BGD algorithm waits for all the nodes to come up again"."""
    run = train(
        Vanish(round=3, members=(1, 4), during=during),
        Return(round=6),
        rounds=11,
        absent=absent,
        **SEARCH,
    )
    plain = train(rounds=8, **SEARCH)
    np.testing.assert_allclose(run.w(11), plain.w(8), rtol=1e-9)


@pytest.mark.parametrize("absent", ["ignore", "ignore_rescaled"])
def test_when_all_members_vanish_the_round_waits_for_one(absent: str) -> None:
    run = train(
        Vanish(round=3, members=ALL_MEMBERS),
        Return(round=3, during="gradient", nth=2),
        absent=absent,
    )
    assert run.phases(3) == ["gradient"] * 3
    w = run.w(3)
    close(run.w(4), w - STEP * penalised(gradient(w, *ALL_MEMBERS), w))
    assert run.rows[3].objective_kind == "exact"


def test_when_all_members_vanish_stand_ins_complete_the_round() -> None:
    run = train(Vanish(round=3, members=ALL_MEMBERS), has_anchors=True)
    w = run.w(3)
    close(run.w(4), w - STEP * penalised(gradient(run.w(2), *ALL_MEMBERS), w))
