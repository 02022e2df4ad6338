"""Requests that a cluster can never grant are refused at once, naming the setting to lower."""

import pytest

from elasticml.clusters.yarn.capacity_check import check_containers, find_queue, grantable_now
from elasticml.clusters.yarn.rm_responses import Node, Queue, Resources
from elasticml.errors import SubmissionError

GIB = 1024


def room(gib, vcores=16):
    return Resources(memory_mib=int(gib * GIB), vcores=vcores)


def queue(name="ml", above="root", **more):
    plain = {"is_leaf": True, "state": "RUNNING", "used": room(0, 0)}
    return Queue(name=name, path=f"{above}.{name}", **(plain | more))


def node(total=6, free=6, state="RUNNING", labels=(), vcores=16):
    return Node(
        id="n:1",
        host="n",
        state=state,
        web_address="n:8042",
        rack="/r",
        total=room(total, vcores),
        free=room(free, vcores),
        labels=labels,
    )


ROOT = Queue(name="root", path="root", is_leaf=False, used=room(0, 0))
QUEUES = [
    ROOT,
    queue(),
    queue("prod", is_leaf=False),
    queue("a", "root.prod"),
    queue("x", "root.prod"),
    queue("x"),
    queue("old", state="STOPPED"),
]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ml", "root.ml"),
        ("prod.a", "root.prod.a"),
        ("a", "root.prod.a"),
        ("x", "root.x"),
        ("prod.x", "root.prod.x"),
    ],
)
def test_queues_are_found_by_name_and_by_path(name, path):
    assert find_queue(QUEUES, name, "http://rm").path == path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mll",
            r"unknown to the resource manager at http://rm; its queues are ml, a, .* mean 'ml'\?",
        ),
        ("prod", "is a parent queue, wanted a leaf that accepts applications; its queues are ml"),
        ("old", "is STOPPED and accepts no applications; name another"),
    ],
)
def test_queues_that_take_no_applications_are_refused(name, message):
    with pytest.raises(SubmissionError, match=message):
        find_queue(QUEUES, name, "http://rm")


def test_a_queue_that_is_created_on_submission_is_no_error():
    users = queue("users", is_leaf=False, makes_queues=True)
    assert find_queue([ROOT, users], "users.ann", "http://rm") is None
    with pytest.raises(SubmissionError, match="unknown"):
        find_queue([ROOT, users], "ann", "http://rm")


@pytest.mark.parametrize(
    ("more", "containers", "message"),
    [
        ({}, [(7 * GIB, 1, "")], r"no node has 7.0 GiB and 1 vcores .* largest has 6.0 GiB and 16"),
        ({}, [(GIB, 1, "gpu")], "no running node is labelled 'gpu'; the labels are ssd; correct"),
        (
            {"labels": ("ssd",)},
            [(GIB, 1, "gpu")],
            "may not use nodes labelled 'gpu', only ssd; name another label",
        ),
        (
            {"container_max": room(4, 4)},
            [(GIB, 1, ""), (5 * GIB, 1, "")],
            r"container of 5.0 GiB was .* at most 4.0 GiB; .*maximum-allocation-mb raised",
        ),
        (
            {"container_max": room(4, 4)},
            [(GIB, 5, "")],
            "container of 5 vcores was .* at most 4; .*maximum-allocation-vcores raised",
        ),
        (
            {"maximum": room(8)},
            [(3 * GIB, 1, "")] * 3,
            r"3 containers with 9.0 GiB .* never holds more than 8.0 GiB .*; request fewer",
        ),
        (
            {"guaranteed": room(2), "user_limit_factor": 1.5},
            [(GIB, 1, "")] * 5,
            r"gives one user at most 3.0 GiB \(user-limit-factor 1.5\); request fewer",
        ),
    ],
)
def test_a_request_that_can_never_be_granted_is_refused_with_the_setting_to_lower(
    more, containers, message
):
    nodes = [node(labels=("ssd",)), node(4), node(64, state="LOST", labels=("gpu",))]
    with pytest.raises(SubmissionError, match=message):
        check_containers(queue(**more), nodes, containers, counts_vcores=True)


@pytest.mark.parametrize(
    ("more", "containers"),
    [
        ({}, [(6 * GIB, 16, "")]),
        # The largest container below the limit can still be granted.
        ({"guaranteed": room(2), "user_limit_factor": 1.5}, [(GIB, 1, "")] * 4),
        ({"guaranteed": room(1)}, [(GIB, 1, "")] * 9),
        # Without free capacity now it can still be granted later.
        ({"maximum": room(8), "used": room(8)}, [(GIB, 1, "")]),
    ],
)
def test_a_request_that_can_be_granted_later_passes(more, containers):
    check_containers(queue(**more), [node(free=0)], containers, counts_vcores=True)


def test_vcores_do_not_count_where_the_calculator_is_unknown():
    check_containers(queue(), [node(vcores=2)], [(GIB, 8, "")], counts_vcores=None)


def test_memory_is_granted_in_multiples_of_the_minimum():
    check_containers(queue(), [node(5)], [(5 * GIB, 1, "")], smallest_mib=GIB)
    with pytest.raises(SubmissionError, match=r"no node has 5.0 GiB for a container"):
        check_containers(queue(), [node(4.9)], [(int(4.5 * GIB), 1, "")], smallest_mib=GIB)


def test_nodes_that_do_not_run_grant_nothing():
    with pytest.raises(SubmissionError, match=r"no node is running \(1 known\); start the node m"):
        check_containers(None, [node(state="LOST")], [(GIB, 1, "")])


def test_free_capacity_is_limited_by_nodes_and_queue():
    nodes = [node(free=5), node(free=1.5), node(state="LOST")]
    assert grantable_now(None, nodes, (2 * GIB, 1, "")) == 2
    assert grantable_now(None, nodes, (GIB, 4, ""), counts_vcores=True) == 5
    assert grantable_now(queue(maximum=room(8), used=room(6)), nodes, (GIB, 1, "")) == 2
    assert grantable_now(queue(), nodes, (GIB, 1, "gpu")) == 0
