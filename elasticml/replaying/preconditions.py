"""What must be as it was in the run, or its bits cannot be reached again; refused in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticml.algorithms.base import ON_CUDA
from elasticml.errors import ConfigError
from elasticml.training.fingerprint import cpu_class, versions

Record = Mapping[str, Any]


def check_devices(records: Sequence[Record]) -> None:
    """Check that nothing was computed where the same sums come out otherwise every time.

    Raises
    ------
    ConfigError
        When members have computed on CUDA; names the first round.
    """
    found = next((r for r in records if r["event"] == "RoundEnded" and r.get(ON_CUDA)), None)
    if found is not None:
        raise ConfigError(
            f"members have computed on CUDA, first in round {found['round']}, where kernels add in "
            "an order that changes from run to run: no replay reaches the same bits; run the job "
            "with algorithm.device: cpu where it shall be replayed"
        )


def check_start(record: Record) -> None:
    """Check the versions and the processor that a process of the job was told of at its start.

    Raises
    ------
    ConfigError
        When something is another here; names it.
    """
    spec = record["spec"]
    if not spec.get("deterministic", True):
        raise ConfigError("the job has deterministic: false: no two runs of it are the same")
    if (spec.get("simulate") or {}).get("costs"):
        raise ConfigError(
            "the run was simulated from its costs alone, without data: there is no model to "
            "reach again"
        )
    if "cpu" not in record:
        raise ConfigError(
            "the story does not say on what processor the run was: an older version of elasticml "
            "told it; run the job again"
        )
    here = versions()
    for name, there in record["versions"].items():
        if here.get(name) != there:
            raise ConfigError(
                f"{name} is {here.get(name)} here, the run had {there}: results may differ in "
                f"their last bits; install {name} {there}"
            )
    _check_cpu(record["cpu"], "the driver")


def check_member(record: Record) -> None:
    """Check the processor of a member.

    Raises
    ------
    ConfigError
        When it is of another class than this machine's.
    """
    _check_cpu(record["cpu"], f"member {record['member']} on {record['host']}")


def check_order(record: Record, algorithm: str) -> None:
    """Check that what an algorithm computes does not depend on how much memory a member had.

    Only the passes of both CoCoAs visit rows in the order in which they come from the disk.

    Raises
    ------
    ConfigError
        When it does: the order of its passes follows what streams from the disk together.
    """
    if algorithm in ("cocoa", "primal_cocoa"):
        raise ConfigError(
            f"member {record['member']} went out of core: the order of its passes depended on the "
            "memory that it had; run the job with more memory or members"
        )


def _check_cpu(there: str, whose: str) -> None:
    here = cpu_class()
    if here != there:
        raise ConfigError(
            f"the processor is {here} here, that of {whose} was {there}: compiled loops may round "
            "in another way; replay on a machine of that class"
        )
