"""Local SGD in one thread: plain PyTorch's steps, weighted means, epochs, and resuming."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.local_sgd import local_sgd_exchanges
from elasticml.algorithms.local_sgd.module_factory import cnn
from elasticml.algorithms.local_sgd.network import Network
from elasticml.algorithms.local_sgd.sampler import order_keys
from elasticml.algorithms.local_sgd.solver import LocalSGDSolver
from elasticml.algorithms.local_sgd.trainer import make_trainer
from elasticml.errors import ConfigError, JobFailedError
from tests.serial_world import Return, Run, Vanish, World, facts_of, split_rows

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SEED, RATE, MOMENTUM = 3, 0.02, 0.9
RNG = np.random.default_rng(1)
LABELS = RNG.integers(0, 4, 90).astype(float)
IMAGES = RNG.normal(size=(90, 256)) + LABELS[:, None] * RNG.normal(size=256) * 0.3


def parts_of(n_members: int) -> Any:
    return split_rows(IMAGES, LABELS, n_members, chunk_rows=13)


def world(n_members: int, **changes: Any) -> World:
    settings = {"seed": SEED, "learning_rate": RATE, "momentum": MOMENTUM, "normalize": "none"}
    kind = {k: changes.pop(k) for k in list(changes) if k in World.__dataclass_fields__}
    return World(
        settings={**settings, **changes},
        parts=parts_of(n_members),
        algorithm="local_sgd",
        **{"absent": "reload", **kind},
    )


def row_order(member: int, n_members: int, epoch: int) -> np.ndarray:
    """Return the rows of all images that a member has, by ascending key."""
    chunks = parts_of(n_members)[member]
    keys = np.concatenate([order_keys(SEED, c.id, epoch, c.n_rows) for c in chunks])
    return np.argsort(keys) + 90 // n_members * member


def plain_pytorch(batches: list[np.ndarray]) -> tuple[list[float], np.ndarray]:
    """Return what PyTorch alone computes for these batches: losses and final weights."""
    torch.manual_seed(SEED)
    module = cnn((1, 16, 16), 4)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for rows in batches:
        x = torch.tensor(IMAGES[rows], dtype=torch.float32).view(-1, 1, 16, 16)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), torch.tensor(LABELS[rows]).long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, flat(module.state_dict())


def flat(arrays: Any) -> np.ndarray:
    named = {k: np.asarray(v) for k, v in arrays.items() if not k.startswith("input_")}
    return np.concatenate([array.reshape(-1) for array in named.values()])


def column(run: Run, name: str) -> list[Any]:
    return [row.extra[name] for row in run.rows]


def test_one_member_takes_plain_pytorch_s_steps_to_the_last_loss():
    """K = 1, H = 1, two epochs of 12 batches, the last of which has 2 examples."""
    run = world(1, batch=8, local_steps=1, epochs=2).run(100)
    batches = [row_order(0, 1, epoch)[at : at + 8] for epoch in (0, 1) for at in range(0, 90, 8)]
    losses, weights = plain_pytorch(batches)
    assert len(run.rows) == len(losses) == 24
    assert np.abs([row.objective for row in run.rows] - np.array(losses)).max() <= 1e-5
    assert np.abs(flat(run.model.arrays) - weights).max() <= 1e-5
    assert (run.model.converged, run.model.reason) == (True, "2 epochs")


def test_with_one_step_three_members_are_mini_batch_sgd_over_all_their_samples():
    run = world(3, batch=5, local_steps=1, rate_rule="constant", epochs=1).run(100)
    orders = [row_order(member, 3, 0) for member in range(3)]
    batches = [np.concatenate([o[at : at + 5] for o in orders]) for at in range(0, 30, 5)]
    losses, weights = plain_pytorch(batches)
    assert np.abs([row.objective for row in run.rows] - np.array(losses)).max() <= 1e-5
    assert np.abs(flat(run.model.arrays) - weights).max() <= 1e-5


def test_sixteen_steps_in_a_round_are_the_same_as_sixteen_rounds_bit_for_bit():
    long = world(1, batch=2, local_steps=16).run(2)
    short = world(1, batch=2, local_steps=1).run(32)
    assert np.array_equal(flat(long.model.arrays), flat(short.model.arrays))


def test_a_warm_start_continues_where_another_run_ended():
    """Without momentum, two epochs equal one epoch and then another, to the last bit."""
    sizes = {"batch": 90, "local_steps": 1, "momentum": 0.0}
    whole = world(1, **sizes).run(2).model.arrays
    first = world(1, **sizes).run(1).model.arrays
    again = world(1, **sizes, warm_start=first).run(1)
    assert np.array_equal(flat(again.rows[0].model), flat(first))
    # The order of a first epoch differs from a second one's: the same terms, added in another
    # order.
    assert flat(again.model.arrays) == pytest.approx(flat(whole), abs=1e-6)


def test_a_warm_start_brings_its_input_normalisation():
    value = {**world(1).run(1).model.arrays, "input_mean": np.array([2.0])}
    value["input_std"] = np.array([4.0])
    second = world(1, warm_start=value, normalize="auto").run(1).model.arrays
    assert (second["input_mean"][0], second["input_std"][0]) == (2.0, 4.0)
    request = world(1, warm_start=value, normalize=(1.0, 3.0)).run(1).model.arrays
    assert (request["input_mean"][0], request["input_std"][0]) == (1.0, 3.0)


def test_the_arrays_of_another_module_are_refused():
    settings = dict(world(1).run(1).model.arrays)
    name = next(name for name in settings if name.endswith("bias"))
    for change, text in (
        ({name: np.zeros(99)}, rf"array {name} is \(99,\), wanted"),
        ({"more": np.zeros(1)}, r"array more is \(1,\), wanted no such array"),
    ):
        with pytest.raises(ConfigError, match=text):
            world(1, warm_start={**settings, **change}).run(1)
    del settings[name]
    with pytest.raises(ConfigError, match=rf"array {name} is missing, wanted"):
        world(1, warm_start=settings).run(1)


def test_a_row_says_how_many_samples_were_computed_on_cuda(monkeypatch):
    """No two runs on CUDA have the same bits."""
    assert "on_cuda" not in world(2, batch=4).run(1).rows[0].extra
    monkeypatch.setattr(Network, "is_on_cuda", True)
    (row,) = world(2, batch=4, local_steps=2).run(1).rows
    assert row.extra["on_cuda"] == row.extra["samples"] == 16


def test_the_holdout_is_evaluated_at_the_start_of_every_epoch_and_never_trained_on():
    run = world(2, batch=4, local_steps=2, holdout=0.3, epochs=3).run(100)
    firsts = [row for row in run.rows if "holdout_accuracy" in row.extra]
    assert [row.extra["epoch"] for row in firsts] == [0.0, 1.0, 2.0]
    assert len({row.extra["holdout_loss"] for row in firsts}) == 3
    evaluated = {
        a.outcome.arrays["scores"][0] for a in run.exchanges if "scores" in a.outcome.arrays
    }
    assert evaluated == {90 - sum(column(run, "samples")) / 3}


def test_evaluations_follow_the_interval_that_the_job_sets():
    run = world(2, holdout=0.3, holdout_every=3, batch=4, local_steps=2).run(8)
    due = [i for i, row in enumerate(run.rows) if "holdout_loss" in row.extra]
    assert due == [0, 3, 6]


def test_inputs_are_normalised_by_the_mean_and_deviation_of_all_values():
    run = world(3, normalize="auto", batch=4).run(1)
    results = [run.model.arrays[name][0] for name in ("input_mean", "input_std")]
    assert results == pytest.approx([IMAGES.mean(), IMAGES.std()], rel=1e-9)


def test_random_layers_use_the_seed_and_running_statistics_are_averaged():
    kind = {"model": "tests.networks:noisy", "batch": 4, "local_steps": 3}
    runs = [world(3, **kind).run(4) for _ in range(2)]
    assert np.array_equal(*[flat(run.model.arrays) for run in runs])
    other = world(3, **{**kind, "seed": SEED + 1}).run(4)
    assert not np.array_equal(flat(other.model.arrays), flat(runs[0].model.arrays))
    # The epoch's last round, the third, has two steps.
    assert runs[0].model.arrays["1.num_batches_tracked"] == 3 + 3 + 2 + 3


def test_a_resumed_job_has_the_same_bits():
    given = {"batch": 4, "local_steps": 3, "holdout": 0.2}
    whole, part = world(2, **given).run(20), world(2, **given).run(7)
    rest = world(2, **given, resume=part.rows[-1].resume).run(13)
    rows = [*part.rows, *rest.rows]
    assert [row.objective for row in rows] == [row.objective for row in whole.rows]
    assert [row.extra for row in rows] == [row.extra for row in whole.rows]
    assert np.array_equal(flat(rest.model.arrays), flat(whole.model.arrays))


def test_steps_that_are_too_long_end_the_job_with_the_remedy():
    with pytest.raises(JobFailedError, match=r"not finite .* lower algorithm.learning_rate"):
        world(1, learning_rate=1e30, batch=4).run(20)


def test_sparse_rows_are_refused_before_any_member_computes():
    import scipy.sparse as sp

    parts = split_rows(sp.csr_array(IMAGES), LABELS, 1)
    with pytest.raises(Exception, match="takes dense rows, and the data are csr"):
        make_trainer({}, facts_of(parts[0]), "auto")


def frozen_values_of(run: Run) -> list[int]:
    """Return the frozen values that each round broadcast."""
    return [
        a.exchange.model["frozen"].size for a in run.exchanges if a.exchange.operation == "train"
    ]


def test_frozen_values_are_broadcast_once_and_never_returned():
    tied = {"model": "tests.networks:tied", "batch": 4, "local_steps": 2}
    run = world(3, **tied).run(4)
    n = 256 * 4 + 4
    assert frozen_values_of(run) == [n, 0, 0, 0]
    up = run.exchanges[-1].exchange.returns
    assert sum(int(np.prod(shape)) for shape in up.values()) < n
    # It was averaged with the rest, and came back rounded.
    first = run.rows[0].model
    for name in ("before.weight", "before.bias"):
        assert np.array_equal(run.model.arrays[name], first[name])


def test_a_newcomer_gets_frozen_values_before_its_first_step():
    def lose_state(world: World) -> None:
        if world.round == 2:
            world.solvers[1] = LocalSGDSolver(world.settings, world.facts)

    tied = {"model": "tests.networks:tied", "batch": 4, "local_steps": 2}
    run = world(3, **tied, between=lose_state).run(6)
    sums = [a.outcome.arrays["sums"] for a in run.exchanges if a.exchange.operation == "train"]
    assert [int(s[local_sgd_exchanges.LACKING]) for s in sums] == [0, 0, 1, 0, 0, 0]
    n = 256 * 4 + 4
    assert frozen_values_of(run) == [n, 0, 0, n, 0, 0]
    samples = column(run, "samples")
    # Two of three take steps in its first round, all of them in the one after.
    assert samples[2] < samples[1] <= samples[3]


def test_frozen_values_are_repeated_while_a_member_that_may_lack_them_is_absent():
    tied = {"model": "tests.networks:tied", "batch": 4, "local_steps": 2, "absent": "ignore"}
    losses = [Vanish(round=1, members=(2,), during="train"), Return(round=4)]
    run = world(3, **tied, schedule=losses).run(6)
    n = 256 * 4 + 4
    assert frozen_values_of(run) == [n, 0, n, n, n, 0]
    sums = [a.outcome.arrays["sums"] for a in run.exchanges if a.exchange.operation == "train"]
    assert not any(s[local_sgd_exchanges.LACKING] for s in sums)
