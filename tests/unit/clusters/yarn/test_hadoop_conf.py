"""Interpretation of a YARN cluster's configuration."""

import pytest

from elasticml.clusters.yarn.hadoop_conf import (
    counts_vcores,
    grace_settings,
    require_conf,
    rm_web_urls,
)
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError

RM = "yarn.resourcemanager."
HA = {f"{RM}ha.enabled": "true", f"{RM}ha.rm-ids": "a,b", f"{RM}hostname.a": "ha"}


@pytest.mark.parametrize(
    ("values", "urls"),
    [
        ({}, ("http://127.0.0.1:8088",)),
        ({f"{RM}hostname": "rm", f"{RM}webapp.address": "0.0.0.0:9"}, ("http://rm:9",)),
        (
            {f"{RM}hostname": "rm", f"{RM}webapp.address": "${yarn.resourcemanager.hostname}:9"},
            ("http://rm:9",),
        ),
        (
            {f"{RM}hostname": "rm", "yarn.http.policy": "HTTPS_ONLY", f"{RM}webapp.address": "x:9"},
            ("https://rm:8090",),
        ),
        (
            HA | {"yarn.http.policy": "HTTPS_ONLY", f"{RM}webapp.https.address.b": "hb:9"},
            ("https://ha:8090", "https://hb:9"),
        ),
        # Leftover ids do not count.
        (HA | {f"{RM}ha.enabled": "false", f"{RM}hostname": "rm"}, ("http://rm:8088",)),
    ],
)
def test_the_resource_managers_web_addresses_are_found(values, urls):
    assert rm_web_urls(HadoopConf(values=values)) == urls


def test_a_cluster_that_is_not_configured_has_a_remedy(tmp_path):
    with pytest.raises(
        ConfigError, match=r"neither .* is set; export HADOOP_CONF_DIR=.*make yarn-up"
    ):
        require_conf({})
    with pytest.raises(ConfigError, match=r"has no yarn-site.xml; export YARN_CONF_DIR="):
        require_conf({"YARN_CONF_DIR": str(tmp_path)})
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    assert require_conf({"YARN_CONF_DIR": str(tmp_path)}).folders == (tmp_path,)


def test_preemption_in_observe_only_mode_takes_nothing():
    monitor = {f"{RM}scheduler.monitor.enable": "true"}
    observes = {f"{RM}monitor.capacity.preemption.observe_only": "true"}
    on, off = HadoopConf(values=monitor), HadoopConf(values=monitor | observes)
    assert grace_settings(on, on).is_preempting is True
    assert grace_settings(off, off).is_preempting is False


@pytest.mark.parametrize(
    ("values", "is_enforced"),
    [
        # Hadoop's default: enforcement is left to a cgroup that does not exist.
        ({}, False),
        ({"resource.memory.enforced": "false"}, True),
        (
            {
                "resource.memory.enforced": "false",
                "pmem-check-enabled": "false",
                "vmem-check-enabled": "false",
            },
            False,
        ),
        ({"elastic-memory-control.enabled": "true"}, True),
    ],
)
def test_memory_is_enforced_by_polling_or_by_a_cgroup(values, is_enforced):
    node = HadoopConf(values={f"yarn.nodemanager.{name}": v for name, v in values.items()})
    assert grace_settings(HadoopConf(), node).is_memory_enforced is is_enforced


def test_vcores_count_only_with_the_dominant_resource_calculator():
    key = "yarn.scheduler.capacity.resource-calculator"
    assert counts_vcores(HadoopConf()) is None
    assert counts_vcores(HadoopConf(values={key: "org.x.DominantResourceCalculator"})) is True
    assert counts_vcores(HadoopConf(values={key: "org.x.DefaultResourceCalculator"})) is False


def test_missing_settings_have_hadoops_defaults():
    grace = grace_settings(HadoopConf(), HadoopConf())
    assert (grace.is_preempting, grace.max_wait_s, grace.interval_s) == (False, 15, 3)
    assert (grace.sigkill_delay_s, grace.natural_termination, grace.per_round) == (0.25, 0.2, 0.1)
    assert (grace.node_expiry_s, grace.is_recovering) == (600, False)
