"""Validation of policy settings, whose names and defaults come from the policies' constructors."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from elasticml.specification.settings_model import Explained, unknown_key

#: The key of a policy's name in its entry; not a setting.
NAME = "name"


def settings_of(kind: type) -> dict[str, Any]:
    """Return the settings of a policy class with their defaults; ``...`` marks required ones."""
    parameters = list(inspect.signature(kind).parameters.values())
    return {p.name: ... if p.default is p.empty else p.default for p in parameters}


def entry_of(policy: Any) -> dict[str, Any]:
    """Return a policy's entry in a job's ``policies``: its name and the non-default settings.

    The policy must keep every setting in an attribute of the same name.
    """
    entry: dict[str, Any] = {NAME: policy.name}
    for key, default in settings_of(type(policy)).items():
        value = getattr(policy, key)
        if default is ... or value != default:
            entry[key] = list(value) if isinstance(value, tuple) else value
    return entry


def check_keys(entry: Mapping[str, Any], allowed: Collection[str], path: str) -> None:
    """Raise ConfigError for a key of an entry that is not a setting of its policy."""
    for key in entry:
        if key != NAME and key not in allowed:
            raise unknown_key(key, sorted(allowed), path)


class PolicyOptions(Explained):
    """The settings of a policy of the package; messages begin with the policy's name."""

    @classmethod
    def path_in_messages(cls) -> str:
        """Return the policy's name in job files."""
        return str(getattr(cls, NAME))


def check_rising(key: str, values: Sequence[float]) -> None:
    """Raise ValueError unless the values are rising numbers, and at least one."""
    if not values or list(values) != sorted(set(values)):
        raise ValueError(f"{key}: got {list(values)}, wanted rising numbers")
