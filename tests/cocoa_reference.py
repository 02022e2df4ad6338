"""Checks CoCoA in the serial world by recomputing everything from all rows.

After every exchange it reads the dual variables from the chunks' states, adds those that are frozen
with absent chunks, and compares the trainer's model and certificates with sums over all rows. Rows
are known by their chunk; columns are not scaled, an intercept is a separate column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elasticml.algorithms.base import RoundEnd
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import ChunkId
from tests.log_cosh import LOG_COSH
from tests.serial_world import ExchangeRecord, World

F64 = np.ndarray


def losses(loss: str, z: F64, y: F64) -> F64:
    """Loss of each row."""
    if loss == "squared":
        return 0.5 * (z - y) ** 2
    if loss == LOG_COSH:
        return np.logaddexp(z - y, y - z) - np.log(2.0)
    if loss == "logistic":
        return np.logaddexp(0.0, -y * z)
    room = np.maximum(1.0 - y * z, 0.0)
    return room if loss == "hinge" else room * room


def gains(loss: str, alpha: F64, y: F64) -> F64:
    """``-loss*(-alpha)`` of each row."""
    if loss == "squared":
        return alpha * y - 0.5 * alpha**2
    if loss == LOG_COSH:
        return alpha * y - alpha * np.arctanh(alpha) - 0.5 * np.log1p(-(alpha**2))
    if loss == "hinge":
        return alpha
    if loss == "squared_hinge":
        return alpha - 0.25 * alpha**2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(a > 0.0, a * np.log(a), 0.0) for a in (alpha, 1.0 - alpha)]
    return -parts[0] - parts[1]


@dataclass(slots=True, kw_only=True)
class CocoaReference:
    """All rows in one place, by chunk."""

    loss: str
    l2: float
    #: Of each chunk, in the order of ``rows``.
    rows: dict[ChunkId, F64]
    labels: dict[ChunkId, F64]
    weights: dict[ChunkId, F64]
    #: Dual variables of absent chunks; zero for the others.
    frozen: dict[ChunkId, F64] = field(default_factory=dict)
    kept: dict[int, dict[ChunkId, F64]] = field(default_factory=dict)
    #: Relative errors of the model, one for each exchange in which all examples took part.
    errors: list[float] = field(default_factory=list)
    #: Dual objective after each certificate, and primal objective at its model.
    duals: list[float] = field(default_factory=list)
    primals: list[float] = field(default_factory=list)

    @staticmethod
    def of(
        parts: Sequence[Sequence[Chunk]], loss: str, l2: float, intercept: float = 0.0
    ) -> CocoaReference:
        """Read the rows from dense or sparse chunks whose labels are -1 and 1, or real."""
        reference = CocoaReference(loss=loss, l2=l2, rows={}, labels={}, weights={})
        for chunk in (chunk for part in parts for chunk in part):
            x = chunk.values
            if chunk.layout.kind != "dense":
                x = np.zeros((chunk.n_rows, chunk.layout.n_columns))
                of = np.repeat(np.arange(chunk.n_rows), np.diff(chunk.indptr))
                x[of, chunk.indices] = chunk.values if chunk.values.size else 1.0
            if intercept:
                x = np.hstack([x, np.full((chunk.n_rows, 1), intercept)])
            reference.rows[chunk.id] = x.astype(np.float64)
            reference.labels[chunk.id] = np.array(chunk.labels)
            ones = np.ones(chunk.n_rows)
            reference.weights[chunk.id] = ones if chunk.weights is None else np.array(chunk.weights)
        return reference

    # --- sums over all rows ---------------------------------------------------------------------

    @property
    def weight(self) -> float:
        return float(sum(s.sum() for s in self.weights.values()))

    def primal(self, v: F64) -> float:
        total = sum(
            float(self.weights[c] @ losses(self.loss, x @ v, self.labels[c]))
            for c, x in self.rows.items()
        )
        return total / self.weight + 0.5 * self.l2 * float(v @ v)

    def image(self, alpha: dict[ChunkId, F64]) -> F64:
        """Return the model that belongs to dual variables."""
        folds = self.loss not in ("squared", LOG_COSH)
        each = (
            x.T @ (self.weights[c] * alpha[c] * (self.labels[c] if folds else 1.0))
            for c, x in self.rows.items()
        )
        return np.asarray(sum(each)) / (self.l2 * self.weight)

    def dual(self, alpha: dict[ChunkId, F64]) -> float:
        v = self.image(alpha)
        total = sum(
            float(self.weights[c] @ gains(self.loss, a, self.labels[c])) for c, a in alpha.items()
        )
        return total / self.weight - 0.5 * self.l2 * float(v @ v)

    # --- checks -------------------------------------------------------------------------------

    def alpha(self, world: World, members: Sequence[int]) -> dict[ChunkId, F64]:
        """Return the dual variables of all rows: in the chunks that took part, frozen, or zero."""
        results = {c: self.frozen.get(c, np.zeros(len(y))) for c, y in self.labels.items()}
        for member in members:
            for chunk in world.chunks[member]:
                if "alpha" in chunk.state:
                    results[chunk.id] = chunk.state["alpha"].copy()
        return results

    def watch(self, world: World, record: ExchangeRecord) -> None:
        """Compare an exchange with its recomputation."""
        outcome, operation = record.outcome, record.exchange.operation
        if operation not in ("pass", "certify"):
            return
        took_part = record.contributors
        assert sorted(c.id for m in world.chunks for c in world.chunks[m]) == sorted(self.rows)
        if outcome.opened is not None:
            lost = [c.id for m in world.open for c in world.chunks[m]]
            known = {} if outcome.anchor is None else self.kept[int(outcome.anchor.exchange)]
            self.frozen.update({c: known.get(c, np.zeros(len(self.labels[c]))) for c in lost})
        here = {chunk.id for member in took_part for chunk in world.chunks[member]}
        self.frozen = {c: a for c, a in self.frozen.items() if c not in here}
        if operation == "certify":
            self.duals.append(self.dual(self.alpha(world, took_part)))
            self.primals.append(self.primal(record.exchange.model["sent"]))
            states = {c.id: c.state["alpha"] for m in took_part for c in world.chunks[m]}
            self.kept[int(outcome.exchange)] = {c: a.copy() for c, a in states.items()}
        elif float(outcome.arrays["unset"]) == 0.0 and outcome.opened is None:
            v = record.exchange.model["v"]
            error = np.linalg.norm(self.image(self.alpha(world, took_part)) - v)
            self.errors.append(float(error / max(1e-300, np.linalg.norm(v))))

    def check_rows(self, rows: Sequence[RoundEnd], slack: float = 1e-9) -> None:
        """Check that every row's objective and gap are upper bounds of the true ones at its
        model.
        """
        for row in rows:
            w = np.append(row.model["coef"][0], row.model["intercept"])
            w = w[: next(iter(self.rows.values())).shape[1]]
            true = self.primal(w)
            assert row.objective is not None
            assert row.gap is not None
            assert row.objective >= true - slack * true
            if row.objective_kind == "exact":
                assert abs(row.objective - true) <= slack * true
            assert row.gap >= 0.0


def world_of(reference: CocoaReference, parts: Sequence[Sequence[Chunk]], **settings: Any) -> World:
    """Make a world that the reference checks; ``settings`` are the world's and the algorithm's."""
    names = ("absent", "schedule", "reloads", "between", "tuned", "parallel", "has_anchors")
    options = {name: settings.pop(name) for name in names if name in settings}
    return World(
        settings={"loss": reference.loss, "l2": reference.l2, **settings},
        parts=parts,
        algorithm="cocoa",
        watch=reference.watch,
        **{"absent": "auto", **options},
    )
