"""Checks primal CoCoA against X and y themselves: objective, certificates, scikit-learn's model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.linear_model import ElasticNet

from elasticml.algorithms.base import Exchange, Outcome
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.readers.arrays import from_arrays
from elasticml.protocol.events import ExchangeHeader
from tests.serial_world import ExchangeRecord, Run, World, facts_of

F64 = NDArray[np.float64]


def split_columns(
    X: Any, y: F64, weights: F64 | None, members: int, chunk_columns: int
) -> list[list[Chunk]]:
    """Give columns to members, this many to a chunk if they are dense."""
    source = from_arrays(X, y, weights, by="columns")
    size = chunk_columns * 8 * (len(y) + 1) + 576
    chunks = [c for b in source.blocks() for c in source.read(b.index, size, members)[0]]
    return [chunks[k::members] for k in range(members)]


def checked_world(reference: Any, members: int, settings: dict[str, Any]) -> World:
    """Make a world that a reference checks; ``settings`` are the world's and the algorithm's."""
    names = ("absent", "schedule", "reloads", "between", "tuned", "parallel")
    options = {name: settings.pop(name) for name in names if name in settings}
    return World(
        settings={**reference.settings, **settings},
        parts=reference.parts(members),
        algorithm="primal_cocoa",
        watch=reference.watch,
        **{"absent": "reload", **options},
    )


def stepped_from(world: World, record: ExchangeRecord, d: int) -> F64 | None:
    """Return the chunks' coefficients (d,) of which a pass's residual should be exact.

    Columns that return in this exchange may bring a step that the residual lacks: the trainer
    learns of them with its outcome.
    """
    outcome = record.outcome
    same = len(world.exchanges) < 2 or world.exchanges[-2].outcome.absent_examples == 0
    is_whole = outcome.absent_examples == 0 and record.exchange.operation == "pass"
    if not (is_whole and same) or float(outcome.arrays["unset"]) > 0.0:
        return None
    coef = np.zeros(d)
    for member in record.contributors:
        for chunk in world.chunks[member]:
            here = chunk.labels >= 0
            coef[chunk.labels[here].astype(int)] = chunk.state["coef"][here]
    return coef


def check_rows(reference: Any, rows: Sequence[Any], slack: float) -> None:
    """Check every row's objective, and that its gap is not too small."""
    for row in rows:
        coef, intercept = row.model["coef"][0], float(row.model["intercept"][0])
        true = reference.objective(coef, intercept)
        assert abs(row.objective - true) <= slack * true
        assert true - reference.optimum <= row.gap + slack * true
        if row.extra["dual"] is not None:
            assert row.extra["dual"] <= reference.optimum * (1.0 + slack)


@dataclass(kw_only=True)
class ColumnReference:
    """One problem, and every certificate for it."""

    X: Any
    y: F64
    weights: F64 | None = None
    l1: float = 0.1
    l2: float = 0.0
    intercept: bool = True
    positive: bool = False
    #: Relative errors of the residual in exchanges in which it should have been exact.
    errors: list[float] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "l1": self.l1,
            "l2": self.l2,
            "intercept": self.intercept,
            "positive": self.positive,
        }

    @cached_property
    def s(self) -> F64:
        s = np.ones(len(self.y)) if self.weights is None else self.weights
        return s / s.sum()

    def objective(self, coef: F64, intercept: float) -> float:
        """Return a model's objective in the mean form."""
        error = self.y - self.X @ coef - intercept
        penalty = self.l1 * np.abs(coef).sum() + 0.5 * self.l2 * coef @ coef
        return float(0.5 * self.s @ error**2 + penalty)

    @cached_property
    def best(self) -> Any:
        """Return scikit-learn's model at its tightest tolerance."""
        alpha = self.l1 + self.l2
        model = ElasticNet(
            alpha=alpha,
            l1_ratio=self.l1 / alpha,
            fit_intercept=self.intercept,
            positive=self.positive,
            tol=1e-15,
            max_iter=200_000,
        )
        X = self.X.tocsc() if sp.issparse(self.X) else self.X
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit(X, self.y, self.weights)

    @cached_property
    def optimum(self) -> float:
        return self.objective(self.best.coef_, self.best.intercept_)

    def parts(self, members: int, chunk_columns: int = 2) -> list[list[Chunk]]:
        """Give the columns to members, this many to a chunk if they are dense."""
        return split_columns(self.X, self.y, self.weights, members, chunk_columns)

    def world(self, members: int, **settings: Any) -> World:
        """Make a world that the reference checks; ``settings`` are its and the algorithm's."""
        return checked_world(self, members, settings)

    def watch(self, world: World, record: ExchangeRecord) -> None:
        """Compare a residual with that of the chunks' coefficients."""
        coef = stepped_from(world, record, self.X.shape[1])
        if coef is None:
            return
        error = self.y - self.X @ coef
        if self.intercept:
            error = error - self.s @ error
        root = np.sqrt(np.ones(len(self.y)) if self.weights is None else self.weights)
        sent = record.exchange.model["residual"]
        scale = max(float(np.linalg.norm(root * self.y)), 1e-300)
        self.errors.append(float(np.linalg.norm(root * error - sent)) / scale)

    def check_rows(self, rows: Sequence[Any], slack: float = 1e-9) -> None:
        """Check every row's objective, and that its gap is not too small."""
        check_rows(self, rows, slack)


def resumed(reference: Any, resume: Any) -> dict[str, Any]:
    """Run a resumed trainer to its end, over all chunks; also return its initial state."""
    chunks = [chunk for part in reference.parts(1) for chunk in part]
    facts = facts_of(chunks)
    made, settings = algorithm("primal_cocoa"), {**reference.settings, "tolerance": 1e-11}
    trainer = made.trainer(settings, facts, "reload", resume=resume)
    solver = made.solver(settings, facts)
    sent: Any = None
    rounds = 0
    results: dict[str, Any] = {}
    while True:
        try:
            request = trainer.send(sent)
        except StopIteration as end:
            return {**results, "run": Run(rows=[], model=end.value, exchanges=[])}
        if not isinstance(request, Exchange):
            results.setdefault("gap", request.gap)
            rounds += 1
            sent = rounds < 2000
            continue
        work = ExchangeHeader(
            exchange=1, operation=request.operation, model=request.model,
            parameters=request.parameters, returns=request.returns,
        )  # fmt: skip
        arrays = solver.compute(work, chunks, Serial())
        if request.operation == "certify":
            results.setdefault("coef", arrays["coef"])
        sent = Outcome(exchange=1, arrays=arrays, examples=facts.n_rows, absent_examples=0)
