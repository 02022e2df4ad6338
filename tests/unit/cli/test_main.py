"""The command line: exit codes, one-line errors, help with examples."""

import json

import pytest
import yaml

from elasticml.cli.main import main
from elasticml.report.run_reader import read_run
from tests.unit.report.fabricate import fabricate_run

SMALL = {
    "data": {"format": "synthetic_splice", "rows": 100},
    "algorithm": {"name": "batch_gradient"},
    "cluster": {"workers": 2},
}


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Run a command; return its exit code, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)

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


def svmlight(folder, name="train.svm"):
    return {"data": {"format": "svmlight", "path": str(folder / name)}}


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([name, "-h"] for name in ("run", "demo", "simulate", "report", "schema"))],
)
def test_help_has_an_example(command, arguments):
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    # A line of its own: click has not joined it with others.
    first = "elasticml " + (arguments[0] if len(arguments) > 1 else "run job.yaml")
    assert any(line.strip().startswith(first) for line in out.splitlines())


def test_the_version_is_printed(command):
    assert command("--version")[:2] == (0, "elasticml, version 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["rnu"], "No such command"),
        (["run"], "give a JOB"),
        (["run", "x.yaml", "--jsn"], "No such option"),
        (["run", "/nowhere/x.yaml"], "job file '/nowhere/x.yaml': does not exist"),
        (["report", "/nowhere/run"], "run directory '/nowhere/run' does not exist"),
    ],
)
def test_a_wrong_command_line_is_exit_2(command, arguments, text):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert text in err


