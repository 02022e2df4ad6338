"""The configuration files of Hadoop, read as Hadoop reads them."""

import pytest

from elasticml.data.storage.hadoop_sites import HadoopConf, hadoop_conf, read_folders
from elasticml.errors import ConfigError


def write(folder, name, *properties, more=""):
    """Write a file of properties: (name, value) or (name, value, final)."""
    folder.mkdir(exist_ok=True)
    items = "".join(
        f"<property><name>{p[0]}</name><value>{p[1]}</value>"
        f"{'<final>true</final>' if p[2:] else ''}</property>"
        for p in properties
    )
    (folder / name).write_text(f"<?xml version='1.0'?><configuration>{items}{more}</configuration>")


def test_of_two_files_with_one_name_the_first_folders_counts(tmp_path):
    write(tmp_path / "yarn", "yarn-site.xml", ("a", "1"))
    write(tmp_path / "hadoop", "yarn-site.xml", ("a", "2"), ("b", "2"))
    write(tmp_path / "hadoop", "core-site.xml", ("c", "3"))
    conf = read_folders([tmp_path / "yarn", tmp_path / "hadoop"])
    assert conf.values == {"c": "3", "a": "1"}


def test_later_files_win_except_over_final_properties(tmp_path):
    write(tmp_path / "c", "core-site.xml", ("a", "core"), ("b", "core", "final"))
    write(tmp_path / "c", "yarn-site.xml", ("a", "yarn"), ("b", "yarn"))
    assert read_folders([tmp_path / "c"]).values == {"a": "yarn", "b": "core"}


def test_included_files_are_read_in_place(tmp_path):
    include = '<include xmlns="http://www.w3.org/2001/XInclude" href="more.xml"/>'
    write(tmp_path / "c", "core-site.xml", ("a", "1"), more=include)
    write(tmp_path / "c", "more.xml", ("a", "2"), ("b", "2"))
    assert read_folders([tmp_path / "c"]).values == {"a": "2", "b": "2"}


def test_a_file_that_includes_itself_terminates(tmp_path):
    include = '<include xmlns="http://www.w3.org/2001/XInclude" href="core-site.xml"/>'
    write(tmp_path / "c", "core-site.xml", ("a", "1"), more=include)
    assert read_folders([tmp_path / "c"]).values == {"a": "1"}


def test_known_references_are_replaced_and_unknown_ones_kept():
    conf = HadoopConf(
        values={"host": "h", "at": "${host}:${port}", "deep": "x${at}", "loop": "${loop}"}
    )
    assert conf.text("deep") == "xh:${port}"
    assert conf.text("loop") == "${loop}"


@pytest.mark.parametrize(
    ("text", "seconds"), [("250", 0.25), ("5s", 5), ("2 m", 120), ("1h", 3600), ("-1", -0.001)]
)
def test_times_have_units(text, seconds):
    assert HadoopConf(values={"t": text}).seconds("t", 9.0) == seconds


def test_an_unset_property_has_the_callers_default():
    conf = HadoopConf(values={"empty": " "})
    assert (conf.text("empty", "x"), conf.number("n", 2), conf.flag("f", True)) == ("x", 2, True)
    assert (conf.seconds("t", 9.0), conf.words("w")) == (9.0, ())


def test_wrong_values_are_named_with_their_file(tmp_path):
    write(tmp_path / "c", "yarn-site.xml", ("n", "many"), ("t", "soon"))
    conf = read_folders([tmp_path / "c"])
    with pytest.raises(ConfigError, match=f"n is 'many', wanted a number; .* {tmp_path}/c"):
        conf.number("n", 1)
    with pytest.raises(ConfigError, match="t is 'soon', wanted a time such as 5000 or 5s"):
        conf.seconds("t", 1)


@pytest.mark.parametrize("text", ["<configuration>", "<project/>"])
def test_files_of_another_kind_are_refused_by_name(tmp_path, text):
    (tmp_path / "core-site.xml").write_text(text)
    with pytest.raises(ConfigError, match=r"core-site.xml .*; copy it from the cluster again"):
        read_folders([tmp_path])


def test_the_environment_names_the_folders(tmp_path):
    write(tmp_path / "y", "yarn-site.xml", ("a", "1"))
    named = {"YARN_CONF_DIR": f"{tmp_path}/y", "HADOOP_CONF_DIR": f"{tmp_path}/h"}
    with pytest.raises(ConfigError, match=r"h, which is not a folder; name the one with"):
        hadoop_conf(named)
    (tmp_path / "h").mkdir()
    assert hadoop_conf(named).values == {"a": "1"}
    assert hadoop_conf({}) == HadoopConf()
