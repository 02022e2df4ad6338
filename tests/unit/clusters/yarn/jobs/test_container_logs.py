"""Container logs, parsed from the output of Hadoop's command."""

import pytest

from elasticml.clusters.yarn.jobs.container_logs import ContainerLog, container_logs, parse_logs
from elasticml.errors import SubmissionError
from tests.fake_yarn import FakeYarn

PRINTED = """\
26/11/21 14:48:56 INFO client.RMProxy: Connecting to ResourceManager at /127.0.0.1:20060
Container: container_1_0001_01_000003 on 127.0.0.2_16038
LogAggregationType: AGGREGATED
====================================================================
LogType:dask.worker.log
LogLastModifiedTime:Sat Nov 21 14:45:19 +0000 2026
LogLength:157
LogContents:
first line
second line

End of LogType:dask.worker.log
********************************************************************************

Container: container_1_0001_01_000002 on 127.0.0.3_27524
LogAggregationType: AGGREGATED
====================================================================
LogType:dask.scheduler.log
LogLastModifiedTime:Sat Nov 21 14:45:19 +0000 2026
LogLength:603
LogContents:
Container: so it says

End of LogType:dask.scheduler.log
***********************************************************************************
"""


@pytest.mark.parametrize("status", [0, 1])
def test_each_file_of_each_container_of_an_ended_application_is_a_log(
    tmp_path, monkeypatch, status
):
    program = tmp_path / "yarn"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{PRINTED}END\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    cluster = FakeYarn(state="FINISHED")
    assert list(container_logs(cluster, "application_1_0001")) == [
        ContainerLog(
            title="dask.worker.log of container_1_0001_01_000003 on 127.0.0.2_16038",
            text="first line\nsecond line",
        ),
        ContainerLog(
            title="dask.scheduler.log of container_1_0001_01_000002 on 127.0.0.3_27524",
            text="Container: so it says",
        ),
    ]
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SubmissionError, match="YARN has no such logs"):
        next(container_logs(cluster, "application_1_0001"))


def test_empty_output_has_no_logs():
    assert parse_logs("Can not find any log file matching the pattern") == []
