"""Passes over rows that stream from disk: every row once, true sums, the same optimum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasticml.algorithms.cocoa.permutation import VisitOrder
from elasticml.data.out_of_core import mapped_memory
from elasticml.data.out_of_core.store import OutOfCoreStore
from tests.unit.algorithms.cocoa.local_problem import on_disk, problem
from tests.unit.algorithms.cocoa.test_solver import ZERO, ask, image, make


def out_of_core(folder: Path, batch_bytes: int) -> OutOfCoreStore:
    made = OutOfCoreStore(2**20, folder, lambda: 0)
    made.batch_bytes = batch_bytes
    return made


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_each_bucket_is_visited_once_whatever_stays_in_memory(tmp_path: Path, share: float) -> None:
    p = on_disk(problem("csr", "hinge"), tmp_path)
    orders, here = VisitOrder(), p.pieces[0].chunk.out_of_core
    orders.bind(p.pieces, 8)
    assert here is not None
    first = [part.tolist() for part in orders.epoch((3, 1, 0), share)]
    visits = sorted(visit for part in first for visit in part)
    numbers = {visit >> 32 for visit in visits}
    assert len(numbers) == len(p.pieces) * share
    assert visits == [
        (k << 32) + row for k in sorted(numbers) for row in range(0, p.pieces[k].chunk.n_rows, 8)
    ]
    here.set_importance({p.pieces[2].chunk.id: 1.0})
    here.plan([piece.chunk for piece in p.pieces])
    assert first == [part.tolist() for part in orders.epoch((3, 1, 0), share)]
    assert first != [part.tolist() for part in orders.epoch((3, 2, 0), share)]


def test_certificates_rank_chunks_by_their_share_of_the_gap(tmp_path: Path) -> None:
    solver, loose = make()
    here = out_of_core(tmp_path, 1)
    ranked: dict[object, float] = {}
    chunks = here.settle(loose)
    here.set_importance = ranked.update  # type: ignore[method-assign]
    ask(solver, chunks, "certify", ZERO, serial=1, settle=0)
    step = ask(solver, chunks, "pass", ZERO, serial=2, settle=1)["dv"]
    partial = ask(solver, chunks, "certify", step, serial=3, settle=2, gamma=1.0)
    np.testing.assert_allclose(image(chunks), step, rtol=1e-12, atol=1e-15)
    gap = float(partial["primal"] - partial["dual"]) + 0.1 * 60 * float(step @ step)
    np.testing.assert_allclose(sum(ranked.values()), gap, rtol=1e-9)
    assert ranked.keys() == {chunk.id for chunk in chunks}
    assert min(ranked.values()) > -1e-12


def test_a_new_job_reads_bodies_once_in_its_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate at zero reads nothing, and rows' norms come from a sample."""
    solver, loose = make()
    chunks = out_of_core(tmp_path, 1).settle(loose)
    fetched: list[int] = []
    monkeypatch.setattr(mapped_memory, "fetch", lambda body: fetched.append(id(body)))
    partial = ask(solver, chunks, "certify", ZERO, serial=1, settle=0)
    assert (float(partial["primal"]), float(partial["dual"])) == (60.0, 0.0)
    assert not partial["image"].any()
    assert fetched == []
    step = ask(solver, chunks, "pass", ZERO, serial=2, settle=1)["dv"]
    assert sorted(fetched) == sorted(id(chunk.body) for chunk in chunks)
    # A repeated exchange with nonzero states reads everything.
    ask(solver, chunks, "certify", step, serial=3, settle=2, gamma=1.0)
    assert len(fetched) == 2 * len(chunks)
    ask(solver, chunks, "certify", ZERO, serial=4, settle=3)
    assert len(fetched) == 3 * len(chunks)
    np.testing.assert_allclose(image(chunks), step, rtol=1e-12, atol=1e-15)


def test_a_start_from_a_models_duals_reads_the_rows(tmp_path: Path) -> None:
    solver, loose = make()
    chunks = out_of_core(tmp_path, 1).settle(loose)
    partial = ask(solver, chunks, "certify", ZERO, serial=1, settle=0, fill="map")
    assert np.abs(partial["image"]).max() > 0.1
