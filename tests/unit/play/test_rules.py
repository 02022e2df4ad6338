from __future__ import annotations

from typing import Any

import pytest

from elasticml.story.history import HistoryRow
from elasticml.story.soundness import unsound, untrue
from tests.play.rules import missampled

#: Losses of ten examples, of which a round visits two or three.
LOSSES = [0.1, 0.7, 0.3, 0.9, 0.2, 1.1, 0.5, 0.4, 0.8, 0.6]
MEAN = sum(LOSSES) / len(LOSSES)
ROUNDS = ([0, 1, 2], [3, 4], [5, 6, 7], [8, 9])


def history(rounds: Any = ROUNDS * 3, skipped: dict[int, int] | None = None) -> list[Any]:
    """Return rows of rounds that visit these examples; ``skipped`` by round."""
    rows, done, lost = [], 0, 0
    for number, visited in enumerate(rounds):
        left_out = (skipped or {}).get(number, 0)
        lost += left_out
        rows.append(
            {
                "round": number,
                "epoch": round(done / len(LOSSES), 6),
                "samples": len(visited),
                "skipped": lost,
                "objective": sum(LOSSES[k] for k in visited) / len(visited),
            }
        )
        done += len(visited) + left_out
    return [*rows, {"round": len(rounds), "objective": None}]


def test_epochs_with_every_example_once_are_right() -> None:
    assert list(missampled(history(), len(LOSSES), MEAN)) == []
    # A resumed job's history may begin within an epoch.
    assert list(missampled(history()[2:], len(LOSSES), MEAN)) == []
    # The examples that are skipped are counted, and the losses of the others say nothing.
    rounds = [*ROUNDS[:3], *ROUNDS * 2]
    assert list(missampled(history(rounds, {2: 2}), len(LOSSES), MEAN)) == []


def test_an_example_visited_instead_of_another_shows_in_the_losses() -> None:
    wrong = [*ROUNDS, [0, 1, 2], [3, 3], *ROUNDS[2:], *ROUNDS]
    (text,) = missampled(history(wrong), len(LOSSES), MEAN)
    assert text.startswith("the losses of epoch 1 are 6.3")
    assert list(missampled(history(wrong), len(LOSSES), None)) == []


def test_a_lost_example_shows_in_the_counts() -> None:
    rows = history()
    rows[5]["samples"] -= 1
    found = list(missampled(rows, len(LOSSES), None))
    assert [text[:7] for text in found] == ["round 5", "epoch 1"]


@pytest.mark.parametrize("change", [{"samples": 4}, {"skipped": 1}])
def test_a_count_that_does_not_fit_the_progress_of_the_epoch_is_found(change: Any) -> None:
    rows = history()
    rows[6] |= change
    assert any("round 6" in text for text in missampled(rows, len(LOSSES), None))


def test_a_model_off_its_coordinates_is_found_while_no_example_is_absent() -> None:
    assert list(unsound([{"drift": 1e-12}, {"drift": 0.5, "absent_examples": 1}])) == []
    assert len(list(unsound([{"drift": 1e-3}]))) == 1


def test_an_estimate_keeps_its_error_bound_and_tangents_are_below() -> None:
    for objective, kinds, n_wrong in (0.9, "taylor 2", 0), (1.1, "taylor 2", 1), (0.7, "", 1):
        columns = {"objective": objective, "error_bound": 0.2, "curvature_from": kinds}
        assert len(list(untrue(HistoryRow(columns), 1.0, 0.0))) == n_wrong
