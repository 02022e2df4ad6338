"""The policies that every job has, whatever else it asks for."""

from __future__ import annotations

from collections.abc import Iterable

from elasticml.control.policy import Policy
from elasticml.policies.absence import absence_policy
from elasticml.policies.elastic import ElasticScaling
from elasticml.policies.replicas import Replicas


def with_defaults(
    absent: str, policies: Iterable[Policy] = (), holders: int | None = 1
) -> list[Policy]:
    """Put what every job needs before a job's own policies, unless they are among these.

    Parameters
    ----------
    absent : str
        The job's setting.
    policies : iterable of Policy
        The job's own; one of the same name takes a default's place.
    holders : int, optional
        Members that shall hold each body; None when that is settled later.
    """
    given = list(policies)
    names = {p.name for p in given}
    defaults: list[Policy] = [absence_policy(absent), ElasticScaling()]
    if holders != 1:
        defaults.append(Replicas())
    is_absence_given = bool(names & {"whole_group", "reload"})
    return [
        *(
            p
            for p in defaults
            if p.name not in names
            and not (is_absence_given and p.name in ("whole_group", "reload"))
        ),
        *given,
    ]
