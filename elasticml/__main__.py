"""``python -m elasticml``: the command line."""

from __future__ import annotations

from elasticml.cli.main import main

main()
