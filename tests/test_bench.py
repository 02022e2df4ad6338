"""The runner of ``tests/bench``: its list, the options of a case, and the comparison by turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

from tests.bench import __main__ as runner
from tests.bench import harness


def test_the_list_says_what_each_case_measures(capsys) -> None:
    assert runner.main([]) is None
    shown = capsys.readouterr().out
    assert all(f"  {name:16}{line}" in shown and line for name, line in runner.cases().items())
    assert "linear_peers" in runner.cases()


def test_the_options_of_a_case_are_the_parameters_of_its_main() -> None:
    def main(
        place: Path,
        *,
        sizes: Sequence[int] = (1, 2),
        way: Literal["fast", "slow"] = "fast",
        limit_s: float | None = None,
        is_cold: bool = False,
    ) -> None:
        """Do nothing."""

    parser = harness.parser_of(SimpleNamespace(main=main, __doc__="A case."), "case")
    given = vars(parser.parse_args(["/x", "--sizes", "3", "4", "--limit-s", "1.5", "--is-cold"]))
    changed = {"place": Path("/x"), "sizes": [3, 4], "limit_s": 1.5, "is_cold": True}
    assert given == {**changed, "way": "fast"}
    assert vars(parser.parse_args(["/x"]))["sizes"] == (1, 2)


def test_figures_of_tables_and_reports_are_handed_to_the_comparison(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(harness.FIGURES, str(tmp_path / "figures"))
    harness.head("set", "threads", "ms", "share", "state", keys=2)
    harness.row("w8a", 1, "1,250.5 (0.7)", "62%", "ended")
    harness.report({"events": 7, "story": "a1b2", "each": [1]})
    lines = [json.loads(line) for line in (tmp_path / "figures").read_text().splitlines()]
    figures = {key: value for line in lines for key, value in line.items()}
    named = {"w8a, 1: ms": 1250.5, "w8a, 1: share": 62.0, "w8a, 1: state": "ended"}
    assert figures == {**named, "events": 7.0, "story": "a1b2"}


def test_the_ratio_of_two_checkouts_has_the_spread_of_its_turns() -> None:
    before = [{"s": 2.0, "story": "a"}, {"s": 4.0, "story": "a"}, {"s": 2.0, "story": "a"}]
    now = [{"s": 1.0, "story": "a"}, {"s": 1.0, "story": "b"}, {"s": 2.0, "story": "a"}]
    assert runner.compared(before, now) == [
        ["s", "2", "1", "0.500", "0.250 to 1.000"],
        ["story", "", "", "DIFFERS", ""],
    ]
