"""Callbacks of a job: their base, and those for MLflow, TensorBoard and Weights & Biases.

Examples
--------
>>> issubclass(em.callbacks.MLflowCallback, em.callbacks.Callback)
True
"""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticml.errors import ConfigError, how_to_install, one_line
from elasticml.jobs.callbacks import Callback as Callback
from elasticml.jobs.yaml_text import dump_yaml
from elasticml.story.history import HistoryRow

if TYPE_CHECKING:
    from elasticml.jobs.result import Result

#: Longest value of a parameter, and most parameters in one request, that MLflow accepts.
_PARAM_LENGTH, _PARAMS = 6000, 100


class MLflowCallback(Callback):
    """Logs a job as a run of MLflow: its settings, a metric per column, its run directory.

    An active run (``with mlflow.start_run():``) is used and not ended, unless ``tracking_uri`` is
    given.

    Parameters
    ----------
    experiment : str
        It is created if it does not exist.
    run_name : str, optional
        By default the job's name.
    tracking_uri : str, optional
        By default MLflow's own.
    artifacts : bool
        Whether to log the files of the run directory.

    Raises
    ------
    ConfigError
        When MLflow is not installed.

    Examples
    --------
    >>> callback = em.callbacks.MLflowCallback("flights", tracking_uri="sqlite:///runs.db")
    """

    def __init__(
        self,
        experiment: str = "elasticml",
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        artifacts: bool = True,
    ) -> None:
        _require("mlflow", "mlflow")
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self.artifacts = artifacts
        #: The id of MLflow's run, once the job has begun.
        self.run_id: str | None = None
        self._client: Any = None
        self._is_ours = True

    def on_start(self, job: Mapping[str, Any]) -> None:
        """Begin a run, and log the job's settings as its parameters."""
        import mlflow
        from mlflow.entities import Param

        self._client = mlflow.MlflowClient(self.tracking_uri)
        active = mlflow.active_run() if self.tracking_uri is None else None
        self._is_ours = active is None
        if active is None:
            found = self._client.get_experiment_by_name(self.experiment)
            id = found.experiment_id if found else self._client.create_experiment(self.experiment)
            name = self.run_name or str(job.get("name") or "job")
            active = self._client.create_run(id, run_name=name)
        self.run_id = active.info.run_id
        params = [Param(key, value[:_PARAM_LENGTH]) for key, value in _flat(job).items()]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(self.run_id, params=params[start : start + _PARAMS])

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of a row as metrics, with the round as their step."""
        from mlflow.entities import Metric

        now_ms, step = int(time.time() * 1000), HistoryRow(row).round
        metrics = [Metric(name, value, now_ms, step) for name, value in numbers_in(row).items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def on_end(self, result: Result) -> None:
        """Log the last row and the run directory, and end the run."""
        for row in result.history[-1:]:
            self.on_round(row)
        if self.artifacts:
            with tempfile.TemporaryDirectory() as folder:
                run_dir = result.run_dir or result.save(Path(folder) / "run")
                self._client.log_artifacts(self.run_id, str(run_dir))
        self._terminate("FINISHED")

    def on_fail(self, error: BaseException) -> None:
        """End the run as killed or failed."""
        if self.run_id is not None:
            self._client.set_tag(self.run_id, "error", one_line(error)[:_PARAM_LENGTH])
            self._terminate("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")

    def _terminate(self, status: str) -> None:
        if self._is_ours:
            self._client.set_terminated(self.run_id, status)


class TensorBoardCallback(Callback):
    """Writes a job's history as scalars for TensorBoard, a tag per column.

    Parameters
    ----------
    log_dir : path
        The run's folder; ``tensorboard --logdir`` names it or its parent.

    Raises
    ------
    ConfigError
        When TensorBoard is not installed.

    Examples
    --------
    >>> callback = em.callbacks.TensorBoardCallback("runs/board")
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        _require("tensorboard", "tensorboard")
        self.log_dir = os.fspath(log_dir)
        self._writer: Any = None

    def on_start(self, job: Mapping[str, Any]) -> None:
        """Open the event file, and write the job file as a text."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(self.log_dir)
        text = dump_yaml(dict(job)).replace("\n", "\n    ")
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(
            dtype=DT_STRING, string_val=[f"    {text}".encode()], tensor_shape=shape
        )
        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._write([Summary.Value(tag="job", metadata=plugin, tensor=tensor)], 0)

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of a row, with the round as their step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=n, simple_value=v) for n, v in numbers_in(row).items()]
        self._write(values, HistoryRow(row).round)

    def on_end(self, result: Result) -> None:
        """Write the last row and close the file."""
        for row in result.history[-1:]:
            self.on_round(row)
        self._writer.close()

    def on_fail(self, error: BaseException) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, values: list[Any], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=values)
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()


class WandbCallback(Callback):
    """Logs a job as a run of Weights & Biases: its settings as the configuration, its history.

    A run that is open already (``wandb.init`` before) is used and not finished.

    Parameters
    ----------
    **settings
        Arguments of ``wandb.init``, such as ``project="flights"`` and ``mode="offline"``.

    Raises
    ------
    ConfigError
        When wandb is not installed.

    Examples
    --------
    >>> callback = em.callbacks.WandbCallback(project="flights", mode="offline")
    """

    def __init__(self, **settings: Any) -> None:
        _require("wandb", "wandb")
        self.settings = settings
        self._run: Any = None
        self._is_ours = True

    def on_start(self, job: Mapping[str, Any]) -> None:
        """Begin a run with the job's settings."""
        import wandb

        self._is_ours = wandb.run is None
        if wandb.run is None:
            self._run = wandb.init(**{"name": job.get("name"), **self.settings})
        else:
            self._run = wandb.run
        self._run.config.update(_flat(job), allow_val_change=True)

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of a row, with the round as the step."""
        values = numbers_in(row)
        self._run.log(values, step=HistoryRow(row).round if self._is_ours else None)

    def on_end(self, result: Result) -> None:
        """Log the last row and the summary's numbers, and finish the run."""
        for row in result.history[-1:]:
            self.on_round(row)
        self._run.summary.update(numbers_in(result.summary))
        self._finish(0)

    def on_fail(self, error: BaseException) -> None:
        """Finish the run as failed."""
        if self._run is not None:
            self._finish(1)

    def _finish(self, code: int) -> None:
        if self._is_ours:
            self._run.finish(exit_code=code)


def numbers_in(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row by column; booleans, texts and blanks are left out."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _flat(job: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return settings by their paths, such as ``algorithm.l2``."""
    flat: dict[str, str] = {}
    for key, value in job.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: str(value)}
    return flat


def _require(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{module} is not installed; {how_to_install(extra)}")
