"""Export linear models and K-Means to ONNX, in double precision, with one input per column."""

from __future__ import annotations

from typing import Any

import numpy as np

from elasticml.arrays import F64
from elasticml.data.readers.tables import ColumnEncoding
from elasticml.errors import ConfigError, how_to_install
from elasticml.ids import VERSION
from elasticml.models.row_input import RowInput

#: Opsets of ONNX and of its machine-learning operators.
_OPSETS = {"": 17, "ai.onnx.ml": 3}
_IR_VERSION = 8


class OnnxGraph:
    """Nodes, constants, inputs and outputs of a graph under construction.

    Raises
    ------
    ConfigError
        When onnx is not installed.
    """

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError:
            raise ConfigError(f"onnx is not installed; {how_to_install('export')}") from None
        self._onnx: Any = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def model(self) -> Any:
        """Return the checked model."""
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "elasticml", self._inputs, self._outputs, self._constants
        )
        made = helper.make_model(
            graph,
            producer_name="elasticml",
            producer_version=VERSION,
            opset_imports=[helper.make_opsetid(name, n) for name, n in _OPSETS.items()],
            ir_version=_IR_VERSION,
        )
        self._onnx.checker.check_model(made)
        return made

    def rows(self, rows: RowInput) -> str:
        """Add inputs and their encoding; return the name of the encoded rows, (n, d)."""
        encoder = rows.encoder
        if encoder is None:
            return self._input("X", "DOUBLE", rows.n_columns)
        parts = [part for column in encoder.columns for part in self._column(column)]
        joined = self._add("Concat", parts, axis=1)
        if encoder.n_columns != rows.n_columns:
            raise ConfigError("to_onnx: data.n_columns cut the columns; train without n_columns")
        return joined

    def linear(
        self,
        rows: str,
        coef: F64,
        intercept: F64,
        classes_: Any,
        is_logistic: bool,
        *,
        is_log: bool = False,
        one_against_rest: bool = False,
    ) -> None:
        """Add margins, or means if the link is log; labels and probabilities of classifiers."""
        margins = self._add(
            "Add",
            [
                self._add("MatMul", [rows, self._constant(coef.T)]),
                self._constant(intercept[None, :]),
            ],
        )
        if classes_ is None:
            value = self._add("Exp", [margins]) if is_log else margins
            self._output(value, "value", "DOUBLE", [None, len(coef)])
            return
        k = len(classes_)
        if len(coef) == 1:
            zeros = self._add("Sub", [margins, margins])
            margins = self._add("Concat", [zeros, margins], axis=1)
        codes = self._add("ArgMax", [margins], axis=1, keepdims=0)
        is_text = classes_.dtype.kind == "U"
        classes = classes_ if is_text else classes_.astype(np.float64)
        if is_text:
            values = self._onnx.helper.make_tensor(
                "classes",
                self._onnx.TensorProto.STRING,
                [k],
                [c.encode() for c in classes.tolist()],
            )
            self._constants.append(values)
            name = "classes"
        else:
            name = self._constant(classes)
        label = self._add("Gather", [name, codes])
        self._output(label, "label", "STRING" if is_text else "DOUBLE", [None])
        if is_logistic and one_against_rest:
            each = self._add("Sigmoid", [margins])
            total = self._add("ReduceSum", [each, self._constant(np.array([1]))], keepdims=1)
            self._output(self._add("Div", [each, total]), "probabilities", "DOUBLE", [None, k])
        elif is_logistic:
            shares = self._add("Softmax", [margins], axis=1)
            self._output(shares, "probabilities", "DOUBLE", [None, k])
        else:
            self._output(margins, "margins", "DOUBLE", [None, k])

    def kmeans(self, rows: str, centres: F64) -> None:
        """Add distances to the centres, and the nearest one."""
        each = []
        for centre in centres:
            difference = self._add("Sub", [rows, self._constant(centre[None, :])])
            square = self._add("Mul", [difference, difference])
            axes = self._constant(np.array([1]))
            each.append(self._add("Sqrt", [self._add("ReduceSum", [square, axes], keepdims=1)]))
        distances = self._add("Concat", each, axis=1)
        cluster = self._add("ArgMin", [distances], axis=1, keepdims=0)
        self._output(cluster, "cluster", "INT64", [None])
        self._output(distances, "distances", "DOUBLE", [None, len(each)])

    def _column(self, column: ColumnEncoding) -> list[str]:
        name, numeric = column.name, column.kind == "number"
        if numeric or (column.kind == "date" and column.parts == ("days",)):
            given = self._input(name, "DOUBLE", 1)
            if column.fill is None:
                return [given]
            missing = self._add("IsNaN", [given])
            fill = self._constant(np.array([[column.fill]]))
            filled = self._add("Where", [missing, fill, given])
            if not column.indicator:
                return [filled]
            return [filled, self._add("Cast", [missing], to=self._onnx.TensorProto.DOUBLE)]
        if column.kind != "category":
            raise ConfigError(
                f"to_onnx: column {name!r} is encoded as {column.kind}, which ONNX cannot express; "
                "ignore it, or use dates: [days] and rare: other"
            )
        given = self._input(name, "STRING", 1)
        texts = ["" if text is None else text for text in column.categories]
        one_hot = self._add(
            "OneHotEncoder", [given], domain="ai.onnx.ml", cats_strings=texts, zeros=1
        )
        flat = self._add("Reshape", [one_hot, self._constant(np.array([-1, len(texts)]))])
        codes = self._add("Cast", [flat], to=self._onnx.TensorProto.DOUBLE)
        if not column.other:
            return [codes]
        total = self._add("ReduceSum", [codes, self._constant(np.array([1]))], keepdims=1)
        return [codes, self._add("Sub", [self._constant(np.array([[1.0]])), total])]

    def _add(self, operator: str, inputs: list[str], domain: str = "", **attributes: Any) -> str:
        name = f"{operator.lower()}_{len(self._nodes)}"
        node = self._onnx.helper.make_node(operator, inputs, [name], domain=domain, **attributes)
        self._nodes.append(node)
        return name

    def _constant(self, values: Any) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.array(values), name))
        return name

    def _input(self, name: str, kind: str, width: int) -> str:
        helper, types = self._onnx.helper, self._onnx.TensorProto
        kinds = {"DOUBLE": types.DOUBLE, "STRING": types.STRING}
        self._inputs.append(helper.make_tensor_value_info(name, kinds[kind], [None, width]))
        return name

    def _output(self, name: str, as_: str, kind: str, shape: list[Any]) -> None:
        helper, types = self._onnx.helper, self._onnx.TensorProto
        self._nodes.append(helper.make_node("Identity", [name], [as_]))
        self._outputs.append(helper.make_tensor_value_info(as_, getattr(types, kind), shape))
