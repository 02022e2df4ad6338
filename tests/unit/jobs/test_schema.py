"""Errors of settings: one line with the key, the value, and the nearest valid word."""

import pickle

import pytest

from elasticml.errors import ConfigError
from elasticml.specification.algorithms import BatchGradient, CoCoA
from elasticml.specification.sections import Fault, LocalWorkers, Stop
from elasticml.specification.settings_model import keys_of, nearest, read_settings


def message(kind, raw, path="section"):
    with pytest.raises(ConfigError) as caught:
        read_settings(kind, raw, path)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_an_unknown_key_names_the_nearest_and_its_path():
    assert message(BatchGradient, {"los": "logistic"}, "algorithm").startswith(
        "algorithm.los is not a setting; did you mean 'loss'? (there is loss, l2,"
    )


def test_an_unknown_word_names_the_nearest_and_all_valid_ones():
    assert message(BatchGradient, {"loss": "logistc"}, "algorithm") == (
        "algorithm.loss: got 'logistc'; did you mean 'logistic'? "
        "(there is logistic, squared, squared_hinge, smoothed_hinge, "
        "huber, quantile, poisson, gamma, tweedie)"
    )


@pytest.mark.parametrize(
    ("kind", "raw", "text"),
    [
        (LocalWorkers, {"workers": 0}, "section.workers: got 0, wanted at least 1"),
        (LocalWorkers, {"workers": "x"}, "section.workers: got 'x', wanted a whole number"),
        (LocalWorkers, {"workers": 2.5}, "section.workers: got 2.5, wanted a whole number"),
        (BatchGradient, {"l2": "much"}, "section.l2: got 'much', wanted a finite number"),
        (BatchGradient, {"l2": float("nan")}, "section.l2: got nan, wanted a finite number"),
        (BatchGradient, {"step_size": 0}, "section.step_size: got 0, wanted more than 0"),
        (BatchGradient, {"intercept": "on it"}, "section.intercept: got 'on it', wanted true"),
        (Fault, {"lose": 1}, "section.round is missing: the round in which it happens"),
        (Stop, {"rounds": 0}, "section.rounds: got 0, wanted at least 1"),
        (Stop, 14, "section: got 14, wanted a mapping with keys such as rounds, seconds"),
        (LocalWorkers, {"memory": "2 gigs"}, "section.memory: got '2 gigs': size '2 gigs' is not"),
        (LocalWorkers, {"memory": "1 MiB"}, "section.memory: got '1 MiB': a worker needs at least"),
    ],
)
def test_wrong_values_name_value_and_expectation(kind, raw, text):
    assert message(kind, raw).startswith(text)


@pytest.mark.parametrize(
    ("kind", "raw", "text"),
    [
        (CoCoA, {"gamma": 2}, "section.gamma: got 2, wanted at most 1"),
        (CoCoA, {"l2": True}, "section.l2: got True, wanted a number"),
        (CoCoA, {"sigma": -1}, "section.sigma: got -1, wanted more than 0 or auto"),
        (
            CoCoA,
            {"gap_every": 1.5},
            "section.gap_every: got 1.5, wanted a whole number or auto or target",
        ),
        (
            CoCoA,
            {"class_weight": "balancd"},
            "section.class_weight: got 'balancd', wanted a mapping or balanced; "
            "did you mean 'balanced'?",
        ),
        (
            CoCoA,
            {"sigma": 0, "gap_every": 0, "l2": 0},
            "section.l2: got 0, wanted more than 0 (and 4 more)",
        ),
        (
            Fault,
            {"round": 1, "lose": "x"},
            "section.lose: got 'x', wanted a whole number or a list",
        ),
        (LocalWorkers, {"slowdown": 3}, "section.slowdown: got 3, wanted a mapping"),
    ],
)
def test_a_value_of_several_kinds_is_one_error_that_names_them_all(kind, raw, text):
    assert message(kind, raw) == text


def test_several_errors_show_the_first_and_count_the_rest():
    assert message(LocalWorkers, {"workers": 0, "threads": 0}) == (
        "section.workers: got 0, wanted at least 1 (and 1 more)"
    )


def test_settings_made_in_python_have_the_same_messages():
    with pytest.raises(ConfigError, match=r"^BatchGradient\.tolerence is not a setting; did you "):
        BatchGradient(tolerence=1e-3)


def test_errors_pickle_with_their_path():
    with pytest.raises(ConfigError) as caught:
        read_settings(LocalWorkers, {"workers": 0}, "cluster")
    assert pickle.loads(pickle.dumps(caught.value)).path == "cluster.workers"


def test_a_section_without_content_has_its_defaults():
    assert read_settings(LocalWorkers, None, "cluster") == LocalWorkers()


def test_numbers_written_without_a_point_are_numbers():
    # YAML 1.1 reads 1e-4 as a string.
    assert read_settings(BatchGradient, {"l2": "1e-4"}, "algorithm").l2 == 1e-4


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        BatchGradient().l2 = 1.0


def test_nearest_returns_nothing_for_distant_words():
    assert (nearest("wrokers", ["workers", "threads"]), nearest("zebra", ["workers"])) == (
        "workers",
        None,
    )


def test_keys_are_spelled_as_in_the_file():
    assert "return" in keys_of(Fault)
    assert "returned" not in keys_of(Fault)
