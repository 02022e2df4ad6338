"""Policies by the names that a job gives them: defaults, order, settings, and their errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticml.control.driver_settings import settings_from_record
from elasticml.control.policy import View
from elasticml.errors import ConfigError
from elasticml.policies.knee import ScaleInAtKnee
from elasticml.policies.registry import check_entries, make_policies, make_policy, policies_of_job
from elasticml.policies.validation import entry_of
from elasticml.protocol.job_record import job_record
from tests.policy_world import PolicyWorld

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "policies.md"


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
TWO = {"holders": 2, "algorithm": COCOA}
RELOAD = {"absent": "reload", "algorithm": COCOA}
ALWAYS = ["whole_group", "elastic_scaling"]


def made(entries=(), **more):
    return make_policies(list(entries), **({"absent": "stall"} | more))


@pytest.mark.parametrize(
    ("entries", "more", "names"),
    [
        ([], {}, ALWAYS),
        ([], {"absent": "reload"}, ["reload", "elastic_scaling"]),
        (["reload"], {}, ["reload", "elastic_scaling"]),
        # Two holders enable replicas, and CoCoA's reshuffling with them.
        ([], {"holders": 2}, [*ALWAYS, "replicas"]),
        ([], RELOAD | {"holders": 2}, ["reload", "elastic_scaling", "redeal", "replicas"]),
        ([], RELOAD | {"holders": None}, ["reload", "elastic_scaling", "redeal", "replicas"]),
        ([], RELOAD | {"holders": 1}, ["reload", "elastic_scaling"]),
        # Nothing is reshuffled by default where absent chunks are frozen.
        ([], TWO | {"absent": "freeze"}, [*ALWAYS, "replicas"]),
        (["redeal"], TWO | {"absent": "freeze"}, [*ALWAYS, "redeal", "replicas"]),
        # Defaults can be switched off.
        ([{"redeal": "none"}], TWO, [*ALWAYS, "replicas"]),
        (check_entries([{"redeal": "none"}]), TWO, [*ALWAYS, "replicas"]),
        # Policies are asked by urgency and not in the order of entries.
        (
            ["tune_local_work", "redeal", "knee", "straggler", "rebalance", "shuffle"],
            {},
            [*ALWAYS, "knee", "straggler", "rebalance", "redeal", "shuffle", "tune_local_work"],
        ),
    ],
)
def test_a_job_has_the_default_policies_and_those_that_it_names(entries, more, names):
    assert [p.name for p in made(entries, **more)] == names


@pytest.mark.parametrize(
    ("entries", "more", "name", "setting", "value"),
    [
        ([{"name": "redeal", "share": 0.5}], TWO, "redeal", "share", 0.5),
        # Knee that reshuffles first brings a reshuffling policy, and recognises a full reshuffle.
        ([{"name": "knee", "redeal_first": True}], {}, "redeal", "share", 0),
        ([{"name": "knee", "redeal_first": True}], TWO, "knee", "redeal_share", 1.0),
        # Rebalancing defers to a full reshuffle, and shuffling leaves copies to who counts holders.
        (["rebalance"], TWO, "rebalance", "defers_to_reshuffle", True),
        (["rebalance"], {"holders": 2}, "rebalance", "defers_to_reshuffle", False),
        (["shuffle"], {"holders": 2}, "shuffle", "discards", False),
        (["shuffle"], {"holders": 1}, "shuffle", "discards", True),
    ],
)
def test_policies_know_of_each_other(entries, more, name, setting, value):
    assert [getattr(p, setting) for p in made(entries, **more) if p.name == name] == [value]


def of_job(record):
    job = job_record(record)
    return {p.name: p for p in policies_of_job(job, settings_from_record(job, 1, False))}


def test_record_has_every_setting():
    record = {
        "policies": [{"name": "gap_per_container_second"}, {"name": "tune_local_work"}],
        "absent": "reload",
        "holders": 2,
        "algorithm": {"name": "cocoa", "local_epochs": 2.0},
        "stop": {"gap": 1e-6},
        "members": {"min": 3},
    }
    results = of_job(record)
    assert list(results) == [
        *("reload", "elastic_scaling", "gap_per_container_second"),
        *("redeal", "replicas", "tune_local_work"),
    ]
    assert results["gap_per_container_second"].target == 1e-6
    assert results["gap_per_container_second"].minimum == 3
    assert results["tune_local_work"].start == 2


def test_entry_has_only_changed_settings():
    policy = ScaleInAtKnee(to=(4, 1), gap="linear")
    assert entry_of(policy) == {"name": "knee", "to": [4, 1], "gap": "linear"}
    assert make_policy(entry_of(policy)).to == (4, 1)


def test_a_users_own_policy_is_named_by_its_import_path():
    entry = {"name": f"{__name__}:PassivePolicy", "level": 5}
    assert check_entries([entry]) == [entry]
    last = made([entry])[-1]
    assert (last.name, last.level) == ("silent", 5)


def test_example_of_the_page_releases_the_members_beyond_its_number():
    (text,) = re.findall(r"```python\n(# at_most.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(text, str(PAGE), "exec"), names)
    policy = names["AtMost"](members=2)
    view = PolicyWorld([], dict.fromkeys(range(5), 1.0)).view()
    (retired,) = policy.suggest(view)
    assert len(retired.members) == 3
    assert names["AtMost"](members=5).suggest(view) == []
    assert entry_of(policy) == {"name": "at_most", "members": 2}


def of(name, **settings):
    return [{"name": name, **settings}]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("knee", "policies: got 'knee', wanted a list"),
        (["knee", {"name": "redeel"}], r"policies\[1\]: .*did you mean 'redeal'"),
        (of("knee", faktor=3), r"policies\[0\].faktor .*did you mean 'factor'"),
        ([3], r"policies\[0\]: got 3, wanted a name or a mapping"),
        ([{}], "wanted a mapping with a name"),
        (["no.such:Policy"], r"'no.such:Policy', which cannot be imported"),
        ([f"{__name__}:NoPolicy"], "not a class with a method suggest"),
        (["inner_iterations", "tune_local_work"], "both set local_epochs; leave one out"),
        # Settings out of range.
        (of("rebalance", share=float("nan")), "rebalance.share: got nan"),
        *((of("redeal", share=s), r"redeal.share: got") for s in ("all", 1.5, True, None)),
        (
            of("gap_per_container_second", minimum=4, maximum=2),
            r"maximum: got 2, wanted at least 4",
        ),
        *(
            (of(name, choices=choices), r"choices: got .*, wanted (rising numbers|a list)")
            for name in ("tune_local_work", "inner_iterations")
            for choices in ([2, 1], [1, 1], [], 3)
        ),
    ],
)
def test_wrong_entries_are_one_line_errors(entries, message):
    with pytest.raises(ConfigError, match=message) as caught:
        check_entries(entries)
    assert "\n" not in caught.value.message
