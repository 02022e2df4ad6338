"""Base classes of validated settings, and validation errors that name the key and the remedy.

Every section of a job file is a class below: :class:`SettingsModel`, or a dataclass made by
:func:`settings_dataclass` where an object also keeps state or is created very often.

"auto" becomes a value in one place for each setting. Before the record is written:

* ``absent`` and ``placement``: :func:`.algorithms.resolve_absent`, ``resolve_placement``;
* ``holders`` and ``chunk_size``: ``resolve_holders`` of ``job``, ``parse_chunk_size`` of
  ``job_spec``;
* an omitted optimizer: :attr:`.algorithms.BatchGradient.chosen_optimizer`.

These values are known only while the job runs, and stay "auto" in the record:

* ``absent`` of batch gradients: a rule of its own, stand-ins with curvature;
* ``sigma``, ``gap_every``: they follow the members and the time that certificates take;
* ``bucket``, ``groups``, ``device``: they follow a member's chunks and machine;
* ``normalize``: the moments of the training data; ``batch``: a controller that never ends;
* ``zero_based``: the text of the file;
* ``share`` of the policy ``redeal``: times and holders of the round;
* ``topology`` and ``transport``: members and hosts; ``memory`` of a local cluster: this machine.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, Literal, Self, TypeVar, cast, dataclass_transform, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from elasticml.errors import ConfigError, shown

#: Longer words are not compared with valid ones.
WORD_CHARACTERS_MAX = 100
#: Largest whole number of a setting.
INT_MAX = 2**63 - 1
#: Most workers of a cluster, and most members of a job.
WORKERS_MAX = 65_536
#: A number of workers or members.
Workers = Annotated[int, Field(ge=1, le=WORKERS_MAX)]
#: A number of compute threads.
Threads = Annotated[int, Field(ge=1, le=4096)]
#: A positive integer.
Count = Annotated[int, Field(ge=1)]
AtLeast2 = Annotated[int, Field(ge=2)]
#: An integer of at least 0.
Index = Annotated[int, Field(ge=0)]


def _keep_int(value: Any, handler: Callable[[Any], Any]) -> Any:
    checked = handler(value)
    if isinstance(value, bool):
        raise ValueError(f"got {str(value).lower()}, wanted a number")
    return value if isinstance(value, int) else checked


class _KeepInt:
    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = WrapValidator(_keep_int).__get_pydantic_core_schema__(source, handler)
        # In a union, pydantic's own serializer of a float warns when it gets an integer.
        return {**schema, "serialization": {"type": "function-plain", "function": lambda n: n}}


#: Lets a number stay an integer if it is one, so that records keep the user's spelling.
KEEP_INT = _KeepInt()
NumberFrom0 = Annotated[float, Field(ge=0), KEEP_INT]
NumberAbove0 = Annotated[float, Field(gt=0), KEEP_INT]
NumberFrom1 = Annotated[float, Field(ge=1), KEEP_INT]
Share = Annotated[float, Field(ge=0, le=1), KEEP_INT]
ShareAbove0 = Annotated[float, Field(gt=0, le=1), KEEP_INT]
#: true or false, and not 1 or 0.
Flag = Annotated[bool, Field(strict=True)]
#: Type of a source's stored values.
Dtype = Literal["float64", "float32"]


#: Lets a tuple be given as any sequence, to type checkers too.
AS_TUPLE = GetPydanticSchema(
    lambda kind, handler: handler(GenericAlias(tuple, (*get_args(kind), ...)))
)
#: The same of a tuple of two.
AS_PAIR = GetPydanticSchema(lambda kind, handler: handler(GenericAlias(tuple, 2 * get_args(kind))))

#: Marks a path that in a job file is relative to the folder of the file.
IS_PATH = object()
LocalPath = Annotated[str | None, IS_PATH]

#: A value that is checked elsewhere.
AS_IT_IS = GetPydanticSchema(lambda kind, handler: handler(Any))


class Explained:
    """Settings whose errors are one line: the key, the value, what was wanted, the nearest key.

    Subclasses check constraints between fields in :meth:`check`.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Explained):
            return handler(value)  # a field's value, which was validated when it was created
        path = (info.context or {}).get("path")
        if path is None:
            path = cls.path_in_messages()
        elif info.field_name is not None:
            path = join(path, info.field_name)  # a section within a section
        try:
            made = handler(value)
        except ValidationError as error:
            if not error.errors()[0]["loc"]:
                raise  # it is no mapping: the section of which it is a field names it
            raise _explained(error, cls, path) from None
        # pydantic passes the arguments of a dataclass as a record with ``kwargs``.
        raw = getattr(value, "kwargs", value)
        _check_numbers(raw, made, path)
        try:
            made.check()
        except ValueError as error:
            raise ConfigError(join(path, error)) from None
        return made

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        """Return the JSON schema, with what the code says about the class and its settings."""
        schema = handler(core)
        own = handler.resolve_ref_schema(schema)
        own["description"] = str(inspect.getdoc(cls)).split("\n\n")[0].replace("\n", " ")
        kind: Any = cls
        texts, names = _descriptions(kind), names_by_key(cls)
        for key, setting in own.get("properties", {}).items():
            if text := texts.get(key, texts.get(names[key])):
                setting.setdefault("description", text)
        return schema

    @classmethod
    def path_in_messages(cls) -> str:
        """Return what messages call the section when it was created in Python."""
        return cls.__name__

    def check(self) -> None:
        """Check constraints between fields.

        Raises
        ------
        ValueError
            When one is violated; its text starts with the name of the field.
        """


