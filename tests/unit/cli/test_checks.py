"""Checks of ``elasticml doctor``: each requirement present, missing and broken."""

import subprocess

import pytest

from elasticml.cli import checks


@pytest.mark.parametrize(
    ("answer", "least", "state", "result"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 8, "ok", "17.0.15"),
        ("\x1b[1mApache Maven 3.8.7\x1b[m", 3, "ok", "3.8.7"),
        ("Apache Maven 2.2.1", 3, "broken", "2.2.1"),
        ("no number at all", 1, "broken", "no number at all"),
    ],
)
def test_program_versions_are_recognised(answer, least, state, result):
    check = checks.check_program(
        "It", ["it"], "tests", "install it", version_min=least, ask=lambda command: answer
    )
    assert (check.state, check.found, check.remedy) == (
        state,
        result,
        "" if state == "ok" else "install it",
    )


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (FileNotFoundError(2, "no such file"), "missing"),
        (PermissionError(13, "not allowed"), "broken"),
        (subprocess.CalledProcessError(1, ["it"]), "broken"),
        (subprocess.TimeoutExpired(["it"], 20), "broken"),
    ],
)
def test_programs_that_fail_have_a_remedy(error, state):
    def ask(command):
        raise error

    check = checks.check_program("It", ["it"], "tests", "install it", ask=ask)
    assert (check.state, check.remedy) == (state, "install it")


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ModuleNotFoundError("no", name="lib"), "missing"),
        (ModuleNotFoundError("no", name="other"), "broken"),
        (OSError("libc"), "broken"),
    ],
)
def test_libraries_that_do_not_import_have_a_remedy(error, state):
    def load(module):
        raise error

    check = checks.check_package("Lib", "lib", "tests", "install lib", load=load)
    assert (check.state, check.required, check.remedy) == (state, True, "install lib")


def test_data_are_where_the_environment_says(tmp_path):
    (tmp_path / "a9a").mkdir()
    check = checks.check_data({"ELASTICML_DATA": str(tmp_path)})
    assert (check.state, check.found) == ("ok", f"{tmp_path}, 1 data sets")


def test_a_cache_below_a_file_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    check = checks.check_cache(tmp_path / "file" / "cache")
    assert (check.state, check.remedy != "") == ("broken", True)
    assert checks.check_cache(tmp_path / "new" / "cache").state == "ok"


def test_yarn_is_known_by_its_site_file(tmp_path):
    named = {"HADOOP_CONF_DIR": str(tmp_path)}
    assert checks.check_yarn({}).state == "missing"
    assert checks.check_yarn(named).state == "broken"
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    assert checks.check_yarn(named).state == "ok"
