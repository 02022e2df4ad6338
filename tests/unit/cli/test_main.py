"""The command line: exit codes, one-line errors, help, and what its runs print and write."""

from __future__ import annotations

import json

import pytest
import yaml

from elasticml.cli.main import main
from elasticml.data.readers.chunk_folder import read_chunks
from elasticml.data.source import load_all
from elasticml.report.run_reader import read_run

SMALL = {
    "data": {"format": "synthetic_splice", "rows": 100},
    "algorithm": {"name": "batch_gradient"},
    "cluster": {"workers": 2},
}
YARN = {"cluster": {"kind": "yarn", "environment": "venv:///opt/env"}}
COSTS = {"costs": {"rows": 1000}}
APPLICATION = "application_1700000000000_0001"


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Run a command where no YARN is configured; return its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


def job_file(folder, **changes):
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    return path


def svmlight(path, **more):
    return {"data": {"format": "svmlight", "path": path, **more}}


# --- help, and what is refused --------------------------------------------------------------------


COMMANDS = (
    "run demo simulate report schema submit status logs kill result convert init announce"
).split()


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_has_an_example(command, name):
    code, out, err = command(*([name, "-h"] if name else ["--help"]))
    assert (code, err) == (0, "")
    # A line of its own: click has not joined it with others.
    first = f"elasticml {name or 'run job.yaml'}"
    assert any(line.strip().startswith(first) for line in out.splitlines())


HERE = ("--scheduler", "tcp://127.0.0.1:9")
GRACE = ("--grace", "60")
#: The job file, the arguments, and a part of the error.
REFUSED = [
    ({}, ["rnu"], "No such command"),
    ({}, ["run"], "give a JOB"),
    ({}, ["run", "job.yaml", "--out", "rows.svm"], "rows.svm is a file"),
    ({}, ["run", "/nowhere/x.yaml"], "job file '/nowhere/x.yaml': does not exist"),
    ({}, ["report", "/nowhere/run"], "run directory '/nowhere/run' does not exist"),
    # A job that is wrong.
    ({"cluster": {"workers": 0}}, ["run", "job.yaml"], "cluster.workers: got 0, wanted at least 1"),
    ({}, ["run", "job.yaml", "--set", "stop.rouns=1"], "did you mean 'rounds'?"),
    (svmlight("absent.svm"), ["run", "job.yaml"], "absent.svm"),
    (svmlight("empty.svm"), ["run", "job.yaml"], "empty.svm"),
    (svmlight("rows.svm", test="test.svm"), ["run", "job.yaml"], "test.svm"),
    (
        {
            "data": {**SMALL["data"], "chunk_size": "2 GiB"},
            "cluster": {"workers": 2, "memory": "1 GiB"},
        },
        ["run", "job.yaml"],
        "data.chunk_size: got 2.0 GiB, wanted at most 614.4",
    ),
    (
        {"cluster": "nonsense://here"},
        ["run", "job.yaml"],
        "cluster.address: no scheduler answers at 'nonsense://here'",
    ),
    (
        {"simulate": {"jitter": -1}},
        ["simulate", "job.yaml"],
        "elasticml: simulate.jitter: got -1, wanted ",
    ),
    # Jobs for YARN, and commands about them.
    ({"cluster": {"kind": "yarn"}}, ["run", "job.yaml"], "no YARN cluster is configured"),
    (YARN, ["submit", "job.yaml"], "export HADOOP_CONF_DIR="),
    (
        {"cluster": {"kind": "local", "workers": 2}},
        ["submit", "job.yaml"],
        "cluster.kind: got 'local', wanted 'yarn'; use elasticml run, or --set 'cluster={kind: "
        "yarn, workers: 4}'",
    ),
    (
        YARN,
        ["submit", "job.yaml", "--detach", "--out", "runs/a"],
        "elasticml result APPLICATION_ID --out DIR",
    ),
    # pack and environment exclude each other.
    (YARN, ["submit", "job.yaml", "--set", "cluster.pack=true"], "elasticml: cluster.pack: "),
    ({}, ["status", APPLICATION], "no YARN cluster is configured"),
    # Data to convert.
    ({}, ["convert", "a.foo", "made"], "does not imply one; wanted one of"),
    ({}, ["convert", "a.svm", "made", "--format", "svmlite"], "did you mean 'svmlight'?"),
    ({}, ["convert", "a.svm", "made", "--set", "lable=y"], "data.lable is not a setting"),
    ({}, ["convert", "a.svm", "made"], "a.svm does not exist"),
    ({}, ["convert", "a.svm", "made", "--like", "nothing"], "chunks.json is missing"),
    ({}, ["convert", "other.yaml", "made"], "other.yaml"),
    # Ends of workers to announce.
    ({}, ["announce", *GRACE, "a"], "give the scheduler: either --scheduler or --scheduler-file"),
    ({}, ["announce", *HERE, "a"], "give either --grace SECONDS or --withdraw"),
    ({}, ["announce", *HERE, *GRACE, "--reason", "because", "a"], "'because' is not one of"),
]


