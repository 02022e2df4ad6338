"""Pre-emption options that the commands of a mini YARN share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def preemption_options(command: F) -> F:
    """Add ``--max-wait`` and ``--sigkill-delay``."""
    for option in (
        click.option(
            "--sigkill-delay",
            type=click.FloatRange(0.0),
            default=5.0,
            show_default=True,
            help="Seconds from SIGTERM to SIGKILL in a container; YARN's default is 0.25.",
        ),
        click.option(
            "--max-wait",
            type=click.FloatRange(0.5),
            default=5.0,
            show_default=True,
            help="Seconds from a pre-emption notice to SIGTERM; YARN's default is 15.",
        ),
    ):
        command = option(command)
    return command