class SettingsModel(Explained, BaseModel):
    """A frozen group of settings; unknown keys and invalid values raise a one-line ``ConfigError``.

    The validator is built at first use: a process validates few of the classes that it imports.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        defer_build=True,
    )

    @classmethod
    def of_record(cls, section: Mapping[str, Any]) -> Self:
        """Read the section of a record: what is missing or damaged has the field's default."""
        kept = {}
        for key in section.keys() & cls.model_fields.keys():
            with suppress(ConfigError):
                kept[key] = getattr(cls(**{key: section[key]}), key)
        return cls.model_construct(**kept)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yield the settings that differ from their defaults."""
        for name, field in type(self).model_fields.items():
            if not field.repr:
                continue
            value = getattr(self, name)
            if field.is_required() or value != field.get_default(call_default_factory=True):
                yield name, value


K = TypeVar("K", bound=type)


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
def settings_dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, finite: bool = True
) -> Callable[[K], K]:
    """Return a decorator that makes a validated dataclass of a subclass of :class:`Explained`."""
    config = ConfigDict(extra="forbid", allow_inf_nan=not finite)
    made: Any = pydantic_dataclass(kw_only=True, frozen=frozen, slots=slots, eq=eq, config=config)
    return cast(Callable[[K], K], made)


def _check_numbers(raw: object, made: Any, path: str) -> None:
    """Reject ``true`` and ``false`` for numbers, which pydantic would read as 1 and 0.

    Whole numbers have 64 bits: compiled code takes no more.
    """
    if not isinstance(raw, Mapping):
        return
    for key, name in names_by_key(type(made)).items():
        value = getattr(made, name) if key in raw else None
        if isinstance(raw.get(key), bool) and type(value) in (int, float):
            raise ConfigError(f"{join(path, key)}: got {raw[key]}, wanted a number")
        if type(value) is int and abs(value) > INT_MAX:
            got = f"{join(path, key)}: got {shown(value)}"
            raise ConfigError(f"{got}, wanted at most {INT_MAX}")


S = TypeVar("S", bound=Explained)


def read_settings(kind: type[S], raw: object, path: str) -> S:
    """Validate one section of a job file.

    Parameters
    ----------
    kind : type
        The class of settings in the section.
    raw : object
        The parsed YAML, or settings of that class; None is an empty section.
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
    if isinstance(raw, kind):
        return raw
    raw = {} if raw is None else raw
    if not isinstance(raw, Mapping):
        raise ConfigError(
            f"{path}: got {shown(raw)}, wanted a mapping with keys such as "
            f"{', '.join(keys_of(kind)[:4])}"
        )
    made: S = _validator(cast(Any, kind)).validate_python(dict(raw), context={"path": path})
    return made


@cache
def _validator(kind: type) -> TypeAdapter[Any]:
    """Return the validator of a class; building it takes milliseconds, so it is built once."""
    return TypeAdapter(kind)


