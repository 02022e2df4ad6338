"""Stored runs: a finished run is kept beside the tables and not repeated."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Store:
    """The folder of stored runs, and the time limit for new ones."""

    folder: Path
    quick: bool = False
    #: Seconds after which no run is started.
    limit_s: float = math.inf
    began_s: float = field(default_factory=time.perf_counter)
    #: Runs that were not started.
    missing: int = 0

    def few(self, n: Any, quick: Any) -> Any:
        """Choose a size."""
        return quick if self.quick else n

    def run(
        self,
        name: str,
        settings: dict[str, Any],
        make: Callable[[], Any],
        keeps: Callable[[Any], bool] = lambda found: True,
    ) -> Any:
        """Return the result of a run: stored, or computed now; None if there is no time for it.

        Parameters
        ----------
        settings : dict
            All that the result depends on; a change of them is another run.
        make : callable
            Returns values that can be written as JSON.
        keeps : callable, optional
            Whether a result is stored; others are computed again by the next call.
        """
        words = json.dumps({"name": name, **settings}, sort_keys=True, default=str)
        digest = hashlib.blake2b(words.encode(), digest_size=4).hexdigest()
        path = self.folder / "runs" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{digest}.json"
        if path.exists():
            return json.loads(path.read_text())["found"]
        spent_s = time.perf_counter() - self.began_s
        if spent_s > self.limit_s:
            self.missing += 1
            return None
        found = make()
        if keeps(found):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(json.dumps({"settings": json.loads(words), "found": found}, indent=1))
            part.replace(path)
        took_s = time.perf_counter() - self.began_s - spent_s
        print(f"{name}: {took_s:.0f} s", file=sys.stderr, flush=True)
        return found