def error_line(command, path, *more):
    """Return the one line with which a job is refused."""
    code, out, err = command("run", path, *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err.removeprefix("elasticml: ")


def test_wrong_jobs_are_one_line_and_exit_2(command, tmp_path):
    assert error_line(command, job_file(tmp_path, cluster={"workers": 0})) == (
        "cluster.workers: got 0, wanted at least 1\n"
    )
    assert "did you mean 'rounds'?" in error_line(
        command, job_file(tmp_path), "--set", "stop.rouns=1"
    )


def test_missing_and_empty_files_are_exit_2_before_anything_starts(command, tmp_path):
    path = job_file(tmp_path, **svmlight(tmp_path))
    assert "train.svm" in error_line(command, path)
    (tmp_path / "train.svm").write_text("")
    assert "train.svm" in error_line(command, path)


def test_missing_test_data_are_exit_2_before_anything_starts(command, tmp_path):
    (tmp_path / "train.svm").write_text("1 1:1\n-1 1:2\n")
    data = {**svmlight(tmp_path)["data"], "test": "test.svm"}
    assert "test.svm" in error_line(command, job_file(tmp_path, data=data))


def test_a_chunk_larger_than_a_worker_is_exit_2(command, tmp_path):
    data = {**SMALL["data"], "chunk_size": "2 GiB"}
    path = job_file(tmp_path, data=data, cluster={"workers": 2, "memory": "1 GiB"})
    assert error_line(command, path).startswith(
        "data.chunk_size: got 2.0 GiB, wanted at most 614.4"
    )


def test_a_scheduler_that_does_not_answer_is_exit_2(command, tmp_path):
    text = error_line(command, job_file(tmp_path, cluster="nonsense://here"))
    assert text.startswith("cluster.address: no scheduler answers at 'nonsense://here'")


def test_an_internal_error_is_one_line_and_exit_3(command, monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("elasticml.jobs.job_file.read_job_file", fail)
    code, _, err = command("run", "job.yaml")
    assert (code, err) == (
        3,
        "elasticml: internal error: RuntimeError: two lines (--verbose shows the traceback)\n",
    )
    assert "Traceback" in command("run", "job.yaml", "--verbose")[2]


def test_an_interrupt_is_exit_130(command, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("elasticml.jobs.job_file.read_job_file", interrupt)
    code, _, err = command("run", "job.yaml")
    assert (code, err.strip().count("\n")) == (130, 0)


def test_report_writes_a_page_of_a_run_and_of_several(command, tmp_path):
    runs = [fabricate_run(tmp_path / name, rounds=20, at=5, back=10) for name in ("a", "b")]
    code, out, _ = command("report", runs[0])
    assert (code, out) == (0, f"report      {runs[0] / 'report.html'}\n")
    page = tmp_path / "both.html"
    assert command("report", *runs, "--out", page, "--label", "A", "--label", "B")[0] == 0
    assert "A, B" in page.read_text()


def test_a_simulated_run_leaves_a_directory_like_a_real_one(command, tmp_path):
    path = job_file(
        tmp_path,
        data={**SMALL["data"], "rows": 2000, "length": 30, "test": {"seed": 4}},
        stop={"rounds": 9},
        faults=[{"round": 3, "lose": 1}, {"round": 6, "return": 1}],
        simulate={"latency_s": 0.01},
    )
    code, out, err = command("simulate", path, "--json", "--out", tmp_path / "run")
    assert code == 0
    assert "| not converged after" in err
    assert err.splitlines()[-1].startswith("elasticml: not converged: ")
    summary = json.loads(out.splitlines()[-1])
    assert (summary["rounds"], summary["lost"], summary["returned"]) == (9, 1, 1)
    assert summary["simulated"]
    assert "auprc" in summary["test"]
    assert read_run(tmp_path / "run").state == "finished"
    again = yaml.safe_load((tmp_path / "run" / "job.yaml").read_text())
    assert again["simulate"] == {"latency_s": 0.01}


def test_cocoa_and_its_policies_are_simulated(command, tmp_path):
    path = job_file(
        tmp_path,
        data={**SMALL["data"], "rows": 1000, "length": 30},
        algorithm={"name": "cocoa", "l2": 0.01},
        cluster={"workers": 3},
        policies=["rebalance", {"name": "knee", "to": [1]}],
        stop={"rounds": 100, "gap": 1e-6},
        simulate={"slow": {0: 2.0}},
    )
    code, out, err = command("simulate", path, "--out", tmp_path / "run")
    assert code == 0
    assert "| done after" in err
    values = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert float(values["gap"]) <= 1e-6
    assert values["rounds"].endswith("(gap <= 1e-06)")
    again = yaml.safe_load((tmp_path / "run" / "job.yaml").read_text())
    assert again["policies"] == [{"name": "rebalance"}, {"name": "knee", "to": [1]}]
    assert (again["holders"], again["placement"], again["absent"]) == (2, "random", "reload")
    assert read_run(tmp_path / "run").state == "finished"


def test_a_simulation_with_only_costs_reads_no_data(command, tmp_path):
    path = job_file(tmp_path, **svmlight(tmp_path), simulate={"costs": {"rows": 1000}})
    code, out, _ = command("simulate", path, "--set", "stop.rounds=3", "--out", tmp_path / "run")
    assert (code, out.splitlines()[0].split()[:2]) == (0, ["rounds", "3"])


@pytest.mark.parametrize(("costs", "is_scored"), [(None, True), ({"rows": 1000}, False)])
def test_a_simulated_job_holds_out_its_validation_rows(command, tmp_path, costs, is_scored):
    path = job_file(
        tmp_path,
        data={**SMALL["data"], "rows": 1000},
        validate={"share": 0.1},
        stop={"rounds": 3},
        simulate={"costs": costs},
    )
    code, out, err = command("simulate", path, "--out", tmp_path / "run")
    assert code == 0, err
    assert ("validation  neg_log_loss" in out) == is_scored


def test_quiet_prints_nothing_and_json_one_line(command, tmp_path):
    path = job_file(tmp_path, stop={"rounds": 2}, simulate={"costs": {"rows": 1000}})
    assert command("simulate", path, "--quiet", "--out", tmp_path / "a") == (0, "", "")
    code, out, err = command("simulate", path, "-q", "--json", "--out", tmp_path / "b")
    assert (code, err, out.count("\n"), json.loads(out)["rounds"]) == (0, "", 1, 2)


def test_an_interrupt_before_the_job_starts_says_that_nothing_was_written(
    command, monkeypatch, tmp_path
):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("elasticml.cli.cluster.client_of", interrupted)
    code, _, err = command("run", job_file(tmp_path))
    said = "elasticml: interrupted; the job had not started, and nothing was written"
    assert (code, err.strip()) == (130, said)


def test_completion_of_the_shell(monkeypatch, capsys):
    monkeypatch.setenv("_ELASTICML_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "elasticml si")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out == "plain,simulate\n"


def test_an_invalid_simulation_is_exit_2(command, tmp_path):
    code, _, err = command("simulate", job_file(tmp_path, simulate={"jitter": -1}))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("elasticml: simulate.jitter: got -1, wanted ")


def test_doctor_has_machine_readable_output(command):
    code, out, _ = command("doctor", "--json")
    result = json.loads(out)
    assert (code, result["usable"]) == (0, True)
    assert {"name", "state", "found", "serves", "required", "remedy"} == set(result["checks"][0])


def test_doctor_names_a_remedy_for_every_problem(command, monkeypatch):
    monkeypatch.setenv("ELASTICML_DATA", "/nowhere")
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    out = command("doctor")[1]
    assert "!!  Data sets   /nowhere is not a readable folder" in out
    assert "export YARN_CONF_DIR=" in out


@pytest.mark.parametrize(
    ("notes", "report"),
    [
        ([], "elasticml: interrupted; the job had not started, and nothing was written"),
        (["what there is is in a"], "elasticml: interrupted; what there is is in a"),
    ],
)
def test_an_interrupt_names_the_remains_if_there_are_any(
    command, monkeypatch, tmp_path, notes, report
):
    # The message claimed that the run stays in its directory before there was one, and for doctor,
    # too.
    def interrupted(*_):
        error = KeyboardInterrupt()
        for note in notes:
            error.add_note(note)
        raise error

    monkeypatch.setattr("elasticml.jobs.job_file.read_job_file", interrupted)
    code, _, err = command("run", job_file(tmp_path))
    assert (code, err.strip()) == (130, report)
