"""Clusters of commands: what they keep off the terminal."""

from __future__ import annotations

import logging

from elasticml.cli.cluster import quieten


def test_nothing_of_dask_is_said_though_its_loggers_have_levels_of_their_own(monkeypatch):
    # Dask gives distributed.client a level when it is imported: a killed scheduler was forty lines
    # of traceback before the one line that counts.
    names = ["distributed", "distributed.client", "distributed.core", "tornado", "asyncio"]
    for name in names:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    quieten(verbose=False)
    assert {logging.getLogger(name).level for name in names} == {logging.CRITICAL}
    assert logging.getLogger("elasticml").level != logging.CRITICAL
