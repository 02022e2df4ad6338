"""Container logs, parsed from the output of Hadoop's command."""

from elasticml.clusters.yarn.jobs.container_logs import ContainerLog, parse_logs

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


def test_each_file_of_each_container_is_a_log():
    assert parse_logs(PRINTED) == [
        ContainerLog(
            title="dask.worker.log of container_1_0001_01_000003 on 127.0.0.2_16038",
            text="first line\nsecond line",
        ),
        ContainerLog(
            title="dask.scheduler.log of container_1_0001_01_000002 on 127.0.0.3_27524",
            text="Container: so it says",
        ),
    ]


def test_empty_output_has_no_logs():
    assert parse_logs("Can not find any log file matching the pattern") == []
