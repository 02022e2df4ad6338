"""HDFS: which name node a URL means, and which user asks."""

import pytest

from elasticml.data.readers.files import absolute
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.data.storage.hdfs import (
    absolute_hdfs,
    hdfs_system,
    web_addresses,
)
from elasticml.errors import ConfigError


def conf(**values):
    return HadoopConf(
        values={name.replace("__", "-").replace("_", "."): v for name, v in values.items()}
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write a configuration whose default file system is HDFS, named by the environment."""
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:9000</value>"
        "</property></configuration>"
    )
    for name in ("YARN_CONF_DIR", "ELASTICML_WEBHDFS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    return tmp_path


def test_a_url_without_a_host_means_the_default_file_system(folder):
    assert absolute("hdfs:///a b/c?d#e") == "hdfs://nn:9000/a b/c?d#e"
    assert absolute("hdfs://other/a") == "hdfs://other/a"
    assert absolute("s3://bucket/a") == "s3://bucket/a"


def test_without_a_default_the_error_names_the_remedy(monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(ConfigError, match=r"names no host, .*; export HADOOP_CONF_DIR="):
        absolute("hdfs:///a")
    with pytest.raises(ConfigError, match=r"no fs.defaultFS of HDFS"):
        absolute_hdfs("hdfs:///a", {})


@pytest.mark.parametrize(
    ("values", "authority", "addresses"),
    [
        ({}, "nn:8020", ("http://nn:9870",)),
        ({"dfs_http_policy": "HTTPS_ONLY"}, "nn:8020", ("https://nn:9871",)),
        (
            {"fs_defaultFS": "hdfs://nn:8020", "dfs_namenode_http__address": "0.0.0.0:50070"},
            "nn:8020",
            ("http://nn:50070",),
        ),
        (
            {"dfs_namenode_rpc__address": "nn:1", "dfs_namenode_http__address": "web:2"},
            "nn:1",
            ("http://web:2",),
        ),
        # Another cluster than the configuration's own.
        (
            {"fs_defaultFS": "hdfs://nn:8020", "dfs_namenode_http__address": "web:2"},
            "far:8020",
            ("http://far:9870",),
        ),
        (
            {
                "dfs_nameservices": "ns, other",
                "dfs_ha_namenodes_ns": "x,y",
                "dfs_namenode_http__address_ns_x": "hx:1",
                "dfs_namenode_rpc__address_ns_y": "hy:8020",
                "dfs_namenode_http__address_other": "ho:3",
            },
            "ns",
            ("http://hx:1", "http://hy:9870"),
        ),
        ({"dfs_nameservices": "a", "dfs_namenode_http__address_a": "h:3"}, "a", ("http://h:3",)),
        (
            {"dfs_namenode_rpc__address_ns_x": "nn:1", "dfs_namenode_http__address_ns_x": "w:5"},
            "nn:1",
            ("http://w:5",),
        ),
    ],
)
def test_the_web_address_comes_from_the_configuration(values, authority, addresses):
    assert web_addresses(conf(**values), authority, {}) == addresses


def test_a_process_without_configuration_reads_a_variable():
    assert web_addresses(
        HadoopConf(), "nn:9000", {"ELASTICML_WEBHDFS": "http://a:1,http://b:2"}
    ) == (
        "http://a:1",
        "http://b:2",
    )


@pytest.mark.parametrize(
    ("place", "environment", "user"),
    [
        ("hdfs://ann@nn/x", {}, "ann"),
        ("hdfs://nn/x", {"HADOOP_USER_NAME": "bob", "USER": "root"}, "bob"),
        ("hdfs://nn/x", {"CONTAINER_ID": "container_1", "USER": "cid"}, "cid"),
    ],
)
def test_the_user_of_a_request(place, environment, user):
    system, path = hdfs_system(place, environment)
    assert (system._who, path) == ({"user.name": user}, "/x")


def test_the_web_service_can_be_named_directly():
    assert hdfs_system("webhdfs://h:50070/x", {})[0].addresses == ("http://h:50070",)
    assert hdfs_system("swebhdfs://h:50470/x", {})[0].addresses == ("https://h:50470",)


def test_a_containers_token_replaces_the_user(tmp_path):
    from tests.unit.data.storage.test_hadoop_tokens import FILE, OF_HDFS

    (tmp_path / "tokens").write_bytes(FILE)
    environment = {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens"), "USER": "me"}
    system, _ = hdfs_system("hdfs://10.0.0.2:8020/x", environment)
    assert system._who == {"delegation": OF_HDFS}
