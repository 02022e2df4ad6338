"""The switch ``ELASTICML_CI=1``: a skip fails the run, unless hardware is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

SKIPS = {
    "call": "def test_it():\n    pytest.skip({reason!r})\n",
    "mark": "@pytest.mark.skip(reason={reason!r})\ndef test_it():\n    pass\n",
    "file": "pytest.skip({reason!r}, allow_module_level=True)\n",
}


def outcome(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, switch: str, body: str
) -> dict[str, int]:
    monkeypatch.setenv("ELASTICML_CI", switch)
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile("import pytest\n\n" + body)
    return pytester.runpytest_inprocess("-p", "no:asyncio").parseoutcomes()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("call", {"failed": 1}), ("mark", {"errors": 1}), ("file", {"errors": 1})],
)
def test_a_skip_fails_in_continuous_integration(pytester, monkeypatch, kind, expected):
    body = SKIPS[kind].format(reason="no data here")
    assert outcome(pytester, monkeypatch, "1", body) == expected


@pytest.mark.parametrize("kind", list(SKIPS))
def test_a_skip_stays_a_skip_elsewhere(pytester, monkeypatch, kind):
    body = SKIPS[kind].format(reason="no data here")
    assert outcome(pytester, monkeypatch, "0", body) == {"skipped": 1}


@pytest.mark.parametrize("kind", list(SKIPS))
def test_absent_hardware_stays_a_skip(pytester, monkeypatch, kind):
    body = SKIPS[kind].format(reason="no GPU on this machine")
    assert outcome(pytester, monkeypatch, "1", body) == {"skipped": 1}


def test_the_data_folder_comes_from_the_environment(data_dir):
    assert (data_dir / "INDEX.md").is_file()
