"""A job resumes from its checkpoints in another process: other members, reread data, same
optimum.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.scored_rows import with_scored_rows
from elasticml.errors import ConfigError, DataError
from elasticml.protocol.job_record import CheckpointPlace, job_record
from elasticml.runtime.checkpoints import checkpoint_store, checkpoint_writer
from elasticml.runtime.checkpoints.attempt_claim import AttemptClaim
from elasticml.runtime.checkpoints.checkpoint_store import (
    checkpoint_of,
    read_checkpoint,
    write_checkpoint,
)
from elasticml.training.checkpoint import check_same_job
from tests.sim.small_jobs import VirtualJob

N_ROWS, N_COLUMNS = 400, 12
BATCH_GRADIENT = {"name": "batch_gradient", "optimizer": "gd", "l2": 1e-2}
COCOA = {"name": "cocoa", "loss": "hinge", "l2": 1e-2, "seed": 0}


def rows(seed: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_ROWS, N_COLUMNS))
    y = np.where(X @ rng.normal(size=N_COLUMNS) + rng.normal(size=N_ROWS) > 0, 1.0, -1.0)
    return from_arrays(X, y)


def record(place: Path, algorithm: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = {
        "version": 1,
        "job": "job",
        "name": "job",
        "chunk_bytes": 2048,
        "algorithm": algorithm,
        "absent": "auto",
        "stop": {"rounds": 30},
        "seed": 0,
        "members": {"start": 3, "min": 1},
        "checkpoint": {"path": str(place), "every_s": 0},
    }
    return {**made, **changes}


def run(
    record: dict[str, Any], source: Any = None, turn: Callable[[VirtualJob], object] = id
) -> VirtualJob:
    """Run a job to its end; ``turn`` is called whenever its story has grown."""
    job = begun(record, source)
    job.until(lambda: bool(turn(job)) and job.agent.ended.is_set())
    job.end()
    assert job.agent.state == "done", job.agent.error
    return job


def begun(record: dict[str, Any], source: Any = None) -> VirtualJob:
    source = source or rows()
    checkpoint = checkpoint_of(job_record({**record, "data": source.spec()}))
    place = Path(record["checkpoint"]["path"])
    return VirtualJob(
        record, source, resumed=checkpoint, checkpoints=place, check_every_event=False
    )


def cut(record: dict[str, Any], place: Path, at_round: int, source: Any = None) -> VirtualJob:
    """Run a job, and copy the state that a kill -9 in a round would leave to ``place``."""
    job = killed(record, place, at_round, source).end()
    assert job.agent.state == "done", job.agent.error
    return job


def killed(record: dict[str, Any], place: Path, at_round: int, source: Any = None) -> VirtualJob:
    """Run a job until that round; leave the state that a kill -9 would leave in ``place``."""
    job = begun(record, source)
    job.until(lambda: job.agent.machine.state.round >= at_round)
    # The claim of a killed process is free; this process lives.
    left_out = shutil.ignore_patterns("attempt-*")
    shutil.copytree(record["checkpoint"]["path"], place, ignore=left_out)
    return job


def coef(job: VirtualJob) -> Any:
    return job.result().arrays["coef"]


def resumed(
    place: Path, algorithm: dict[str, Any], every_s: float = 1e6, **changes: Any
) -> dict[str, Any]:
    """Make the record of a job that resumes; it writes when members come and go."""
    checkpoint = {"path": str(place), "every_s": every_s}
    return record(place, algorithm, resume=str(place), checkpoint=checkpoint, **changes)


@pytest.mark.parametrize(
    ("settings", "at_round", "rtol"),
    [
        *(({"step": step, "scale": "standard"}, 12, 0.0) for step in ("constant", "decay")),
        # Solvers recompute their cached margins: they differ in the last bits.
        ({"optimizer": "gd"}, 12, 1e-9),
        ({"optimizer": "lbfgs"}, 5, 1e-9),
        *(({"optimizer": name}, 3, 1e-9) for name in ("tron", "newton", "auto")),
    ],
)
def test_descent_resumes_with_the_same_rounds(
    tmp_path: Path, settings: dict[str, Any], at_round: int, rtol: float
) -> None:
    algorithm = {**BATCH_GRADIENT, **settings}
    whole = cut(record(tmp_path / "whole", algorithm), tmp_path / "cut", at_round=at_round)
    again = run(resumed(tmp_path / "cut", algorithm))
    np.testing.assert_allclose(coef(again), coef(whole), rtol=rtol, atol=0.0)
    # Their memory of former rounds is in the checkpoint.
    for name in ("objective", "step"):
        before, after = ([r[name] for r in w.rows[: at_round + 3]] for w in (whole, again))
        assert after == pytest.approx(before, rel=rtol)


@pytest.mark.parametrize(
    "algorithm",
    [
        BATCH_GRADIENT,
        COCOA,
        {"name": "async_sgd", "problem": "kmeans", "k": 3, "mode": "batch", "seed": 0},
    ],
    ids=lambda algorithm: algorithm["name"],
)
def test_a_checkpoint_has_the_model_of_its_round(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    settings = {"evaluate": {"every": 1}, "stop": {"rounds": 6}}
    world = run(record(tmp_path / "place", algorithm, **settings))
    checkpoint = read_checkpoint(str(tmp_path / "place"))
    assert checkpoint is not None
    model, kept = checkpoint.resume_point.model, world.agent.journal.snapshots[checkpoint.round]
    assert kept
    for name, array in kept.items():
        np.testing.assert_array_equal(model[name], array)
    assert not any(name.startswith("model") for name in checkpoint.resume_point.resume.arrays)


def test_no_round_and_no_id_is_reported_twice(tmp_path: Path) -> None:
    killed(record(tmp_path / "whole", BATCH_GRADIENT), tmp_path / "cut", at_round=12).close()
    again = run(resumed(tmp_path / "cut", BATCH_GRADIENT, reached={"round": 15, "seconds": 2.0}))
    journal = again.agent.journal
    assert [row["round"] for row in journal.rows] == [*range(30), 30]
    assert [r["round"] for r in again.events("RoundEnded")] == list(range(30))
    joined = [r["member"] for r in again.events("MemberJoined")]
    assert sorted(joined) == ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2"]
    exchanges = [r["exchange"] for r in again.events("ExchangeEnded")]
    assert len(set(exchanges)) == len(exchanges)
    (event_record,) = again.events("JobResumed")
    assert (event_record["attempt"], event_record["members"]) == (2, ["0.1", "1.1", "2.1"])
    assert event_record["repeated_rounds"] == 15 - event_record["round"]
    assert again.agent.driver_session.summary["attempts"] == 2
    assert again.agent.driver_session.summary["members"]["start"] == 3


def test_models_kept_for_evaluation_and_policy_state_are_in_the_checkpoint(tmp_path: Path) -> None:
    settings = {
        "evaluate": {"every": 4},
        "policies": [{"name": "tune_local_work", "window": 2, "cool": 2}],
        "stop": {"rounds": 24},
    }
    whole = cut(record(tmp_path / "whole", COCOA, **settings), tmp_path / "cut", at_round=14)
    result = read_checkpoint(str(tmp_path / "cut"))
    assert result is not None
    assert sorted(result.snapshots) == [0, 4, 8, 12]
    assert result.resume_point.machine["policies"]["tune_local_work"]["since_round"] > 0
    again = run(resumed(tmp_path / "cut", COCOA, **settings))
    kept, before = again.agent.journal.snapshots, whole.agent.journal.snapshots
    assert sorted(kept) == sorted(before)
    assert all(np.array_equal(kept[r]["coef"], before[r]["coef"]) for r in (0, 4, 8, 12))


def test_a_resumed_job_returns_the_best_model_of_both_attempts(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    X = rng.normal(size=(240, 40))
    y = np.sign(X[:, 0] + 1.5 * rng.normal(size=240))
    source = with_scored_rows(from_arrays(X, y), share=0.3, seed=0, validation=None)
    overfitting = {"name": "batch_gradient", "l2": 1e-8, "optimizer": "lbfgs", "scale": "none"}
    rules = {"metric": ["neg_log_loss"], "every": 1, "patience": 6, "min_delta": 0.0}
    whole = cut(
        record(tmp_path / "whole", overfitting, validate=rules), tmp_path / "cut", 5, source
    )
    best = whole.result().summary["validation"]
    again = run(resumed(tmp_path / "cut", overfitting, validate=rules), source)
    assert best["round"] < 5 < len(again.rows)  # the first attempt has found it
    assert again.result().summary["validation"] == best
    assert np.array_equal(coef(whole), coef(again))


def test_two_checkpoints_are_kept_and_a_damaged_one_is_skipped(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(record(place, BATCH_GRADIENT))
    names = sorted(path.name for path in place.iterdir())
    assert sum(name.startswith("checkpoint-") for name in names) == 2
    # Parts of the journal absorb those before them: there are a few at any time.
    assert sum(name.startswith("journal-") for name in names) <= 8
    newest = read_checkpoint(str(place))
    assert newest is not None
    last = place / max(name for name in names if name.startswith("checkpoint-"))
    good = last.read_bytes()
    # No digest covers the first line: a changed version does not hide the older checkpoint.
    last.write_bytes(good.replace(b'"format": 3', b'"format": 5'))
    older = read_checkpoint(str(place))
    assert older is not None
    assert older.number == newest.number - 1
    assert "format 5" in older.notes[0]
    last.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    again = run(resumed(place, BATCH_GRADIENT))
    (event,) = again.events("JobResumed")
    assert event["notes"] == [f"{last.name} is damaged and skipped: its digest does not match"]
    assert not last.exists()  # unusable


@pytest.mark.parametrize(
    ("kind", "how", "kept"),
    [("journal", "damaged", [0, 8, 16, 24]), ("model", "missing", [8, 16, 24])],
)
def test_a_job_resumes_without_a_file_that_both_checkpoints_share(
    tmp_path: Path, kind: str, how: str, kept: list[int]
) -> None:
    algorithm = {**BATCH_GRADIENT, "step": "constant"}
    settings = {"evaluate": {"every": 8}}
    place = tmp_path / "cut"
    whole = cut(record(tmp_path / "whole", algorithm, **settings), place, at_round=21)
    shared = min(path for path in place.iterdir() if path.name.startswith(f"{kind}-"))
    if how == "damaged":
        shared.write_bytes(shared.read_bytes()[:-2])
    else:
        shared.unlink()
    again = run(resumed(place, algorithm, **settings))
    assert np.array_equal(coef(whole), coef(again))
    (event,) = again.events("JobResumed")
    # Both checkpoints lack it, and the newest is used.
    assert event["round"] in (20, 21)
    assert [shared.name in note for note in event["notes"]] == [True]
    rows, former = again.rows, {row["round"]: row for row in whole.rows}
    assert [row["objective"] for row in rows] == [former[r["round"]]["objective"] for r in rows]
    assert (len(rows) < len(former)) == (kind == "journal")
    assert sorted(again.agent.journal.snapshots) == kept
    # The resumed job's own checkpoints are whole.
    newest = read_checkpoint(str(place))
    assert newest is not None
    assert newest.is_whole


def test_a_checkpoint_is_refused_by_name_when_its_own_file_is_damaged(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(record(place, BATCH_GRADIENT))
    own = sorted(path for path in place.iterdir() if path.name.startswith("checkpoint-"))
    for path in own:
        path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ConfigError, match=rf"readable.*{own[-1].name} is damaged"):
        run(resumed(place, BATCH_GRADIENT))


def test_changes_that_prevent_resuming_are_refused_in_one_line(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(record(place, BATCH_GRADIENT))
    with pytest.raises(ConfigError, match=r"another job: algorithm\.l2 was 0\.01, is 0\.5"):
        run(resumed(place, {**BATCH_GRADIENT, "l2": 0.5}))
    with pytest.raises(ConfigError, match=r"another job: data\.digest was"):
        run(resumed(place, BATCH_GRADIENT), source=rows(seed=4))
    with pytest.raises(ConfigError, match=r"there is no readable checkpoint in"):
        run(resumed(tmp_path / "nowhere", BATCH_GRADIENT))
    with pytest.raises(ConfigError, match="holds a checkpoint of job job, round 29"):
        run(record(place, BATCH_GRADIENT))
    result = read_checkpoint(str(place))
    assert result is not None
    with pytest.raises(DataError, match="the data have changed since the checkpoint was written"):
        check_same_job(result, result.record, "another fingerprint")
    # End conditions may change, also if the algorithm reads them.
    more = result.record.changed(algorithm={**result.record.algorithm, "epochs": 40})
    check_same_job(result, more, result.fingerprint)


def test_a_missing_checkpoint_folder_is_reported_once_and_the_job_continues(tmp_path: Path) -> None:
    place = tmp_path / "place"

    def take_away(job: VirtualJob) -> bool:
        if job.agent.machine.state.round == 5 and place.exists():
            shutil.rmtree(place)
        return True

    world = run(record(place, BATCH_GRADIENT), turn=take_away)
    (event_record,) = world.events("CheckpointFailed")
    assert "has been removed" in event_record["error"]
    assert not place.exists()


@pytest.mark.parametrize("n_failing", [2, 10**6])
def test_a_checkpoint_that_fails_for_any_reason_is_tried_again(
    n_failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, n_calls = write_checkpoint, 0

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if 3 <= n_calls < 3 + n_failing:
            raise KeyError("a credential")
        return real(*args, **options)

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", failing)
    job = run(record(tmp_path / "place", BATCH_GRADIENT))
    (failed,) = job.events("CheckpointFailed")
    assert failed["error"] == "'a credential'"
    is_last = job.events("CheckpointWritten")[-1]["round"] < failed["round"]
    assert is_last == (n_failing > 2)


def test_a_job_ends_whose_last_checkpoint_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(facts: DatasetStats) -> Any:
        raise RuntimeError("no facts")

    job = begun(record(tmp_path / "place", BATCH_GRADIENT))
    job.until(lambda: len(job.agent.journal.rows) > 3)
    monkeypatch.setattr(DatasetStats, "to_json", failing)
    job.until(lambda: bool(job.events("CheckpointFailed")))
    job.cancel()
    job.end()
    assert job.agent.state == "cancelled"
    assert list((tmp_path / "place").glob("attempt-*")) == []  # the place is free


def test_one_of_two_resumes_of_a_place_gets_it_and_the_other_is_told_who_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "HANDOVER_S", 0.0)
    place = tmp_path / "cut"
    killed(record(tmp_path / "whole", BATCH_GRADIENT), place, at_round=12).close()
    known = job_record(resumed(place, BATCH_GRADIENT))
    first, second = (AttemptClaim(job, known.checkpoint) for job in ("one", "two"))
    assert checkpoint_of(known, first) is not None
    with pytest.raises(ConfigError, match=f"job one, driven by process {os.getpid()} on "):
        checkpoint_of(known, second)
    first.release()  # the place is free at once
    assert checkpoint_of(known, second).attempt == 1
    assert (first.number, second.number) == (2, 2)


def test_a_job_whose_claim_had_ended_touches_no_file_of_the_later_attempt(tmp_path: Path) -> None:
    place = tmp_path / "cut"
    killed(record(tmp_path / "whole", BATCH_GRADIENT), place, at_round=12).close()
    stop = {"rounds": 40}
    first = begun(resumed(place, BATCH_GRADIENT, job="one", every_s=0.0, stop=stop))
    first.until(lambda: first.agent.machine.state.round == 20)
    (claim,) = place.glob("attempt-*.json")
    values = json.loads(claim.read_bytes())
    values["renewed_s"] -= values["free_after_s"]
    claim.write_text(json.dumps(values))
    second = begun(resumed(place, BATCH_GRADIENT, job="two", every_s=0.0, stop=stop))
    second.until(lambda: (place / "attempt-003.json").exists())
    first.end()
    checkpoint = read_checkpoint(str(place))
    assert checkpoint is not None
    assert checkpoint.notes == ()
    second.end()
    assert [job.agent.state for job in (first, second)] == ["done", "done"]
    (failed,) = first.events("CheckpointFailed")
    assert "attempt 2, had ended, and a later attempt writes there" in failed["error"]
    newest = read_checkpoint(str(place))
    assert newest is not None
    assert (newest.attempt, newest.record.job, newest.notes) == (3, "two", ())


def test_the_claim_of_a_dead_process_is_free_and_its_job_may_take_it_over(tmp_path: Path) -> None:
    place = CheckpointPlace(path=str(tmp_path), every_s=20.0)
    dead = subprocess.run(
        [sys.executable, "-c", CLAIMS, str(tmp_path)], check=True, capture_output=True, text=True
    )
    claim = AttemptClaim("new", place)
    claim.take()
    assert (dead.stdout.strip(), claim.number) == ("1", 2)
    with pytest.raises(ConfigError, match=r"job new, driven by process \d+ on .* ends in 60 s"):
        AttemptClaim("other", place).take()
    same = AttemptClaim("new", place)
    same.take()
    assert same.number == 3
    same.release()
    claim.release()
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-001.json"]


#: Claims a place, and ends without releasing it.
CLAIMS = """
import sys
from elasticml.protocol.job_record import CheckpointPlace, job_record
from elasticml.runtime.checkpoints.attempt_claim import AttemptClaim
claim = AttemptClaim("old", CheckpointPlace(path=sys.argv[1], every_s=0.0))
claim.take()
print(claim.number)
"""