def names_by_key(kind: Any) -> dict[str, str]:
    """Return the field of each key of a section, as the keys are spelled in job files."""
    if issubclass(kind, BaseModel):
        return {field.alias or name: name for name, field in kind.model_fields.items()}
    return {field.name: field.name for field in fields(kind)}


def keys_of(kind: type) -> list[str]:
    """Return the keys of a section as they are spelled in job files."""
    return list(names_by_key(kind))


def documented_parameters(kind: type) -> dict[str, tuple[str, str]]:
    """Return type and text of each parameter in the docstrings of a class and its bases."""
    found: dict[str, tuple[str, str]] = {}
    for one in reversed(kind.__mro__):
        text = inspect.cleandoc(one.__dict__.get("__doc__") or "")
        _, _, section = text.partition("Parameters\n----------\n")
        section = re.split(r"\n\n[A-Z][a-z]+\n-{4,}\n", section)[0]
        names: list[str] = []
        for line in section.splitlines():
            if line and not line.startswith(" "):
                words, _, type_text = line.partition(" : ")
                names = [name.strip() for name in words.split(",")]
                found.update(dict.fromkeys(names, (type_text, "")))
            elif line.strip():
                found |= {n: (found[n][0], f"{found[n][1]} {line.strip()}".strip()) for n in names}
    return found


@cache
def _descriptions(kind: Any) -> Mapping[str, str]:
    """Return what the code says about each field of a class.

    Fields are documented by ``#:`` comments above them, or under "Parameters" in the docstring.
    """
    texts = {name: text for name, (_, text) in documented_parameters(kind).items()}
    for one in reversed(kind.__mro__[: kind.__mro__.index(Explained)]):
        above = re.findall(r"((?: +#: .*\n)+) +(\w+):", _source_of(one))
        texts |= {name: " ".join(re.findall("#: (.*)", comment)) for comment, name in above}
    return texts


@cache
def _source_of(kind: type) -> str:
    """Return the source of a class; ``inspect`` parses the whole module for each class."""
    module = inspect.getsource(sys.modules[kind.__module__])
    found = re.search(rf"^class {kind.__qualname__}\b.*?(?=^[\w@#]|\Z)", module, re.M | re.S)
    return inspect.getsource(kind) if found is None else found[0]


def documentation(kind: Any) -> str:
    """Return a class's docstring with the settings of the classes above it."""
    about, *sections = re.split(r"^(?=\w+\n-{4,}$)", inspect.cleandoc(kind.__doc__), flags=re.M)
    options, fields = documented_parameters(kind), names_by_key(kind)
    lines = ["Parameters", "----------"]
    for key in sorted(
        options.keys() & fields.keys(),
        key=lambda key: (
            kind.model_fields[fields[key]].kw_only is not False,
            [*options].index(key),
        ),
    ):
        type_text, description = options[key]
        lines += [f"{key} : {type_text}" if type_text else key, f"    {description}"]
    further = [part.rstrip() for part in sections if not part.startswith("Parameters\n")]
    return "\n\n".join([about.rstrip(), "\n".join(lines), *further])


def signature_of(kind: type[BaseModel], *before: inspect.Parameter) -> inspect.Signature:
    """Return the signature of a function with the settings of a class as arguments."""
    parameters = [
        inspect.Parameter(
            field.alias or name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD
            if field.kw_only is False
            else inspect.Parameter.KEYWORD_ONLY,
            annotation=field.annotation,
            default=inspect.Parameter.empty
            if field.is_required()
            else (None if field.default_factory else field.default),
        )
        for name, field in kind.model_fields.items()
        if field.repr
    ]
    return inspect.Signature([*before, *sorted(parameters, key=lambda one: one.kind)])


def documented(kind: K) -> K:
    """Give a class with a constructor of its own the signature and docstring of its settings."""
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    made: Any = kind
    made.__init__.__signature__ = signature_of(made, first)
    made.__doc__ = documentation(made)
    return kind


def default_of(kind: type[BaseModel], name: str) -> Any:
    """Return the default of a setting, for those that handle it after it was validated."""
    return kind.model_fields[name].default


