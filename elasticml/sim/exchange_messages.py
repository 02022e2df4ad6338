"""What virtual members and the driver send each other in an exchange; a member's share of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticml.algorithms.base import Exchange, Work
from elasticml.ids import ExchangeId, Generation, MemberId
from elasticml.protocol import events as ev
from elasticml.training.array_buffers import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class SentModel:
    """What goes down: the trainer's exchange; its arrays are shared, and nobody writes to them."""

    id: ExchangeId
    generation: Generation
    exchange: Exchange
    #: What every member's machine is told when it has come, and when the own share is computed.
    arrived: ev.ModelArrived
    computed: ev.Computed
    packed: Vector
    #: What every member is asked to compute: made once, for all of them.
    work: Work
    #: Doubles of a partial, and bytes of the frames that carry model and partial.
    values: int
    down_bytes: int
    up_bytes: int


@dataclass(slots=True)
class SentPartial:
    """A partial that comes up; the event is the one that its receiver's machine is given."""

    event: ev.PartialArrived
    array: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAnchor:
    """A kept partial that comes up as an anchor term."""

    event: ev.AnchorArrived
    array: Vector


@dataclass(slots=True)
class Share:
    """This member's arrays of one exchange."""

    sent: SentModel
    #: The own partial; after the sum went up, the subtree's sum.
    total: Vector | None = None
    #: How long the members whose partials are in ``total`` have computed.
    compute_s: dict[MemberId, float] = field(default_factory=dict)
