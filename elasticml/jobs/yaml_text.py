"""Parse YAML that is not trusted, within limits, and write YAML.

YAML lets a few hundred bytes stand for billions of values (aliases of aliases, merged mappings),
and nest without end. Aliases are refused, and values are counted while the text is composed.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from elasticml.errors import ConfigError, one_line

#: Longest text, in bytes.
TEXT_BYTES_MAX: Final = 2**20
#: Most values.
VALUES_MAX: Final = 50_000
#: Deepest nesting.
DEPTH_MAX: Final = 40
#: Longest number, in characters: Python converts longer ones in quadratic time, or refuses them.
NUMBER_CHARACTERS_MAX: Final = 64
_PROBLEM_CHARACTERS_MAX: Final = 200


class _LimitedLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the limits of this module."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._n_values = 0
        #: Number of nodes being composed, each within the one before.
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node and all below it, and count them."""
        self._n_values += 1
        self._depth += 1
        problem = ""
        if self.check_event(yaml.AliasEvent):
            problem = "an alias (*) of another value, wanted the value itself"
        elif self._n_values > VALUES_MAX:
            problem = f"more than {VALUES_MAX} values"
        elif self._depth > DEPTH_MAX:
            problem = f"nested more than {DEPTH_MAX} deep"
        if problem:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, problem, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct a value; one that Python refuses, such as 30 February, gets its place."""
        is_number = isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float"))
        if is_number and len(node.value) > NUMBER_CHARACTERS_MAX:
            raise ConstructorError(
                None,
                None,
                f"a number of {len(node.value)} characters, wanted at most {NUMBER_CHARACTERS_MAX}",
                node.start_mark,
            )
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
            what = f"{str(node.value)[:40]!r} cannot be read: {one_line(error)}"
            raise ConstructorError(None, None, what, node.start_mark) from None


class _PlainDumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which writes a value that occurs twice, twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump_yaml(values: Any, **options: Any) -> str:
    """Return plain values as YAML that :func:`load_yaml` reads; options are those of PyYAML."""
    text: str = yaml.dump(values, Dumper=_PlainDumper, sort_keys=False, **options)
    return text


def load_yaml(text: str, where: str) -> Any:
    """Parse YAML of plain values.

    Parameters
    ----------
    text : str
    where : str
        What messages call the text, such as ``"job file 'job.yaml'"``.

    Raises
    ------
    ConfigError
        When it is not YAML, or exceeds a limit; names line and column.
    """
    # A character takes at least a byte.
    if len(text) > TEXT_BYTES_MAX or len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        raise ConfigError(f"{where}: more than {TEXT_BYTES_MAX} bytes; name a YAML file")
    loader = None
    try:
        loader = _LimitedLoader(text)
        return loader.get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = " ".join(str(getattr(error, "problem", None) or "it cannot be read").split())
        raise ConfigError(
            f"{where}{place}: not YAML: {problem[:_PROBLEM_CHARACTERS_MAX]}"
        ) from None
    finally:
        if loader is not None:
            loader.dispose()
