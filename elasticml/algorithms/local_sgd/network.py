"""A torch module with flat parameters: loading, training and evaluation.

All parameters are views of one vector, and so are gradients and momentum. So a step is three tensor
operations whatever the module, and the model is sent and received as one array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.local_sgd.module_factory import (
    INPUT_MEAN,
    INPUT_STD,
    Seeded,
    check_parameters,
    classes_of,
    device_of,
    loss_of,
    make_module,
    shape_of,
)
from elasticml.algorithms.local_sgd.torch_import import load_torch
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import ConfigError, DataError, one_line
from elasticml.specification.algorithms import LocalSGD

#: Batch size of evaluations.
EVALUATED_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class Scores:
    """Weighted sums over examples."""

    weight: float
    loss: float
    #: Weight of the examples whose largest output is their class; 0 in regression.
    correct: float


class Network:
    """A job's module on a device.

    Parameters
    ----------
    settings : Settings
    facts : DatasetStats
    device : str, optional
        By default the device of the settings; "auto" is CUDA if available.

    Attributes
    ----------
    n_parameters : int
        Number of values in trained parameters.

    Raises
    ------
    ConfigError
        When PyTorch is missing, the module cannot be created, or does not accept the data.
    DataError
        When the data are not dense, or have no classes although the loss needs them.
    """

    def __init__(self, settings: LocalSGD, facts: DatasetStats, device: str | None = None) -> None:
        self._torch = torch = load_torch()
        self._settings = settings
        self.classes = classes_of(settings, facts)
        self.shape = shape_of(settings, facts)
        self.device = device_of(torch, device or settings.device)
        self._module = make_module(torch, settings, self.shape, self.classes).to(self.device)
        trained = [(n, p) for n, p in self._module.named_parameters() if p.requires_grad]
        self._parameters = {name: tuple(p.shape) for name, p in trained}
        self._frozen = {n: p for n, p in self._module.named_parameters() if not p.requires_grad}
        self._buffers = dict(self._module.named_buffers())
        names = [*self._parameters, *self._buffers, *self._frozen]
        check_parameters(settings, trained, names)
        self.n_parameters = sum(p.numel() for _, p in trained)
        dtype = trained[0][1].dtype
        self._flat = torch.empty(self.n_parameters, dtype=dtype, device=self.device)
        self._gradient = torch.zeros_like(self._flat)
        self._momentum = torch.zeros_like(self._flat)
        at = 0
        for _, parameter in trained:
            end = at + parameter.numel()
            self._flat[at:end] = parameter.detach().reshape(-1)
            parameter.data = self._flat[at:end].view_as(parameter)
            parameter.grad = self._gradient[at:end].view_as(parameter)
            at = end
        #: Checking that all are in training mode is faster than setting it each time.
        self._layers = list(self._module.modules())
        #: Layers that cannot train on a single example.
        self._norms = [m for m in self._layers if isinstance(m, torch.nn.BatchNorm1d)]
        self._loss = loss_of(str(settings.loss))
        self._dtype = dtype
        self._check_output()

    # --- the model as arrays --------------------------------------------------------------------

    def weights(self) -> F64:
        """Copy the parameters, shape (n_parameters,)."""
        return _array(self._flat)

    def momentum(self) -> F64:
        """Copy the momentum, shape (n_parameters,)."""
        return _array(self._momentum)

    def buffers(self) -> F64:
        """Copy the module's buffers, flat."""
        return _flattened(self._buffers)

    def frozen(self) -> F64:
        """Copy the parameters that are not trained, flat."""
        return _flattened(self._frozen)

    def fill(self, weights: F64, momentum: F64, buffers: F64) -> None:
        """Set the values returned by :meth:`weights`, :meth:`momentum` and :meth:`buffers`.

        An empty momentum means zero.
        """
        torch = self._torch
        self._flat.copy_(torch.from_numpy(np.array(weights)))
        if not momentum.size:
            self._momentum.zero_()
        else:
            self._momentum.copy_(torch.from_numpy(np.array(momentum)))
        self._copy(buffers, self._buffers)

    def freeze(self, frozen: F64) -> None:
        """Set the frozen parameters, as returned by :meth:`frozen`."""
        self._copy(frozen, self._frozen)

    def _copy(self, values: F64, tensors: Mapping[str, Any]) -> None:
        at = 0
        for tensor in tensors.values():
            part = np.array(values[at : at + tensor.numel()])
            if not tensor.is_floating_point():
                np.rint(part, out=part)
            tensor.copy_(self._torch.from_numpy(part).view_as(tensor))
            at += tensor.numel()

    def named(self, weights: F64, buffers: F64, frozen: F64) -> dict[str, F64]:
        """Return views of weights, buffers and frozen parameters by the module's names."""
        named: dict[str, F64] = {}
        parts_of = (self._parameters, _shapes(self._buffers), _shapes(self._frozen))
        for vector, parts in zip((weights, buffers, frozen), parts_of, strict=True):
            at = 0
            for name, shape in parts.items():
                size = math.prod(shape)
                named[name] = vector[at : at + size].reshape(shape)
                at += size
        return named

    def fill_named(self, arrays: Mapping[str, F64]) -> None:
        """Set a model from the result of :meth:`named` or a module's ``state_dict()``.

        For tied weights the first name is used. Buffers that are not in ``state_dict()``
        (``persistent=False``) may be missing, and keep their values.

        Raises
        ------
        ConfigError
            When an array is missing, unknown, or has another shape: it is another module's.
        """
        shapes = _shapes(self._buffers) | _shapes(self._frozen) | self._parameters
        state = {n: tuple(np.shape(v)) for n, v in self._module.state_dict().items()}
        needed = [name for name in shapes if name in state]
        for name in (*needed, *(arrays.keys() - {INPUT_MEAN, INPUT_STD})):
            shape = np.shape(arrays[name]) if name in arrays else "missing"
            expected = (state | shapes).get(name, "no such array")
            if shape != expected:
                raise ConfigError(
                    f"warm_start: the network's array {name} is {shape}, wanted {expected} for "
                    f"model {self._settings.model}; give the arrays of the same module"
                )
        weights = [np.asarray(arrays[name]).reshape(-1) for name in self._parameters]
        buffers, frozen = (
            _flattened({name: arrays.get(name, held) for name, held in part.items()})
            for part in (self._buffers, self._frozen)
        )
        self.fill(np.concatenate(weights), np.zeros(0), buffers)
        self.freeze(frozen)

    def whole(self, chunk: Chunk, inputs: F64, rows: NDArray[np.int64] | None = None) -> Any:
        """Return batch, targets, and sample weights or None, of a chunk or some of its rows."""
        values = self.rows_of(chunk)
        index: Any = slice(None) if rows is None else rows
        values = values.clone() if rows is None else values[self._torch.from_numpy(rows)]
        x = self.inputs(values, float(inputs[0]), float(inputs[1]))
        y = self.targets(chunk.labels[index])
        return x, y, None if chunk.weights is None else self.sample_weights(chunk.weights[index])

    @property
    def is_on_cuda(self) -> bool:
        """Whether it computes on CUDA, where the order of additions is not reproducible."""
        return bool(self.device.type == "cuda")

    @property
    def module(self) -> Any:
        """The ``torch.nn.Module``."""
        return self._module

    # --- training and evaluation ----------------------------------------------------------------

    def seeded(self, seed: int) -> Any:
        """Return a context that seeds the module's random operations, such as dropout."""
        return Seeded(self._torch, seed, self.device)

    def rows_of(self, chunk: Chunk) -> Any:
        """Return a chunk's rows as a tensor (n, columns) without a copy; do not modify it.

        Source: the uni-task paper, section 4.4, ``torch::from_blob``.
        """
        values = chunk.values
        dtype = self._torch.float32 if values.itemsize == 4 else self._torch.float64
        return self._torch.frombuffer(values, dtype=dtype).view(values.shape)

    def tensor(self, rows: NDArray[Any]) -> Any:
        """Return a writable array as a tensor without a copy."""
        return self._torch.from_numpy(rows)

    def inputs(self, rows: Any, mean: float, std: float) -> Any:
        """Return the module's normalised input for rows, a Tensor (n, columns) it may modify."""
        x = rows.to(device=self.device, dtype=self._dtype)
        return x.sub_(mean).mul_(1.0 / std).view(-1, *self.shape)

    def sample_weights(self, weights: F64) -> Any:
        """Return sample weights (n,) as a tensor."""
        return self._torch.tensor(weights, dtype=self._dtype, device=self.device)

    def targets(self, labels: F64) -> Any:
        """Return the targets of labels (n,): class numbers, or in regression the labels.

        Raises
        ------
        DataError
            When a label does not occur in the training data.
        """
        if self.classes is None:
            return self._torch.from_numpy(np.array(labels)).to(self.device, self._dtype)
        classes = np.asarray(self.classes)
        numbers = np.minimum(np.searchsorted(classes, labels), classes.size - 1)
        unknown = np.flatnonzero(classes[numbers] != labels)
        if unknown.size:
            raise DataError(
                f"the data have the label {labels[unknown[0]]:g}, wanted one of the "
                f"{classes.size} labels of the training data; name the right file"
            )
        return self._torch.from_numpy(numbers).to(self.device)

    def train(self, x: Any, y: Any, weights: Any, sizes: Sequence[int], rate: float) -> float:
        """Take SGD steps on consecutive batches; return the sum of the examples' losses.

        Parameters
        ----------
        x, y : Tensor (n, ...), (n,)
        weights : Tensor (n,) or None
        sizes : sequence of int
            Batch size of each step.
        rate : float
            Learning rate.
        """
        torch, settings = self._torch, self._settings
        flat, gradient, momentum = self._flat, self._gradient, self._momentum
        # The module's own code may have changed its mode.
        if not all(layer.training for layer in self._layers):
            self._module.train()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        at = 0
        for size in sizes:
            rows = slice(at, at + size)
            at += size
            gradient.zero_()
            part = None if weights is None else weights[rows]
            for norm in self._norms:
                # A single example has no variance: use the running statistics.
                norm.train(size > 1)
            loss = self._loss(self._module(x[rows]), y[rows], part)
            loss.backward()
            total.add_(loss.detach(), alpha=size)
            if settings.weight_decay:
                gradient.add_(flat, alpha=settings.weight_decay)
            step = gradient
            if settings.momentum:
                step = momentum.mul_(settings.momentum).add_(gradient)
            flat.add_(step, alpha=-rate)
        return float(total)

    def outputs(self, x: Any) -> Any:
        """Return the module's outputs for a batch, in evaluation mode, without gradients."""
        self._module.eval()
        with self._torch.no_grad():
            parts = [self._module(part) for part in x.split(EVALUATED_ROWS)]
        return self._torch.cat(parts)

    def predicted(self, rows: Any, arrays: Mapping[str, F64]) -> F64:
        """Return the outputs for rows, a tensor (n, d) as in the data, by a model's scaling."""
        mean, std = (float(np.ravel(arrays[name])[0]) for name in (INPUT_MEAN, INPUT_STD))
        outputs = self.outputs(self.inputs(rows, mean, std))
        return np.asarray(outputs.cpu().numpy(), np.float64)

    def scores(self, x: Any, y: Any, weights: Any) -> Scores:
        """Return the scores of a batch."""
        n = y.shape[0]
        if n == 0:
            return Scores(0.0, 0.0, 0.0)
        output = self.outputs(x)
        total = float(n if weights is None else weights.sum())
        loss = float(self._loss(output, y, weights)) * total
        if self.classes is None:
            return Scores(total, loss, 0.0)
        hits = (output.argmax(1) == y).to(self._torch.float64)
        return Scores(
            total, loss, float(hits.sum() if weights is None else hits @ weights.double())
        )

    def _check_output(self) -> None:
        """Run one example, to report a wrong shape before any member computes."""
        x = self._torch.zeros(1, *self.shape, dtype=self._dtype, device=self.device)
        try:
            output = self.outputs(x)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ConfigError(
                f"algorithm.model {self._settings.model} does not take an example of shape "
                f"{list(self.shape)}: {one_line(error)}; set algorithm.shape or "
                "algorithm.model_options"
            ) from None
        n_classes = 0 if self.classes is None else len(self.classes)
        if n_classes and (output.ndim != 2 or output.shape[1] < n_classes):
            raise ConfigError(
                f"algorithm.model {self._settings.model} gives outputs of shape "
                f"{list(output.shape[1:])}, wanted one for each of the {n_classes} classes; set "
                "algorithm.model_options"
            )


def _array(tensor: Any) -> F64:
    return np.array(tensor.detach().cpu().numpy(), np.float64)


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _flattened(parts: Mapping[str, Any]) -> F64:
    """Concatenate tensors or arrays into one vector, (n,)."""
    arrays = (p if isinstance(p, np.ndarray) else _array(p) for p in parts.values())
    return np.concatenate([np.zeros(0), *(np.asarray(a, np.float64).reshape(-1) for a in arrays)])
