"""A job's demand: how many members it is worth to its cluster, and which to close first.

A cluster that starts and ends workers by itself asks for both numbers. The rules are the job's:
its section ``members``, and the decisions of policies that request and retire members.
"""

from __future__ import annotations

from elasticml.control.job_state import JobState
from elasticml.control.preemption import loss_bytes


def required_members(state: JobState) -> int:
    """Return the members that the job needs to continue, or that its policies have asked for.

    0 if the job has ended; ``members.start`` before it has begun.
    """
    if state.stage == "ended":
        return 0
    settings = state.settings
    least = max(settings.members_min, settings.start_members if state.stage == "gathering" else 1)
    worth = state.members_worth or 0
    if settings.members_max is not None:
        worth = min(worth, settings.members_max)
    return max(least, worth)


def desired_members(state: JobState) -> int:
    """Return the members that pay, for a cluster that grows by itself; 0 if the job has ended.

    What policies decided; without them ``members.max``. A job that sets neither keeps the members
    that it has, and replaces those of its start: it never asks an unlimited cluster for more.
    """
    required = required_members(state)
    settings = state.settings
    if state.stage == "ended" or state.members_worth is not None:
        return required
    if settings.members_max is not None:
        return max(required, settings.members_max)
    return max(required, settings.start_members, state.membership.count("spare", "active"))


def closing_costs(state: JobState) -> dict[str, int]:
    """Return, by address, what closing a worker costs a job, where it has a member.

    Members that leave anyway come first; then those with the fewest bytes to send.
    """
    return {
        record.address: 1 if record.stage == "leaving" else 2 + loss_bytes(state, record.id)
        for record in state.membership.members.values()
    }