@pytest.mark.parametrize(
    ("job", "arguments", "text"), REFUSED, ids=[" ".join(case[1])[:40] for case in REFUSED]
)
def test_a_wrong_command_line_is_exit_2_and_writes_nothing(command, tmp_path, job, arguments, text):
    job_file(tmp_path, **job)
    (tmp_path / "rows.svm").write_text("1 1:1\n-1 1:2\n")
    (tmp_path / "empty.svm").write_text("")
    before = sorted(tmp_path.iterdir())
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.startswith("Usage: ") or err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


FROM_FILE = "jobs.job_spec.JobSpec.from_file"

# --- errors and interrupts ------------------------------------------------------------------------


def test_an_internal_error_is_one_line_and_exit_3(command, monkeypatch):
    def fail(*_):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(f"elasticml.{FROM_FILE}", fail)
    code, _, err = command("run", "job.yaml")
    line = "elasticml: internal error: RuntimeError: two lines (--verbose shows the traceback)\n"
    assert (code, err) == (3, line)
    assert "Traceback" in command("run", "job.yaml", "--verbose")[2]


@pytest.mark.parametrize(
    ("where", "arguments", "notes", "said"),
    [
        # The message claimed that the run stays in its directory before there was one.
        (FROM_FILE, ["run", "job.yaml"], [], "the job had not started, and "),
        ("cli.cluster.client_of", ["run", "job.yaml"], [], "the job had not started, and "),
        (FROM_FILE, ["run", "job.yaml"], ["it is in a"], "it is in a"),
        ("data.readers.chunk_folder.convert", ["convert", "rows.svm", "made"], [], ""),
    ],
)
def test_an_interrupt_is_exit_130_and_names_the_remains_if_there_are_any(
    command, monkeypatch, tmp_path, where, arguments, notes, said
):
    def interrupted(*_, **settings):
        error = KeyboardInterrupt()
        for note in notes:
            error.add_note(note)
        raise error

    monkeypatch.setattr(f"elasticml.{where}", interrupted)
    job_file(tmp_path)
    (tmp_path / "rows.svm").write_text("1 1:2\n-1 2:3\n")
    code, _, err = command(*arguments)
    nothing = "" if notes else "nothing was written"
    assert (code, err.strip()) == (130, f"elasticml: interrupted; {said}{nothing}")


# --- what commands print and write ----------------------------------------------------------------


def test_the_version_is_printed(command):
    assert command("--version")[:2] == (0, "elasticml, version 0.1.0\n")


