"""Settings of a job and their form in its record."""

import pytest

from elasticml.control.driver_settings import settings_from_record
from elasticml.errors import ConfigError
from elasticml.protocol.job_record import job_record
from elasticml.specification.algorithms import (
    BatchGradient,
    CoCoA,
    ImportedAlgorithm,
    absent_rule,
    settings_from_section,
)
from elasticml.specification.sections import Fault, Members


@pytest.mark.parametrize(
    "algorithm",
    [
        BatchGradient(),
        BatchGradient(
            loss="squared", optimizer="gd", step="constant", step_size=0.5, intercept=True
        ),
        BatchGradient(class_weight="balanced", mode="paper", scale="maxabs", roll_back=2),
        BatchGradient(class_weight={-1: 1, 1: 20.5}),
        BatchGradient(optimizer="tron"),
    ],
)
def test_the_algorithm_accepts_the_jobs_record(algorithm):
    read = settings_from_section(BatchGradient, algorithm.section())
    assert (read.loss, read.l2, read.class_weight) == (
        algorithm.loss,
        algorithm.l2,
        algorithm.class_weight,
    )


@pytest.mark.parametrize(
    ("algorithm", "read"),
    [
        (CoCoA(), {"searches_line": True, "given_sigma": None, "given_gap_every": None}),
        (CoCoA(mode="paper", gamma=0.5), {"searches_line": False, "gamma": 0.5}),
        (CoCoA(sigma=3.5, gap_every=7, bucket=64), {"sigma": 3.5, "gap_every": 7, "bucket": 64}),
        (CoCoA(loss="squared", scale="standard", intercept=True), {"scale": "standard"}),
        (CoCoA(class_weight={-1: 1, 1: 20.5}, seed=3), {"class_weight": {-1: 1, 1: 20.5}}),
        (CoCoA(local_epochs=0.25, shrink=True, tolerance=1e-6), {"local_epochs": 0.25}),
    ],
)
def test_cocoa_accepts_the_jobs_record(algorithm, read):
    results = settings_from_section(CoCoA, algorithm.section())
    assert results.loss == algorithm.loss
    assert {key: getattr(results, key) for key in read} == read


@pytest.mark.parametrize("absent", ["taylor", "ignore", "ignore_rescaled"])
def test_a_rule_that_cocoa_does_not_have_is_refused(absent):
    with pytest.raises(ConfigError, match="freeze"):
        absent_rule("cocoa", absent)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"class_weight": {1: 0}}, "class_weight: every weight must be more than 0"),
        ({"class_weight": "balanced", "loss": "squared"}, "class_weight: loss: squared has no"),
        ({"step": "decay"}, "step: decay goes with optimizer: gd, not lbfgs"),
    ],
)
def test_contradictory_settings_are_refused(values, text):
    with pytest.raises(ConfigError, match=text):
        BatchGradient(**values)


@pytest.mark.parametrize(
    ("values", "optimizer"),
    [({}, "lbfgs"), ({"mode": "paper"}, "gd"), ({"mode": "paper", "optimizer": "tron"}, "tron")],
)
def test_the_default_optimizer_is_lbfgs_and_the_papers_is_gradient_descent(values, optimizer):
    section = BatchGradient(**values).section()
    assert section["optimizer"] == optimizer
    assert BatchGradient(**values).chosen_optimizer == optimizer


def test_an_imported_algorithm_gets_any_settings():
    section = ImportedAlgorithm(name="my.module:mine", depth=3).section()
    assert section == {"name": "my.module:mine", "depth": 3}


def test_the_driver_reads_faults_as_they_were_meant():
    faults = [
        Fault(round=3, lose=[0, 2], how="notice", grace=1.5, phase="correct"),
        Fault(round=5, returned=2),
    ]
    record = {"faults": [fault.entry() for fault in faults], "members": {"start": 3}}
    lost, back = settings_from_record(job_record(record), 1, False).faults
    assert (lost.kind, lost.slots, lost.how, lost.phase, lost.grace_s) == (
        "lose",
        (0, 2),
        "notice",
        "correct",
        1.5,
    )
    assert (back.round, back.kind, back.count) == (5, "return", 2)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"round": 1}, "exactly one of lose"),
        ({"round": 1, "lose": 1, "return": 1}, "exactly one of lose"),
        ({"round": 1, "lose": 0}, "lose: got 0, wanted at least 1"),
        ({"round": 1, "lose": []}, "wanted different slots"),
        ({"round": 1, "lose": [1, 1]}, "wanted different slots"),
        ({"round": 1, "lose": 1, "phase": "computing"}, "did you mean 'compute'"),
        ({"round": 1, "lose": 1, "how": "murder"}, "there is notice, terminate, kill"),
    ],
)
def test_wrong_faults_are_refused(values, text):
    with pytest.raises(ConfigError, match=text):
        Fault(**values)


def test_a_job_cannot_need_more_members_than_it_starts_with():
    with pytest.raises(ConfigError, match=r"Members\.min: got 3, wanted at most members\.start, 2"):
        Members(start=2, min=3)
