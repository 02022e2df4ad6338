"""Make a job's policies from its record; every driver calls this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticml.control.policy import Policy
from elasticml.control.settings import Settings
from elasticml.policies.registry import make_policies


def policies_of_job(record: Mapping[str, Any], settings: Settings) -> list[Policy]:
    """Make the policies that a job's record lists, and those that every job has.

    If the number of holders is decided later by the members' memory, the policies for two holders
    are made: with a view that asks for one holder they copy nothing.

    Raises
    ------
    ConfigError
        When an entry is invalid.
    """
    algorithm = record.get("algorithm") or {}
    return make_policies(
        record.get("policies") or (),
        absent=settings.absent,
        holders=2 if settings.holders is None else settings.holders,
        algorithm=str(algorithm.get("name")),
        gap_target=settings.gap_target,
        members_min=settings.members_min,
        local_epochs=algorithm.get("local_epochs"),
        is_paper=algorithm.get("mode") == "paper",
    )
