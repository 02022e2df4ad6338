"""Stored runs of local SGD: a finished run is read instead of computed again."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from support.local_sgd_data import load
from support.local_sgd_plain import train_plain
from support.local_sgd_runs import Images, Point, Round, Run, Setting, run

from elasticml.report.style import write_whole

#: Data set -> how it is read, and how many of its training examples are taken.
Loader = Callable[[str], Images]


@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder with a file for every run, written at the end of each of its epochs.

    A file counts if it has the same setting and data, and enough epochs: an interrupted study
    continues with the first run that is missing. The name ends with a digest of setting and data,
    so that runs of other rows or seeds are kept beside it.
    """

    folder: Path
    #: Training examples that are taken of every data set; None: all.
    rows: int | None = None

    def run(self, data: str, setting: Setting) -> Run:
        """Return a run by the machines, policies and members of a job."""
        return self._kept(data, setting, "", run)

    def plain(self, data: str, setting: Setting) -> Run:
        """Return a run by PyTorch alone."""
        return self._kept(data, setting, "plain-", train_plain)

    def _kept(self, data: str, setting: Setting, kind: str, train: Callable[..., Run]) -> Run:
        expected = json.loads(json.dumps(asdict(setting)))
        epochs = expected.pop("epochs")
        head = {"data": data, "rows": self.rows, "setting": expected}
        report = json.dumps(head, sort_keys=True).encode()
        digest = hashlib.blake2b(report, digest_size=4).hexdigest()
        path = self.folder / f"{data}-{kind}{setting.name}-{digest}.json"
        if path.exists():
            kept = json.loads(path.read_text())
            same = all(kept[key] == value for key, value in head.items())
            if same and len(kept["points"]) >= epochs:
                return _read(kept, epochs)

        def write(found: Run) -> None:
            write_whole(path, json.dumps({**head, **asdict(found)}).encode())
            at = found.points[-1]
            report = f"epoch {at.epoch}, loss {at.loss:.4f}, test accuracy {at.test_accuracy:.4f}"
            print(f"{path.stem}: {report}, {found.wall_s:.0f} s", file=sys.stderr, flush=True)

        return train(setting, load(data, self.rows), write)


@dataclass(frozen=True, kw_only=True)
class _Listing(Store):
    """A store that lists the runs which a study needs; none of them is computed."""

    #: Method of a store, data set and setting, each once.
    needs: list[tuple[str, str, Setting]] = field(default_factory=list)

    def run(self, data: str, setting: Setting) -> Run:
        return self._listed("run", data, setting)

    def plain(self, data: str, setting: Setting) -> Run:
        return self._listed("plain", data, setting)

    def _listed(self, way: str, data: str, setting: Setting) -> Run:
        if (way, data, setting) not in self.needs:
            self.needs.append((way, data, setting))
        return Run(points=(), rounds=(Round(members=1, busy={0: 1.0}),), wall_s=0.0)


def run_side_by_side(store: Store, study: Callable[[Store], Any], jobs: int) -> None:
    """Compute and store all runs of a study, in this many processes."""
    listing = _Listing(folder=store.folder, rows=store.rows)
    study(listing)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(getattr(store, way), *need) for way, *need in listing.needs]
        for run_ in runs:
            run_.result()


def _read(kept: Mapping[str, Any], epochs: int) -> Run:
    points = tuple(Point(**point) for point in kept["points"][:epochs])
    rounds: Sequence[Mapping[str, Any]] = kept["rounds"][: points[-1].rounds]
    return Run(
        points=points,
        rounds=tuple(
            Round(members=r["members"], busy={int(s): u for s, u in r["busy"].items()})
            for r in rounds
        ),
        wall_s=kept["wall_s"],
    )
