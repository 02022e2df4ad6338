"""Clusters started by commands keep Dask's logs off the terminal."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from elasticml.cli.cluster import client_at, client_of, quieten
from elasticml.errors import ConfigError
from elasticml.specification.sections import Address, TLSFiles


def test_dasks_loggers_are_silent_despite_their_own_levels(monkeypatch):
    # Dask gives distributed.client a level when it is imported: a killed scheduler printed forty
    # lines of traceback before the one useful line.
    names = ["distributed", "distributed.client", "distributed.core", "tornado", "asyncio"]
    for name in names:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    quieten(verbose=False)
    assert {logging.getLogger(name).level for name in names} == {logging.CRITICAL}
    assert logging.getLogger("elasticml").level != logging.CRITICAL


ADDRESS = "tls://127.0.0.1:9"


@pytest.mark.parametrize("by_file", [False, True])
def test_a_tls_address_without_a_certificate_is_one_line(tmp_path: Path, by_file: bool) -> None:
    # A TypeError of Dask, and a traceback after 20 s.
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": ADDRESS}))
    address, name = (None, str(file)) if by_file else (ADDRESS, None)
    with pytest.raises(ConfigError, match=r"is encrypted, and there is no certificate"):
        client_at(address, name).__enter__()
    cluster = Address(address=address, scheduler_file=name)
    with pytest.raises(ConfigError, match=r"is encrypted, and there is no certificate"):
        client_of(cluster, "cocoa").__enter__()


def test_files_of_a_certificate_that_are_missing_are_named(tmp_path: Path) -> None:
    # "Start a scheduler or correct the address."
    missing = TLSFiles(ca=str(tmp_path / "ca.pem"), cert=str(tmp_path / "me.pem"))
    with pytest.raises(ConfigError, match=r"cluster\.tls: .*ca\.pem, .* cannot be used: .*No such"):
        client_of(Address(address=ADDRESS, tls=missing), "cocoa").__enter__()
