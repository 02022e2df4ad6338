"""Run a trainer: sum partials, drive the trainer's generator, and keep its arrays.

Calls must not overlap. The runtime makes them in a worker thread, so that its event loop only sees
events; the simulator makes them inline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from elasticml.algorithms.base import (
    Anchor,
    Arrays,
    Exchange,
    KeptModel,
    Model,
    Outcome,
    Parallel,
    Proceed,
    Resume,
    RoundEnd,
    Scalar,
    Trainer,
)
from elasticml.control.tree_node import KEPT_MAX
from elasticml.data.chunks.checksums import digest_of, digest_of_arrays
from elasticml.errors import ElasticmlError, JobFailedError, one_line, shown
from elasticml.ids import ExchangeId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Deliver
from elasticml.training.array_buffers import (
    Vector,
    is_finite,
    merge_all,
    n_values,
    pack,
    unpack,
)

#: Number of kept exchanges whose shapes are stored: more than members keep partials of.
SHAPES_KEPT = KEPT_MAX + 2


class TrainerRunner:
    """A running trainer.

    Parameters
    ----------
    trainer : generator
        Not started yet.
    first_round : int
        The round with which it starts.
    """

    def __init__(self, trainer: Trainer, first_round: int = 0) -> None:
        self._trainer = trainer
        self._round = first_round
        #: Members of whose partials of this round some were not finite, with the chunk, or "".
        self.not_finite: dict[str, str] = {}
        #: Allocates the buffer for a packed model, given its bytes.
        self.new_buffer: Callable[[int], Vector] = _new_buffer
        #: Threads that add long partials; None for the calling thread alone.
        self.parallel: Parallel | None = None
        #: The trainer's last exchange, and its model in one buffer.
        self.exchange: Exchange | None = None
        self.packed: Vector = np.empty(0)
        self.round_end: RoundEnd | None = None
        self.model: Model | None = None
        self.error: BaseException | None = None
        #: Digest of all received sums and all sent models, in order.
        self.digest = 0
        #: Shapes of the last kept exchanges, by id, oldest first; used to unpack anchors.
        self._kept_shapes: dict[ExchangeId, Mapping[str, Any]] = {}

    def start(self) -> ev.Event:
        """Run the trainer to its first request."""
        return self._advance(None, first=True)

    def proceed(self, go_on: bool, tuned: Mapping[str, Scalar] | None = None) -> ev.Event:
        """Reply to the end of a round."""
        return self._advance(Proceed(go_on=go_on, tuned=tuned or {}))

    def deliver(
        self,
        command: Deliver,
        inputs: Sequence[Vector],
        anchor: Sequence[tuple[int, Vector]],
    ) -> ev.Event:
        """Add the inputs in their order, and send the outcome to the trainer."""
        exchange = self.exchange
        assert exchange is not None
        total = np.empty(n_values(exchange.returns))
        merge_all(inputs, exchange.reduce, total, self.parallel)
        self.digest = digest_of(total, self.digest)
        outcome = Outcome(
            exchange=command.exchange,
            arrays=unpack(total, exchange.returns),
            examples=command.examples,
            absent_examples=command.absent_examples,
            absent=command.absent,
            opened=command.opened,
            anchor=self._anchor(command, anchor),
            members=command.contributors.bit_count(),
        )
        if exchange.keep:
            # An anchor refers to the last exchange without losses, which may not be the last one.
            self._kept_shapes[command.exchange] = exchange.returns
            if len(self._kept_shapes) > SHAPES_KEPT:
                del self._kept_shapes[next(iter(self._kept_shapes))]
        return self._advance(outcome)

    def _anchor(self, command: Deliver, parts: Sequence[tuple[int, Vector]]) -> Anchor | None:
        of = command.anchor_exchange
        shapes = None if of is None else self._kept_shapes.get(of)
        if of is None or shapes is None or not parts:
            return None
        total = np.zeros_like(parts[0][1])
        for sign, partial in parts:
            total += sign * partial
        self.digest = digest_of(total, self.digest)
        arrays = unpack(total, shapes)
        return Anchor(exchange=of, arrays=arrays)

    def _advance(self, value: object, first: bool = False) -> ev.Event:
        try:
            request = self._next(value, first)
            if isinstance(request, Model):
                return self._finished(request)
            if isinstance(request, RoundEnd):
                self._check_finite(request.next_model or request.model)
                self._round, self.not_finite = self._round + 1, {}
        except ElasticmlError as error:
            self.error = error
            return ev.Failed(cause="trainer", reason=error.message)
        except Exception as error:
            self.error = error
            return ev.Failed(cause="trainer", reason=f"{type(error).__name__}: {one_line(error)}")
        if isinstance(request, RoundEnd):
            self.round_end = request
            return ev.RoundFinished(cause="trainer", row=_row(request))
        self.exchange = request
        shapes = {name: array.shape for name, array in request.model.items()}
        self.packed = pack(request.model, shapes, self.new_buffer(8 * n_values(shapes)))
        self.digest = digest_of(self.packed, self.digest)
        header = ev.ExchangeHeader(
            operation=request.operation,
            model=shapes,
            returns=request.returns,
            parameters=request.parameters,
            reduce=request.reduce,
            keep=request.keep,
        )
        return ev.ExchangeRequested(
            cause="trainer",
            header=header,
            phase=request.phase,
            require_everybody=request.require == "everybody",
            seal=request.seal,
            paced=request.paced,
        )

    def _next(self, value: object, first: bool) -> Exchange | RoundEnd | Model:
        """Return what the trainer asks for next, or its model."""
        if not hasattr(self._trainer, "send"):
            raise JobFailedError(
                f"the trainer is a {type(self._trainer).__name__}, wanted a generator: ask for "
                "sums with yield"
            )
        try:
            return next(self._trainer) if first else self._trainer.send(value)
        except StopIteration as stop:
            if not isinstance(stop.value, Model):
                raise JobFailedError(
                    f"the trainer returned {shown(stop.value)}, wanted a Model: return "
                    "Model(arrays=..., converged=..., reason=...)"
                ) from None
            return stop.value

    def _finished(self, model: Model) -> ev.Event:
        self._check_finite(model.arrays)
        self.model = model
        self.digest = digest_of_arrays(model.arrays, self.digest)
        return ev.TrainerFinished(
            cause="trainer",
            converged=model.converged,
            reason=model.reason,
            objective=model.objective,
            row=row_of_model(model),
        )

    def _check_finite(self, arrays: Arrays) -> None:
        """Refuse a model that is not finite: the job keeps the one before it.

        Members are named only here: an infinite sum of a trial step is no fault.
        """
        wrong = next((name for name, values in arrays.items() if not is_finite(values)), None)
        if wrong is None:
            return
        partials = [
            f"member {member}" + (f" over chunk {chunk}" if chunk else "")
            for member, chunk in sorted(self.not_finite.items())
        ]
        why = "all partials were finite: a step is too long"
        if partials:
            more = f" and {len(partials) - 1} more" if partials[1:] else ""
            why = f"the partial of {partials[0]}{more} has NaN or infinity"
        raise JobFailedError(
            f"array {wrong!r} of the model is not finite after round {self._round}, wanted finite "
            f"numbers: {why}; the last finite model is kept",
            reason="diverged",
        )

    def resume(self, tuned: Mapping[str, Scalar]) -> Resume | None:
        """Return the state to resume after the last round; None if the trainer provides none.

        Parameters
        ----------
        tuned : mapping
            The settings that the trainer is about to receive with the reply to the round's end.
        """
        kept = None if self.round_end is None else self.round_end.resume
        return None if kept is None else replace(kept, tuned=dict(tuned))

    @property
    def kept(self) -> KeptModel | None:
        """The earlier model that the job returns if it ends now; None: it returns the latest."""
        result = self.result()
        return None if result is None else result.kept

    def last_arrays(self) -> Arrays:
        """Return the latest model: the final one, or that of the last round."""
        if self.trained is not None:
            return self.trained.arrays
        end = self.round_end
        return {} if end is None else end.next_model or end.model

    @property
    def trained(self) -> Model | None:
        """The model with which the training has ended; None while it goes on."""
        return self.model or (None if self.exchange is None else self.exchange.result)

    def result(self) -> Model | None:
        """Return the final model, or the best one of a job that was cut short; None if unknown."""
        if self.trained is not None:
            return self.trained
        return None if self.round_end is None else self.round_end.best

    def result_arrays(self) -> Arrays:
        """Return the arrays of :meth:`result`, or the latest model."""
        result = self.result()
        return self.last_arrays() if result is None else result.arrays

    def round_arrays(self) -> Arrays:
        """Return the model with which the last round started."""
        return {} if self.round_end is None else self.round_end.model


def _new_buffer(nbytes: int) -> Vector:
    return np.empty(nbytes // 8)


def row_of_model(model: Model) -> dict[str, Any]:
    """Return the trainer's columns of the history's last row, for the final model."""
    return {
        "objective": model.objective,
        "objective_kind": None if model.objective is None else "exact",
        "gap": model.gap,
        "gap_is_bound": model.gap_is_bound,
        **model.extra,
    }


def _row(end: RoundEnd) -> dict[str, Any]:
    return {
        "objective": end.objective,
        "objective_kind": end.objective_kind,
        "gap": end.gap,
        "gap_is_bound": end.gap_is_bound,
        "step": end.step,
        "stand_ins": end.stand_ins,
        "next_objective": end.next_objective,
        "next_gap": end.next_gap,
        "next_gap_is_bound": end.next_gap_is_bound,
        **end.extra,
    }
