"""Validation of policy settings, whose names and defaults come from the policies' constructors."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Collection, Mapping
from typing import Any

from elasticml.errors import ConfigError

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


def nearest(word: object, allowed: Collection[str]) -> str:
    """Return the end of an error message: the nearest valid word, and the list of all."""
    close = difflib.get_close_matches(str(word), sorted(allowed), n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f"{guess} (there is {', '.join(sorted(allowed)) or 'none'})"


def check_keys(entry: Mapping[str, Any], allowed: Collection[str], path: str) -> None:
    """Raise ConfigError for a key of an entry that is not a setting of its policy."""
    for key in entry:
        if key != NAME and key not in allowed:
            raise ConfigError(
                f"{path}.{key} is not a setting{nearest(key, allowed)}", path=path, key=str(key)
            )


def number(
    policy: str,
    key: str,
    value: Any,
    *,
    low: float = 0.0,
    high: float = math.inf,
    above: bool = False,
    whole: bool = False,
) -> None:
    """Check a number.

    Parameters
    ----------
    policy, key : str
        The policy and the setting, for the message.
    low, high : float
        The range, inclusive.
    above : bool
        Exclude ``low`` itself.
    whole : bool
        Accept integers only.

    Raises
    ------
    ConfigError
        When the value is not such a number.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_number = is_number and not (whole and not isinstance(value, int)) and not math.isnan(value)
    if is_number and low <= value <= high and not (above and value == low):
        return
    kind = "a whole number" if whole else "a number"
    bounds = f"more than {low:g}" if above else f"at least {low:g}"
    if high < math.inf:
        bounds += f" and at most {high:g}"
    raise ConfigError(f"{policy}.{key}: got {value!r}, wanted {kind}, {bounds}", key=key)


def choice(policy: str, key: str, value: Any, allowed: Collection[str]) -> None:
    """Check that a value is one of the allowed words.

    Raises
    ------
    ConfigError
        When it is not.
    """
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{policy}.{key}: got {value!r}{nearest(value, allowed)}", key=key)


def flag(policy: str, key: str, value: Any) -> None:
    """Check a boolean.

    Raises
    ------
    ConfigError
        When the value is not a bool.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{policy}.{key}: got {value!r}, wanted true or false", key=key)


def whole_numbers(policy: str, key: str, value: Any, *, low: int = 1) -> tuple[int, ...]:
    """Check a list of whole numbers and return it as a tuple.

    Raises
    ------
    ConfigError
        When the value is not such a list.
    """
    if not isinstance(value, (list, tuple)):
        raise ConfigError(
            f"{policy}.{key}: got {value!r}, wanted a list of whole numbers, at least {low} each",
            key=key,
        )
    for item in value:
        number(policy, key, item, low=low, whole=True)
    return tuple(value)
