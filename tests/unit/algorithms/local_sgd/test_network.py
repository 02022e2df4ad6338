"""A module as one vector: filled, trained and evaluated as PyTorch itself does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.local_sgd.network import Network
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId
from elasticml.specification.algorithms import LocalSGD, settings_from_section
from tests.serial_world import facts_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RNG = np.random.default_rng(0)


def chunk(n: int = 12, columns: int = 256, dtype: Any = "float32", labels: Any = None) -> Any:
    values = RNG.normal(size=(n, columns))
    y = np.arange(n) % 3.0 if labels is None else labels
    return dense_chunk(ChunkId("0" * 16, 0, 0), y, values, dtype=dtype)


def network(facts: DatasetStats | None = None, **raw: Any) -> Network:
    return Network(settings_from_section(LocalSGD, raw), facts or facts_of([chunk()]))


def test_the_first_weights_come_from_the_seed_and_leave_torch_s_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, two, other = network(seed=1), network(seed=1), network(seed=2)
    assert torch.rand(1) == expected
    assert np.array_equal(one.weights(), two.weights())
    assert not np.array_equal(one.weights(), other.weights())


def test_steps_are_those_of_torch_s_own_optimizer():
    made, held = network(momentum=0.9, weight_decay=0.01), chunk(24)
    inputs = np.array([0.1, 2.0])
    x, y, _ = made.whole(held, inputs)
    plain = network().module
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = []
    for rows in (slice(0, 8), slice(8, 16), slice(16, 24)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(plain(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(8 * loss.item())
    assert made.train(x, y, None, [8, 8, 8], 0.1) == pytest.approx(sum(losses), rel=1e-6)
    flat = torch.cat([p.detach().reshape(-1) for p in plain.parameters()]).numpy()
    assert np.abs(made.weights() - flat).max() <= 1e-6


def test_a_state_dict_with_frozen_and_tied_weights_is_taken_over():
    facts = facts_of([chunk()])
    made, other = (network(facts, model="tests.networks:tied", seed=seed) for seed in (0, 9))
    state = made.module.state_dict()
    other.fill_named({name: tensor.double().numpy() for name, tensor in state.items()})
    for name, tensor in state.items():
        assert torch.equal(other.module.state_dict()[name], tensor), name
    # Members and results receive it as weights, buffers and frozen values.
    member = network(facts, model="tests.networks:tied", seed=3)
    member.fill(made.weights(), np.zeros(0), made.buffers())
    member.freeze(made.frozen())
    assert torch.equal(member.module.before.weight, made.module.before.weight)
    assert "before.weight" in made.named(made.weights(), made.buffers(), made.frozen())


def test_scores_are_weighted_sums():
    made, held = network(), chunk(6)
    x, y, _ = made.whole(held, np.array([0.0, 1.0]))
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0, 1.0])
    result = made.scores(x, y, weights)
    output = made.outputs(x)
    each = torch.nn.functional.cross_entropy(output, y, reduction="none")
    hits = (output.argmax(1) == y).float()
    expected = (7.0, float(weights @ each), float(weights @ hits))
    assert (result.weight, result.loss, result.correct) == pytest.approx(expected, rel=1e-6)


def test_labels_are_numbered_in_their_order_and_unknown_ones_are_named():
    made = network(facts_of([chunk(4, labels=np.array([7.0, -1.0, 30.0, 7.0]))]))
    assert made.targets(np.array([30.0, -1.0, 7.0])).tolist() == [2, 0, 1]
    with pytest.raises(DataError, match=r"the label 8, wanted one of the 3 labels"):
        made.targets(np.array([7.0, 8.0]))


def test_a_regression_loss_takes_targets_as_they_are():
    held = chunk(5, labels=np.array([0.5, 1.5, -2.0, 4.0, 0.25]))
    made = network(facts_of([held]), model="tests.networks:linear", loss="mse")
    x, y, _ = made.whole(held, np.array([0.0, 1.0]))
    assert made.scores(x, y, None).loss == pytest.approx(float(held.labels @ held.labels))


CONTINUOUS = facts_of([chunk(1100, 1, labels=RNG.normal(size=1100))])


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"shape": [1, 20, 20]}, r"algorithm.shape is \[1, 20, 20\], 400 values.*256 columns"),
        ({"model": "tests.networks:none"}, "tests.networks:none', which cannot be imported"),
        ({"model": "tests.networks:NUMBER"}, "NUMBER', a Tensor, wanted a callable"),
        ({"model": "tests.networks:words"}, "makes a str, wanted a torch.nn.Module"),
        ({"model": "tests.networks:double"}, "parameters of type float32, float64, wanted"),
        ({"model_options": {"depth": 3}}, "cannot be made: .*unexpected keyword argument 'depth'"),
        ({"model_options": {"classes": 2}}, r"outputs of shape \[2\], wanted .* the 3 classes"),
        ({"model": "tests.networks:noisy", "shape": [16, 16]}, "does not take an example of shape"),
        ({"model_options": {"channels": [3]}}, "2 channels and 2 hidden widths"),
    ],
)
def test_a_module_that_does_not_fit_is_named(raw, text):
    with pytest.raises(ConfigError, match=text):
        network(**raw)


def test_images_too_small_for_the_cnn_are_named():
    with pytest.raises(ConfigError, match="at least 16 x 16 pixels"):
        network(facts_of([chunk(columns=100)]))


def test_data_without_classes_need_another_loss():
    with pytest.raises(DataError, match="the data have continuous; use loss: mse"):
        network(CONTINUOUS, model="tests.networks:linear")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_device_is_named():
    with pytest.raises(ConfigError, match=r"algorithm.device is cuda, and this process has no"):
        network(device="cuda")


def test_batch_norm_of_a_single_example_uses_running_statistics():
    # PyTorch refuses it, and the last step of an epoch has only the remaining examples.
    facts = facts_of([chunk()])
    made = network(facts, model="tests.networks:noisy")
    x, y, _ = made.whole(chunk(), np.array([0.0, 1.0]))
    made.train(x[:6], y[:6], None, [6], 0.1)
    before = made.buffers()
    assert np.isfinite(made.train(x[6:7], y[6:7], None, [1], 0.1))
    assert np.array_equal(made.buffers(), before)
    made.train(x[:6], y[:6], None, [6], 0.1)
    assert not np.array_equal(made.buffers(), before)


def test_a_module_that_changes_its_mode_by_itself_trains_in_training_mode_again():
    made = network(facts_of([chunk()]), model="tests.networks:hasty")
    x, y, _ = made.whole(chunk(), np.array([0.0, 1.0]))
    # Earlier training in this process must make no difference: another member has not seen it.
    for _ in range(3):
        made.train(x[:6], y[:6], None, [6], 0.1)
    assert made.module[0].modes == (False, True, True, True)


def test_the_paper_s_cnn_has_the_layers_that_the_paper_names():
    kinds = [type(layer).__name__ for layer in network().module]
    assert [kinds.count(k) for k in ("Conv2d", "MaxPool2d", "Linear", "ReLU")] == [2, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_chunk_s_rows_become_tensors_without_a_copy(dtype):
    held = chunk(dtype=dtype)
    rows = network().rows_of(held)
    assert rows.data_ptr() == held.values.ctypes.data
    assert np.array_equal(rows.numpy(), held.values)
