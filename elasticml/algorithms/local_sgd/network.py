"""A module whose parameters lie in one vector: how it is made, filled, trained and asked.

One vector for all parameters, one for their gradients and one for the momentum: a step is three
operations whatever the module is made of, and a model goes up and down as it lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.local_sgd.library import load_torch
from elasticml.algorithms.local_sgd.making import (
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
from elasticml.algorithms.local_sgd.settings import Settings
from elasticml.data.chunk import Chunk
from elasticml.data.facts import DataFacts
from elasticml.errors import ConfigError, DataError

F64 = NDArray[np.float64]

#: Examples that are evaluated at once.
EVALUATED_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class Scores:
    """Sums over examples, each with its weight."""

    weight: float
    loss: float
    #: Of those whose largest output is their class; 0 in regression.
    correct: float


class Network:
    """A job's module on a device.

    Parameters
    ----------
    settings : Settings
    facts : DataFacts
    device : str, optional
        By default the one that the settings say; "auto" is CUDA where this process has it.

    Attributes
    ----------
    n_parameters, n_buffers, n_frozen : int
        Values of all parameters that are trained, of all buffers, and of all parameters that are
        frozen: no member changes these.

    Raises
    ------
    ConfigError
        When PyTorch is missing, the module cannot be made, or does not take the data.
    DataError
        When the data are not dense, or have no classes to tell apart.
    """

    def __init__(self, settings: Settings, facts: DataFacts, device: str | None = None) -> None:
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
        self.n_buffers = sum(b.numel() for b in self._buffers.values())
        self.n_frozen = sum(p.numel() for p in self._frozen.values())
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
        #: To look whether all are in training mode takes less than to set it anew.
        self._layers = list(self._module.modules())
        #: Those that refuse a single example to train on.
        self._norms = [m for m in self._layers if isinstance(m, torch.nn.BatchNorm1d)]
        self._loss = loss_of(settings.loss)
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
        """Copy the module's buffers, shape (n_buffers,)."""
        return _flattened(self._buffers)

    def frozen(self) -> F64:
        """Copy the parameters that are not trained, shape (n_frozen,)."""
        return _flattened(self._frozen)

    def fill(self, weights: F64, momentum: F64, buffers: F64) -> None:
        """Take over what :meth:`weights`, :meth:`momentum` and :meth:`buffers` have given.

        An empty momentum is one of 0.
        """
        torch = self._torch
        self._flat.copy_(torch.from_numpy(np.array(weights)))
        if not momentum.size:
            self._momentum.zero_()
        else:
            self._momentum.copy_(torch.from_numpy(np.array(momentum)))
        self._copy(buffers, self._buffers)

    def freeze(self, frozen: F64) -> None:
        """Take over what :meth:`frozen` has given; it stays until it is given anew."""
        self._copy(frozen, self._frozen)

    def _copy(self, values: F64, tensors: Mapping[str, Any]) -> None:
        at = 0
        for tensor in tensors.values():
            some = np.array(values[at : at + tensor.numel()])
            if not tensor.is_floating_point():
                np.rint(some, out=some)
            tensor.copy_(self._torch.from_numpy(some).view_as(tensor))
            at += tensor.numel()

    def named(self, weights: F64, buffers: F64, frozen: F64) -> dict[str, F64]:
        """Look at weights, buffers and what is frozen by the names that the module has for them."""
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
        """Take over a model as :meth:`named` has given it, or a module's ``state_dict()``.

        Of weights that are tied the first name counts. Buffers that no ``state_dict()`` has
        (``persistent=False``) may be missing, and stay as they are.

        Raises
        ------
        ConfigError
            When an array is missing, strange, or of another shape: it is another module's.
        """
        shapes = _shapes(self._buffers) | _shapes(self._frozen) | self._parameters
        state = {n: tuple(np.shape(v)) for n, v in self._module.state_dict().items()}
        needed = [name for name in shapes if name in state]
        for name in (*needed, *(arrays.keys() - {INPUT_MEAN, INPUT_STD})):
            found = np.shape(arrays[name]) if name in arrays else "missing"
            wanted = (state | shapes).get(name, "no such array")
            if found != wanted:
                raise ConfigError(
                    f"the network's array {name} is {found}, wanted {wanted} for model "
                    f"{self._settings.model}; give the arrays of the same module",
                    key="warm_start",
                )
        weights = [np.asarray(arrays[name]).reshape(-1) for name in self._parameters]
        buffers, frozen = (
            _flattened({name: arrays.get(name, held) for name, held in part.items()})
            for part in (self._buffers, self._frozen)
        )
        self.fill(np.concatenate(weights), np.zeros(0), buffers)
        self.freeze(frozen)

    def whole(self, chunk: Chunk, inputs: F64, rows: NDArray[np.int64] | None = None) -> Any:
        """Make batch, targets and sample weights or None of a chunk, or of some rows of it."""
        found = self.rows_of(chunk)
        picked: Any = slice(None) if rows is None else rows
        found = found.clone() if rows is None else found[self._torch.from_numpy(rows)]
        x = self.inputs(found, float(inputs[0]), float(inputs[1]))
        y = self.targets(chunk.labels[picked])
        return x, y, None if chunk.weights is None else self.sample_weights(chunk.weights[picked])

    @property
    def is_on_cuda(self) -> bool:
        """Whether it computes where the order of additions is not the same every time."""
        return bool(self.device.type == "cuda")

    @property
    def loss_name(self) -> str:
        """The loss as the job names it."""
        return self._settings.loss

    @property
    def module(self) -> Any:
        """The ``torch.nn.Module`` itself."""
        return self._module

    # --- training and asking --------------------------------------------------------------------

    def seeded(self, seed: int) -> Any:
        """Return a context in which the module's own chance, such as dropout, is this seed's."""
        return Seeded(self._torch, seed, self.device)

    def rows_of(self, chunk: Chunk) -> Any:
        """Look at a chunk's rows as a tensor (n, columns), where they lie: nobody may write to it.

        Source: the uni-task paper, section 4.4, ``torch::from_blob``.
        """
        values = chunk.values
        dtype = self._torch.float32 if values.itemsize == 4 else self._torch.float64
        return self._torch.frombuffer(values, dtype=dtype).view(values.shape)

    def tensor(self, rows: NDArray[Any]) -> Any:
        """Look at an array of this process's own as a tensor."""
        return self._torch.from_numpy(rows)

    def inputs(self, rows: Any, mean: float, std: float) -> Any:
        """Make a batch of rows, a Tensor (n, columns) that may be written to, for the module."""
        x = rows.to(device=self.device, dtype=self._dtype)
        return x.sub_(mean).mul_(1.0 / std).view(-1, *self.shape)

    def sample_weights(self, weights: F64) -> Any:
        """Make a tensor of sample weights (n,)."""
        return self._torch.tensor(weights, dtype=self._dtype, device=self.device)

    def targets(self, labels: F64) -> Any:
        """Make targets of labels (n,): numbers of classes, or the labels themselves.

        Raises
        ------
        DataError
            When a label is none of the training data's.
        """
        if self.classes is None:
            return self._torch.from_numpy(np.array(labels)).to(self.device, self._dtype)
        known = np.asarray(self.classes)
        numbers = np.minimum(np.searchsorted(known, labels), known.size - 1)
        strange = np.flatnonzero(known[numbers] != labels)
        if strange.size:
            raise DataError(
                f"the data have the label {labels[strange[0]]:g}, wanted one of the "
                f"{known.size} labels of the training data; name the right file"
            )
        return self._torch.from_numpy(numbers).to(self.device)

    def train(self, x: Any, y: Any, weights: Any, sizes: Sequence[int], rate: float) -> float:
        """Take one step after the other; return the sum over examples of their losses.

        Parameters
        ----------
        x, y : Tensor (n, ...), (n,)
        weights : Tensor (n,) or None
        sizes : sequence of int
            Examples of each step, one behind the other.
        rate : float
            Learning rate.
        """
        torch, settings = self._torch, self._settings
        flat, gradient, momentum = self._flat, self._gradient, self._momentum
        # A module may have changed its mode by itself.
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
                # One example has no variance: it is measured by those before it.
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

    def scores(self, x: Any, y: Any, weights: Any) -> Scores:
        """Evaluate a batch."""
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
        """Try one example, so that a wrong shape is told before a member computes."""
        x = self._torch.zeros(1, *self.shape, dtype=self._dtype, device=self.device)
        try:
            output = self.outputs(x)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ConfigError(
                f"algorithm.model {self._settings.model} does not take an example of shape "
                f"{list(self.shape)}: {str(error).splitlines()[0]}; set algorithm.shape or "
                "algorithm.model_options",
                key="algorithm.model",
            ) from None
        n_classes = 0 if self.classes is None else len(self.classes)
        if n_classes and (output.ndim != 2 or output.shape[1] < n_classes):
            raise ConfigError(
                f"algorithm.model {self._settings.model} gives outputs of shape "
                f"{list(output.shape[1:])}, wanted one for each of the {n_classes} classes; set "
                "algorithm.model_options",
                key="algorithm.model",
            )


def _array(tensor: Any) -> F64:
    return np.array(tensor.detach().cpu().numpy(), np.float64)


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _flattened(parts: Mapping[str, Any]) -> F64:
    """Copy tensors or arrays one behind the other, (n,)."""
    arrays = (p if isinstance(p, np.ndarray) else _array(p) for p in parts.values())
    return np.concatenate([np.zeros(0), *(np.asarray(a, np.float64).reshape(-1) for a in arrays)])
