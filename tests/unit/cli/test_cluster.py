"""Clusters started by commands keep Dask's logs off the terminal."""

from __future__ import annotations

import logging

from elasticml.cli.cluster import quieten


def test_dasks_loggers_are_silent_despite_their_own_levels(monkeypatch):
    # Dask gives distributed.client a level when it is imported: a killed scheduler printed forty
    # lines of traceback before the one useful line.
    names = ["distributed", "distributed.client", "distributed.core", "tornado", "asyncio"]
    for name in names:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    quieten(verbose=False)
    assert {logging.getLogger(name).level for name in names} == {logging.CRITICAL}
    assert logging.getLogger("elasticml").level != logging.CRITICAL