def nearest(word: object, words: Iterable[str]) -> str | None:
    """Return the word closest to a misspelt one; None if none is close."""
    text = word if isinstance(word, str) else shown(word)
    if len(text) > WORD_CHARACTERS_MAX:
        return None
    close = difflib.get_close_matches(text, list(words), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """Return "; did you mean ...?" if a valid word is close to a misspelt one, else ""."""
    match = nearest(word, words)
    return f"; did you mean {match!r}?" if match else ""


def unknown_key(key: object, words: Iterable[str], path: str) -> ConfigError:
    """Return the error for a key that the section does not have."""
    words = list(words)
    name = key if isinstance(key, str) and len(key) <= WORD_CHARACTERS_MAX else shown(key)
    return ConfigError(f"{join(path, name)} is not a setting{choices_of(key, words)}")


def unknown_choice(value: object, words: Iterable[str], path: str) -> ConfigError:
    """Return the error for a value that is not one of the valid words."""
    words = list(words)
    return ConfigError(f"{path}: got {shown(value)}{choices_of(value, words)}")


def join(path: str, key: object) -> str:
    """Append a key or an index to the path of a section."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def choices_of(word: object, words: Iterable[str]) -> str:
    """Return the end of a message: the nearest valid word, and the list of all."""
    words = list(words)
    return f"{did_you_mean(word, words)} (there is {', '.join(words) or 'none yet'})"


def _explained(error: ValidationError, kind: type, path: str) -> ConfigError:
    """Turn the first of pydantic's errors into a one-line ``ConfigError``."""
    details = error.errors(include_url=False)
    first = details[0]
    # The value of a union field has one error for each type of the union.
    kinds = [
        d for d in details if d["loc"][:1] == first["loc"][:1] and d["input"] is first["input"]
    ]
    inside = [
        d for d in details if d["loc"][:1] == first["loc"][:1] and isinstance(d["loc"][-1], int)
    ]
    if inside and not isinstance(first["input"], str) and not isinstance(first["loc"][-1], int):
        # A list was meant, so the error is that of its item, not of the words beside it.
        details = kinds = inside[:1]
        first = inside[0]
    left = len(details) - len(kinds)
    more = f" (and {left} more)" if left else ""
    where = path
    for step in first["loc"]:
        # Union branches add the name of their type to the location; it is not a key of the file.
        if step == first["loc"][0] or isinstance(step, int):
            where = join(where, step)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return ConfigError(unknown_key(first["loc"][-1], keys_of(kind), path).message + more)
    if first["type"] == "missing" or first["type"].startswith("missing_"):
        what = _description(kind, str(first["loc"][-1]))
        return ConfigError(f"{where} is missing{what}{more}")
    expected = _wanted(first) if len(kinds) == 1 else _wanted_of_several(kinds)
    return ConfigError(f"{where}: got {shown(first['input'])}{expected}{more}")


def _description(kind: type, key: str) -> str:
    all_fields: Mapping[str, Any] = getattr(kind, "__pydantic_fields__", {})
    described = all_fields.get(key)
    return f": {described.description}" if described and described.description else ""


def _wanted_of_several(kinds: Sequence[Mapping[str, Any]]) -> str:
    """Describe the values that a union field accepts, with the closest word."""
    expected: list[str] = []
    guess = ""
    for detail in kinds:
        if detail["type"] == "literal_error":
            words = _words(detail)
            guess = did_you_mean(detail["input"], words) or guess
            expected += words
        else:
            expected.append(_wanted(detail).removeprefix(", wanted ").removeprefix(": "))
    return f", wanted {' or '.join(dict.fromkeys(expected))}{guess}"


def _words(detail: Mapping[str, Any]) -> list[str]:
    """Return the words that a literal field accepts."""
    expected: str = detail["ctx"]["expected"]
    return expected.replace(" or ", ", ").replace("'", "").split(", ")


#: What was wanted, by the type of pydantic's error.
_WANTED = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    "int_parsing_size": f"at most {INT_MAX}",
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "a finite number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("dict_type", "model_type", "dataclass_type"), "a mapping"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "string_type": "text",
    "string_too_long": "one character",
}


def _wanted(detail: Mapping[str, Any]) -> str:
    """Describe what pydantic expected, with the leading separator."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "literal_error":
        return choices_of(detail["input"], _words(detail))
    if kind in _WANTED:
        return f", wanted {_WANTED[kind].format(**context)}"
    if kind == "value_error":
        text = str(context["error"])
        return f", {text}" if text.startswith("wanted") else f": {text}"
    return f": {detail['msg'][0].lower()}{detail['msg'][1:]}"
