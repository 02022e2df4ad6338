"""The policies of a job, as every driver makes them from its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticml.control.policy import Policy
from elasticml.control.settings import Settings
from elasticml.policies.registry import make_policies


def policies_of_job(record: Mapping[str, Any], settings: Settings) -> list[Policy]:
    """Make what a job's record asks for, and what every job has.

    Where the members' memory decides on the holders, policies for two of them are there: a view
    that wants one has no copies made.

    Raises
    ------
    ConfigError
        When an entry is wrong.
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
