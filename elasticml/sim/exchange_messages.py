"""The partials that virtual members send in an exchange, and a member's share of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticml.algorithms.base import Work
from elasticml.ids import MemberId
from elasticml.protocol import events as ev
from elasticml.sim.message_sizes import SharedExchange
from elasticml.training.array_buffers import Vector


@dataclass(slots=True)
class SentPartial:
    """A partial on the network, with the event for its receiver's machine."""

    event: ev.PartialArrived
    array: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAnchor:
    """A kept partial that is sent to the driver as an anchor term."""

    event: ev.AnchorArrived
    array: Vector


@dataclass(slots=True)
class Share:
    """This member's arrays of one exchange."""

    header: Work
    shared: SharedExchange
    #: The own partial; after the sum was sent, the subtree's sum.
    total: Vector | None = None
    #: Compute seconds of the members whose partials are in ``total``.
    compute_s: dict[MemberId, float] = field(default_factory=dict)
