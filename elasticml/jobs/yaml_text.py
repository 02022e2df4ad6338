"""Parse YAML that is not trusted: with limits that hold before anything is expanded.

YAML lets a few hundred bytes stand for billions of values (aliases of aliases, merged mappings),
and nest without end. The limits count every alias as all that it stands for, while the text is
composed; PyYAML expands it only after that.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from elasticml.errors import ConfigError, one_line

#: Longest text, in bytes.
TEXT_BYTES_MAX: Final = 2**20
#: Most values, each alias counted as all the values that it stands for.
VALUES_MAX: Final = 50_000
#: Deepest nesting, through aliases too.
DEPTH_MAX: Final = 40
#: Longest number, in characters: Python converts longer ones in quadratic time, or refuses them.
NUMBER_CHARACTERS_MAX: Final = 64
_PROBLEM_CHARACTERS_MAX: Final = 200


class _LimitedLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the limits of this module."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._n_values = 0
        #: Values and height of the nodes composed so far: what an alias of one stands for.
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}
        #: Heights of the nodes being composed, outermost first.
        self._heights: list[int] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node and all below it, and count them."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._check(1, 1, mark)
        before = self._n_values
        is_alias = self.check_event(yaml.AliasEvent)
        self._heights.append(0)
        node = super().compose_node(parent, index)
        height = self._heights.pop() + 1
        if is_alias:
            if node is None or node not in self._sizes:
                raise ComposerError(None, None, "an alias stands within what it stands for", mark)
            n_values, height = self._sizes[node]
            self._check(n_values, height, mark)
            self._n_values += n_values
        elif node is not None:
            self._n_values += 1
            self._sizes[node] = self._n_values - before, height
        if self._heights:
            self._heights[-1] = max(self._heights[-1], height)
        return node

    def _check(self, n_values: int, height: int, mark: Any) -> None:
        if self._n_values + n_values > VALUES_MAX:
            raise ComposerError(
                None, None, f"more than {VALUES_MAX} values, aliases counted in full", mark
            )
        if len(self._heights) + height > DEPTH_MAX:
            raise ComposerError(None, None, f"nested more than {DEPTH_MAX} deep", mark)

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
        raise ConfigError(
            f"{where}: more than {TEXT_BYTES_MAX} bytes; name a YAML file", path=where
        )
    loader = None
    try:
        loader = _LimitedLoader(text)
        return loader.get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = " ".join(str(getattr(error, "problem", None) or "it cannot be read").split())
        raise ConfigError(
            f"{where}{place}: not YAML: {problem[:_PROBLEM_CHARACTERS_MAX]}", path=where
        ) from None
    finally:
        if loader is not None:
            loader.dispose()
