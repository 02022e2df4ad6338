"""Validation of an algorithm's settings; errors name the key and the allowed values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from typing import Any, Literal

from elasticml.errors import ConfigError


def check_keys(
    algorithm: str,
    raw: Mapping[str, Any],
    valid: Collection[str],
    choices: Mapping[str, tuple[object, ...]],
) -> None:
    """Check that every key is known and that values with a list of choices are in it.

    Raises
    ------
    ConfigError
        For an unknown key, with the nearest valid one, or a value that is not a choice.
    """
    for key in raw:
        if key not in valid:
            close = difflib.get_close_matches(key, sorted(valid), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"algorithm.{key} is unknown for {algorithm}, wanted one of "
                f"{', '.join(sorted(valid))}{hint}",
                key=f"algorithm.{key}",
            )
    for key, allowed in choices.items():
        if key in raw and raw[key] not in allowed:
            raise wrong(key, raw[key], "one of " + ", ".join(map(str, allowed)))


def number(key: str, value: Any) -> float:
    """Return the value as a finite, non-negative float.

    Raises
    ------
    ConfigError
        When it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(key, value, "a number")
    if not (math.isfinite(value) and value >= 0):
        raise wrong(key, value, "a finite number of at least 0")
    return float(value)


def read_class_weight(raw: Any) -> Mapping[float, float] | Literal["balanced"] | None:
    """Return "balanced", a mapping from label to weight, or None.

    Raises
    ------
    ConfigError
        When the value is none of these.
    """
    if raw is None or raw == "balanced":
        return raw  # type: ignore[no-any-return]
    if not isinstance(raw, Mapping):
        raise wrong("class_weight", raw, "'balanced' or a weight for each label")
    # JSON turns the labels into strings.
    weights = {float(label): number("class_weight", weight) for label, weight in raw.items()}
    if any(weight == 0.0 for weight in weights.values()):
        raise wrong("class_weight", raw, "weights above 0")
    return weights


def wrong(key: str, got: Any, expected: str) -> ConfigError:
    """Return the error for a setting with an invalid value."""
    return ConfigError(f"algorithm.{key} is {got!r}, wanted {expected}", key=f"algorithm.{key}")
