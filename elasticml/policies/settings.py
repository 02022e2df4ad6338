"""Policies as a job writes them down: their settings read off a constructor, and the checks."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Collection, Mapping
from typing import Any

from elasticml.errors import ConfigError

#: What every policy calls itself by, and no setting.
NAME = "name"


def settings_of(kind: type) -> dict[str, Any]:
    """List the settings of a kind of policy with their defaults; ``...`` where there is none."""
    parameters = list(inspect.signature(kind).parameters.values())
    return {p.name: ... if p.default is p.empty else p.default for p in parameters}


def entry_of(policy: Any) -> dict[str, Any]:
    """Write a policy as its entry in a job's ``policies``: its name, and what is not the default.

    Every setting must stand under its own name on the policy.
    """
    entry: dict[str, Any] = {NAME: policy.name}
    for key, default in settings_of(type(policy)).items():
        value = getattr(policy, key)
        if default is ... or value != default:
            entry[key] = list(value) if isinstance(value, tuple) else value
    return entry


def nearest(word: object, known: Collection[str]) -> str:
    """Say which known word is meant, and what there is."""
    close = difflib.get_close_matches(str(word), sorted(known), n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f"{guess} (there is {', '.join(sorted(known)) or 'none'})"


def check_keys(entry: Mapping[str, Any], known: Collection[str], path: str) -> None:
    """Raise a ConfigError for a key of an entry that its policy does not have."""
    for key in entry:
        if key != NAME and key not in known:
            raise ConfigError(
                f"{path}.{key} is not a setting{nearest(key, known)}", path=path, key=str(key)
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
        What it is a setting of, and which.
    low, high : float
        The range, both ends in it.
    above : bool
        ``low`` itself is out of the range.
    whole : bool
        Only integers.

    Raises
    ------
    ConfigError
        When it is no such number.
    """
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = fits and not (whole and not isinstance(value, int)) and not math.isnan(value)
    if fits and low <= value <= high and not (above and value == low):
        return
    kind = "a whole number" if whole else "a number"
    reach = f"more than {low:g}" if above else f"at least {low:g}"
    if high < math.inf:
        reach += f" and at most {high:g}"
    raise ConfigError(f"{policy}.{key}: got {value!r}, wanted {kind}, {reach}", key=key)


def choice(policy: str, key: str, value: Any, known: Collection[str]) -> None:
    """Check one word out of some.

    Raises
    ------
    ConfigError
        When it is none of them.
    """
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{policy}.{key}: got {value!r}{nearest(value, known)}", key=key)


def flag(policy: str, key: str, value: Any) -> None:
    """Check a true or false.

    Raises
    ------
    ConfigError
        When it is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{policy}.{key}: got {value!r}, wanted true or false", key=key)


def whole_numbers(policy: str, key: str, value: Any, *, low: int = 1) -> tuple[int, ...]:
    """Check a list of whole numbers and return it as a tuple.

    Raises
    ------
    ConfigError
        When it is none.
    """
    if not isinstance(value, (list, tuple)):
        raise ConfigError(
            f"{policy}.{key}: got {value!r}, wanted a list of whole numbers, at least {low} each",
            key=key,
        )
    for item in value:
        number(policy, key, item, low=low, whole=True)
    return tuple(value)
