"""Policies by the names that a job gives them."""

from __future__ import annotations

import math

import pytest

from elasticml.control.driver_settings import settings_from_record
from elasticml.control.policy import View
from elasticml.errors import ConfigError
from elasticml.policies.knee import ScaleInAtKnee
from elasticml.policies.registry import (
    POLICIES,
    check_entries,
    make_policies,
    make_policy,
    policies_of_job,
)
from elasticml.policies.validation import entry_of, settings_of
from elasticml.protocol.job_record import job_record


class PassivePolicy:
    """A user's own policy."""

    name = "silent"

    def __init__(self, *, level: int = 3) -> None:
        self.level = level

    def suggest(self, view: View) -> list:
        return []


class NoPolicy:
    pass


COCOA = {"name": "cocoa"}


def names(entries=(), **more) -> list[str]:
    return [p.name for p in make_policies(list(entries), **({"absent": "stall"} | more))]


def test_every_job_has_elastic_scaling_and_a_rule_for_absent_chunks():
    assert names() == ["whole_group", "elastic_scaling"]
    assert names(absent="reload") == ["reload", "elastic_scaling"]


def test_two_holders_enable_replicas_and_cocoas_reshuffling_with_them():
    assert names(holders=2) == ["whole_group", "elastic_scaling", "replicas"]
    both = ["reload", "elastic_scaling", "redeal", "replicas"]
    assert names(holders=2, absent="reload", algorithm=COCOA) == both
    assert names(holders=None, absent="reload", algorithm=COCOA) == both
    assert names(holders=1, absent="reload", algorithm=COCOA) == both[:2]


def test_nothing_is_reshuffled_by_default_where_absent_chunks_are_frozen():
    cocoa = {"holders": 2, "absent": "freeze", "algorithm": COCOA}
    assert "redeal" not in names(**cocoa)
    assert "redeal" in names(["redeal"], **cocoa)


def test_default_policies_can_be_switched_off():
    left = names([{"redeal": "none"}], holders=2, algorithm=COCOA)
    assert left == ["whole_group", "elastic_scaling", "replicas"]
    written = check_entries([{"redeal": "none"}])
    assert written == [{"name": "redeal", "off": True}]
    assert names(written, holders=2, algorithm=COCOA) == left


def test_policies_are_asked_by_urgency_and_not_in_the_order_of_entries():
    result = names(["tune_local_work", "redeal", "knee", "straggler", "rebalance", "shuffle"])
    assert result == [
        *("whole_group", "elastic_scaling", "knee", "straggler"),
        *("rebalance", "redeal", "shuffle", "tune_local_work"),
    ]


def test_entry_replaces_a_default():
    assert names(["reload"]) == ["reload", "elastic_scaling"]
    result = make_policies(
        [{"name": "redeal", "share": 0.5}], absent="stall", holders=2, algorithm=COCOA
    )
    assert [p.share for p in result if p.name == "redeal"] == [0.5]


def test_knee_that_reshuffles_first_brings_a_reshuffling_policy():
    result = make_policies([{"name": "knee", "redeal_first": True}], absent="stall")
    assert [(p.name, p.share) for p in result if p.name == "redeal"] == [("redeal", 0)]


def test_knee_recognises_a_full_reshuffle():
    entries = [{"name": "knee", "redeal_first": True}]
    result = make_policies(entries, absent="stall", holders=2, algorithm=COCOA)
    assert [p.redeal_share for p in result if isinstance(p, ScaleInAtKnee)] == [1.0]


def test_rebalancing_defers_to_a_full_reshuffle():
    result = make_policies(["rebalance"], absent="stall", holders=2, algorithm=COCOA)
    assert [p.defers_to_reshuffle for p in result if p.name == "rebalance"] == [True]
    result = make_policies(["rebalance"], absent="stall", holders=2)
    assert [p.defers_to_reshuffle for p in result if p.name == "rebalance"] == [False]


