"""Base class of validated settings, and validation errors that name the key and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from elasticml.errors import ConfigError

#: A positive integer.
Count = Annotated[int, Field(ge=1)]


class SettingsModel(BaseModel):
    """A frozen group of settings; unknown keys and invalid values raise a one-line ``ConfigError``.

    Subclasses check constraints between fields in :meth:`check`.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True
    )

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: Any, info: ValidationInfo) -> Any:
        path = (info.context or {}).get("path")
        path = cls.__name__ if path is None else path
        try:
            made = handler(value)
        except ValidationError as error:
            raise _explained(error, cls, path) from None
        _check_switches(value, made, path)
        try:
            made.check()
        except ValueError as error:
            raise ConfigError(join(path, error), path=path) from None
        return made

    def check(self) -> None:
        """Check constraints between fields.

        Raises
        ------
        ValueError
            When one is violated; its text starts with the name of the field.
        """


def _check_switches(raw: object, made: SettingsModel, path: str) -> None:
    """Reject ``true`` and ``false`` for numbers; pydantic would read them as 1 and 0."""
    if not isinstance(raw, Mapping):
        return
    for name, field in type(made).model_fields.items():
        key = field.alias if field.alias in raw else name
        if isinstance(raw.get(key), bool) and type(getattr(made, name)) in (int, float):
            raise ConfigError(f"{join(path, key)}: got {raw[key]}, wanted a number", path=path)


S = TypeVar("S", bound=SettingsModel)


def read_settings(kind: type[S], raw: object, path: str) -> S:
    """Validate one section of a job file.

    Parameters
    ----------
    kind : type
        The class of settings in the section.
    raw : object
        The parsed YAML; None is an empty section.
    path : str
        The section's path in the file, such as ``"algorithm"`` or ``"faults[0]"``.

    Returns
    -------
    Settings

    Raises
    ------
    ConfigError
        When it is not a mapping, has an unknown key, lacks one, or has an invalid value.
    """
    raw = {} if raw is None else raw
    if not isinstance(raw, Mapping):
        raise ConfigError(
            f"{path}: got {_short(raw)}, wanted a mapping with keys such as "
            f"{', '.join(keys_of(kind)[:4])}",
            path=path,
        )
    return kind.model_validate(dict(raw), context={"path": path})


def keys_of(kind: type[SettingsModel]) -> list[str]:
    """Return the keys of a section as they are spelled in job files."""
    return [field.alias or name for name, field in kind.model_fields.items()]


def nearest(word: object, words: Iterable[str]) -> str | None:
    """Return the word closest to a misspelt one; None if none is close."""
    close = difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_key(key: object, keys: Iterable[str], path: str) -> ConfigError:
    """Return the error for a key that the section does not have."""
    keys = list(keys)
    return ConfigError(
        f"{join(path, key)} is not a setting{_hint(key, keys)}", path=path, key=str(key)
    )


def unknown_choice(value: object, choices: Iterable[str], path: str) -> ConfigError:
    """Return the error for a value that is not one of the choices."""
    choices = list(choices)
    return ConfigError(f"{path}: got {_short(value)}{_hint(value, choices)}", path=path)


def join(path: str, key: object) -> str:
    """Append a key or an index to the path of a section."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def _hint(word: object, words: list[str]) -> str:
    match = nearest(word, words)
    guess = f"; did you mean {match!r}?" if match else ""
    return f"{guess} (there is {', '.join(words)})" if words else f"{guess} (there is none yet)"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _explained(error: ValidationError, kind: type[SettingsModel], path: str) -> ConfigError:
    """Turn the first of pydantic's errors into a one-line ``ConfigError``."""
    details = error.errors(include_url=False)
    first = details[0]
    # The value of a union field has one error for each type of the union.
    kinds = [
        d for d in details if d["loc"][:1] == first["loc"][:1] and d["input"] is first["input"]
    ]
    left = len(details) - len(kinds)
    more = f" (and {left} more)" if left else ""
    where = path
    for step in first["loc"]:
        # Union branches add the name of their type to the location; it is not a key of the file.
        if step == first["loc"][0] or isinstance(step, int):
            where = join(where, step)
    if first["type"] == "extra_forbidden":
        wrong = unknown_key(first["loc"][-1], keys_of(kind), path)
        return ConfigError(wrong.message + more, **wrong.fields)
    if first["type"] == "missing":
        field = kind.model_fields.get(str(first["loc"][-1]))
        what = f": {field.description}" if field and field.description else ""
        return ConfigError(f"{where} is missing{what}{more}", path=where)
    expected = _wanted(first) if len(kinds) == 1 else _wanted_of_several(kinds)
    return ConfigError(f"{where}: got {_short(first['input'])}{expected}{more}", path=where)


def _wanted_of_several(kinds: Sequence[Mapping[str, Any]]) -> str:
    """Describe the values that a union field accepts, with the closest word."""
    expected: list[str] = []
    guess = ""
    for detail in kinds:
        if detail["type"] == "literal_error":
            words = _words(detail)
            match = nearest(detail["input"], words)
            guess = f"; did you mean {match!r}?" if match else guess
            expected += words
        else:
            expected.append(_wanted(detail).removeprefix(", wanted ").removeprefix(": "))
    return f", wanted {' or '.join(dict.fromkeys(expected))}{guess}"


def _words(detail: Mapping[str, Any]) -> list[str]:
    """Return the words that a literal field accepts."""
    expected: str = detail["ctx"]["expected"]
    return expected.replace(" or ", ", ").replace("'", "").split(", ")


def _wanted(detail: Mapping[str, Any]) -> str:
    """Describe what pydantic expected, with the leading separator."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "literal_error":
            return _hint(detail["input"], _words(detail))
        case "value_error":
            return f": {context['error']}"
        case "greater_than_equal":
            return f", wanted at least {context['ge']:g}"
        case "greater_than":
            return f", wanted more than {context['gt']:g}"
        case "less_than_equal":
            return f", wanted at most {context['le']:g}"
        case "less_than":
            return f", wanted less than {context['lt']:g}"
        case "int_parsing" | "int_type" | "int_from_float":
            return ", wanted a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return ", wanted a finite number"
        case "bool_parsing" | "bool_type":
            return ", wanted true or false"
        case "dict_type":
            return ", wanted a mapping"
        case "list_type" | "tuple_type":
            return ", wanted a list"
        case "string_type":
            return ", wanted text"
    return f": {detail['msg'][0].lower()}{detail['msg'][1:]}"
