"""The copy of a run directory: consistent at every moment, and fetched back."""

import pytest

from elasticml.clusters.yarn.jobs import run_sync
from elasticml.clusters.yarn.jobs.run_sync import RunSync, fetch
from elasticml.errors import ConfigError, JobFailedError


@pytest.fixture
def run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    return run


def copied(place):
    return {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}


def test_incomplete_lines_and_unchanged_files_are_not_copied(run, tmp_path):
    place = tmp_path / "place"
    (run / "story.jsonl").write_text('{"round": 0}\n{"rou')
    (run / "job.yaml").write_text("name: a\n")
    copies = RunSync(run, str(place))
    assert copies.copy() == 2
    assert copied(place) == {"story.jsonl": b'{"round": 0}\n', "job.yaml": b"name: a\n"}
    assert copies.copy() == 0
    (run / "story.jsonl").write_text('{"round": 0}\n{"round": 1}\n')
    assert copies.copy() == 1
    assert copied(place)["story.jsonl"] == b'{"round": 0}\n{"round": 1}\n'


def test_files_for_the_driver_alone_are_not_fetched(tmp_path):
    place = tmp_path / "place"
    (place / "driver").mkdir(parents=True)
    (place / "checkpoint").mkdir()
    (place / "driver" / "attempt.json").write_text("{}")
    (place / ".model.npz.17.part").write_text("half")
    (place / "model.npz").write_bytes(b"whole")
    assert fetch(str(place), tmp_path / "here") == ["model.npz"]
    assert copied(tmp_path / "here") == {"model.npz": b"whole"}


def test_nothing_is_copied_to_a_path_that_another_run_now_owns(run, tmp_path):
    (run / "model.npz").write_bytes(b"model")
    with RunSync(run, str(tmp_path / "place"), lambda: False):
        pass
    assert not (tmp_path / "place").exists()


def test_a_temporarily_unavailable_file_system_costs_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(run_sync, "LAST_PAUSE_S", 0.0)
    (run / "model.npz").write_bytes(b"model")
    failures = [ConfigError("full"), ConfigError("full"), ConfigError("full")]
    write = run_sync.filesystem.write_whole

    def write_whole(place, content):
        if failures:
            raise failures.pop()
        write(place, content)

    monkeypatch.setattr(run_sync.filesystem, "write_whole", write_whole)
    with RunSync(run, str(tmp_path / "place")):
        pass
    assert copied(tmp_path / "place") == {"model.npz": b"model"}


def test_a_permanently_unavailable_file_system_is_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setattr(run_sync, "LAST_PAUSE_S", 0.0)
    (run / "model.npz").write_bytes(b"model")
    (tmp_path / "place").write_text("a file")
    with pytest.raises(JobFailedError, match="the run's result cannot be kept"):
        RunSync(run, str(tmp_path / "place")).__enter__().close()