def test_completion_of_the_shell(command, monkeypatch):
    monkeypatch.setenv("_ELASTICML_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "elasticml si")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert command()[1] == "plain,simulate\n"


def test_a_simulated_run_leaves_a_directory_like_a_real_one_and_is_reported(command, tmp_path):
    path = job_file(
        tmp_path,
        data={**SMALL["data"], "rows": 2000, "length": 30, "test": {"seed": 4}},
        stop={"rounds": 9},
        faults=[{"round": 3, "lose": 1}, {"round": 6, "return": 1}],
        simulate={"latency_s": 0.01},
    )
    run = tmp_path / "run"
    code, out, err = command("simulate", path, "--json", "--out", run)
    assert code == 0
    assert "| not converged after" in err
    assert err.splitlines()[-1].startswith("elasticml: not converged: ")
    summary = json.loads(out.splitlines()[-1])
    assert (summary["rounds"], summary["lost"], summary["returned"]) == (9, 1, 1)
    assert summary["simulated"]
    assert "average_precision" in summary["test"]
    assert read_run(run).state == "finished"
    again = yaml.safe_load((run / "job.yaml").read_text())
    assert again["simulate"] == {"latency_s": 0.01}
    assert command("report", run)[:2] == (0, f"report      {run / 'report.html'}\n")
    page = tmp_path / "both.html"
    assert command("report", run, run, "--out", page, "--label", "A", "--label", "B")[0] == 0
    assert "A, B" in page.read_text()


@pytest.mark.parametrize(("costs", "is_scored"), [(None, True), ({"rows": 1000}, False)])
def test_a_simulated_job_holds_out_its_validation_rows(command, tmp_path, costs, is_scored):
    data = {**SMALL["data"], "rows": 1000}
    simulated = {"stop": {"rounds": 3}, "simulate": {"costs": costs}}
    path = job_file(tmp_path, data=data, validate={"share": 0.1}, **simulated)
    code, out, err = command("simulate", path, "--out", tmp_path / "run")
    assert code == 0, err
    assert ("validation  neg_log_loss" in out) == is_scored


def test_with_only_costs_no_data_are_read_and_quiet_prints_nothing_and_json_one_line(
    command, tmp_path
):
    path = job_file(tmp_path, **svmlight("absent.svm"), stop={"rounds": 2}, simulate=COSTS)
    code, out, _ = command("simulate", path, "--set", "stop.rounds=3", "--out", tmp_path / "c")
    assert (code, out.splitlines()[0].split()[:2]) == (0, ["rounds", "3"])
    assert command("simulate", path, "--quiet", "--out", tmp_path / "a") == (0, "", "")
    code, out, err = command("simulate", path, "-q", "--json", "--out", tmp_path / "b")
    assert (code, err, out.count("\n"), json.loads(out)["rounds"]) == (0, "", 1, 2)


def test_data_are_converted_by_the_name_of_their_file_and_as_a_job_says(command, tmp_path):
    (tmp_path / "a.csv").write_text("y,a\n1,2\n0,3\n")
    made = tmp_path / "made"
    code, out, _ = command("convert", "a.csv", made, "--set", "label=y")
    assert code == 0
    assert f"{{format: chunks, path: {made}}}" in out
    assert load_all(read_chunks(str(made)))[0].values.tolist() == [[2.0], [3.0]]
    (tmp_path / "a.svm").write_text("1 1:2\n-1 2:3\n")
    job_file(tmp_path, **svmlight("a.svm", test="b.svm", chunk_size="1 MiB", cache=False))
    code, out, _ = command("convert", "job.yaml", "two", "--set", "dtype=float32", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 2)
    assert load_all(read_chunks(str(tmp_path / "two")))[0].values.dtype == "float32"


def test_doctor_has_machine_readable_output_and_a_remedy_for_every_problem(command, monkeypatch):
    code, out, _ = command("doctor", "--json")
    result = json.loads(out)
    assert (code, result["usable"]) == (0, True)
    assert {"name", "state", "found", "serves", "required", "remedy"} == set(result["checks"][0])
    monkeypatch.setenv("ELASTICML_DATA", "/nowhere")
    out = command("doctor")[1]
    assert "!!  Data sets   /nowhere is not a readable folder" in out
    assert "export YARN_CONF_DIR=" in out
    monkeypatch.setenv("HADOOP_CONF_DIR", "/nowhere")
    code, out, _ = command("doctor", "--yarn", "--json")
    checks = {check["name"]: check["state"] for check in json.loads(out)["checks"]}
    assert (code, checks["Settings"], "YARN" in checks) == (2, "broken", False)
    code, _, err = command("doctor", "--yarn", "--memory", "much")
    assert (code, "--memory" in err) == (2, True)