def test_shuffle_leaves_old_copies_to_the_policy_that_counts_holders():
    result = make_policies(["shuffle"], absent="stall", holders=2)
    assert [p.discards for p in result if p.name == "shuffle"] == [False]
    result = make_policies(["shuffle"], absent="stall", holders=1)
    assert [p.discards for p in result if p.name == "shuffle"] == [True]


def of_job(record):
    job = job_record(record)
    return policies_of_job(job, settings_from_record(job, 1, False))


def test_record_has_every_setting():
    record = {
        "policies": [{"name": "gap_per_container_second"}, {"name": "tune_local_work"}],
        "absent": "reload",
        "holders": 2,
        "algorithm": {"name": "cocoa", "local_epochs": 2.0},
        "stop": {"gap": 1e-6},
        "members": {"min": 3},
    }
    results = {p.name: p for p in of_job(record)}
    assert list(results) == [
        *("reload", "elastic_scaling", "gap_per_container_second"),
        *("redeal", "replicas", "tune_local_work"),
    ]
    assert results["gap_per_container_second"].target == 1e-6
    assert results["gap_per_container_second"].minimum == 3
    assert results["tune_local_work"].start == 2
    assert [p.name for p in of_job({})] == ["whole_group", "elastic_scaling"]


def test_in_paper_mode_absent_groups_wait_for_newcomers_unless_the_job_says_otherwise():
    def patience(**more):
        return of_job({"algorithm": {"name": "batch_gradient"} | more})[0].alone_s

    assert (patience(), patience(mode="paper")) == (60.0, math.inf)
    entry = {"name": "whole_group", "alone_s": 5.0}
    record = {"algorithm": {"name": "batch_gradient", "mode": "paper"}, "policies": [entry]}
    assert of_job(record)[0].alone_s == 5.0


@pytest.mark.parametrize("name", POLICIES)
def test_policy_is_rebuilt_from_its_entry(name):
    policy = make_policy(name)
    assert entry_of(policy) == {"name": name}
    assert settings_of(type(make_policy(entry_of(policy)))) == settings_of(type(policy))


def test_entry_has_only_changed_settings():
    policy = ScaleInAtKnee(to=(4, 1), gap="linear")
    assert policy.entry() == {"name": "knee", "to": [4, 1], "gap": "linear"}
    assert make_policy(policy.entry()).to == (4, 1)


def test_a_users_own_policy_is_named_by_its_import_path():
    entry = {"name": f"{__name__}:PassivePolicy", "level": 5}
    assert check_entries([entry]) == [entry]
    assert [(p.name, getattr(p, "level", None)) for p in make_policies([entry], absent="stall")][
        -1
    ] == ("silent", 5)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("knee", "policies: got 'knee', wanted a list"),
        (["kne"], r"policies\[0\]: there is no policy 'kne'; did you mean 'knee'\?"),
        (["knee", {"name": "redeel"}], r"policies\[1\]: .*did you mean 'redeal'"),
        ([{"name": "knee", "faktor": 3}], r"policies\[0\].faktor .*did you mean 'factor'"),
        ([{"name": "knee", "factor": 1}], r"knee.factor: got 1, wanted at least 2"),
        ([3], r"policies\[0\]: got 3, wanted a name or a mapping"),
        ([{}], "wanted a mapping with a name"),
        ([{"share": 3}], "wanted a mapping with a name"),
        (["no.such:Policy"], r"'no.such:Policy' cannot be imported"),
        ([f"{__name__}:NoPolicy"], "not a class with a method suggest"),
        (["knee", "knee"], r"policies\[1\]: 'knee' is listed twice"),
        ([{"name": "rebalance", "share": float("nan")}], "rebalance.share: got nan"),
        ([{"name": "knee", "revert": 1}], "knee.revert: got 1, wanted true or false"),
    ],
)
def test_wrong_entries_are_one_line_errors(entries, message):
    with pytest.raises(ConfigError, match=message):
        check_entries(entries)
