"""The table of ``tests/bench/planted_faults.py`` fits the code."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.bench.planted_faults import FAULTS, MACHINES, ROOT, Fault, stages


@pytest.mark.parametrize("file", sorted({fault.file for fault in FAULTS}))
def test_every_fault_changes_one_place_of_its_file_into_other_code(file):
    source = (ROOT / "elasticml" / file).read_text()
    for fault in (fault for fault in FAULTS if fault.file == file):
        assert source.count(fault.text) == 1, fault
        assert fault.planted(source) != source, fault
        ast.parse(fault.planted(source), filename=fault.name)


def test_there_are_sixty_different_faults_and_tests_for_their_files():
    assert len(FAULTS) >= 60
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    for file in {fault.file for fault in FAULTS}:
        assert all((ROOT / path).exists() for tests in stages(file) for path in tests), file
    assert set(MACHINES) <= {path for tests in stages("control/driver.py") for path in tests}


@pytest.mark.parametrize(("source", "n"), [("a = 1\n", 0), ("a = 2\na = 2\n", 2)])
def test_a_fault_whose_text_is_not_there_once_is_refused(source, n):
    with pytest.raises(SystemExit, match=f"has {n} times 'a = 2', wanted one"):
        Fault("x.py", "a = 2", "a = 3", "three").planted(source)
