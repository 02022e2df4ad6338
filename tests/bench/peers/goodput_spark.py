"""Run Spark MLlib's logistic regression under kills: a standalone master and four workers.

L-BFGS, one executor of one core on each worker, data persisted by MLlib. A kill is a SIGKILL of a
worker's daemon and of its executor. ``spark.task.maxFailures=1000``,
``spark.stage.maxConsecutiveAttempts=1000``, ``spark.deploy.maxExecutorRetries=-1``; as documented,
lost partitions are computed again from their lineage. Master and driver survive. Progress is the
number of finished Spark jobs of the fit, each of which is a pass over all rows; the objective of
each iteration is from the log of Breeze's L-BFGS.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.peers.goodput_run import COLUMNS, L2, ROWS, WORKERS, Run, kill_tree

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{UNIX_MILLIS}} %c{{1}} %m%n
logger.breeze.name = breeze.optimize
logger.breeze.level = info
"""


def spark_class(log: Any, *arguments: str) -> subprocess.Popen[bytes]:
    """Start one of Spark's daemons."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    command = [str(home / "bin" / "spark-class"), *arguments]
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def objectives(path: Path) -> list[tuple[float, float]]:
    """Return times and objectives of the iterations."""
    pattern = re.compile(r"^(\d+) \S+ .*Val and Grad Norm: (\S+)")
    matches = map(pattern.match, path.read_text().splitlines() if path.exists() else [])
    return [(int(m[1]) / 1e3, float(m[2])) for m in matches if m]


def main() -> None:
    """Start the daemons, fit in a thread, play the trace, and end all."""
    run = Run.from_command_line(__doc__)
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    port, log = free_port(), (run.folder / "daemons.log").open("ab")
    url, package = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    master = spark_class(log, f"{package}.master.Master", *options)
    workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(places: list[int]) -> None:
        for place in places:
            folder = run.folder / f"worker-{place}"
            options = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1"]
            options += ["--memory", "1200m", "--work-dir", str(folder)]
            workers[place] = spark_class(log, f"{package}.worker.Worker", *options, url)

    def kill(places: list[int]) -> None:
        kill_tree(workers[place].pid for place in places)

    start(list(range(WORKERS)))
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import SparkSession

    log4j, iterations = run.folder / "log4j2.properties", run.folder / "spark.log"
    log4j.write_text(_LOG4J.format(path=iterations))
    java = f"-Dlog4j2.configurationFile=file:{log4j}"
    settings = {
        "spark.executor.cores": "1",
        "spark.executor.memory": "1000m",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": java,
        "spark.ui.enabled": "false",
        "spark.task.maxFailures": "1000",
        "spark.stage.maxConsecutiveAttempts": "1000",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.files.maxPartitionBytes": "16m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.cores.max": str(WORKERS),
        "spark.local.dir": str(run.folder / "local"),
    }
    builder = SparkSession.builder.master(url).appName("goodput")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() <= WORKERS:
        time.sleep(0.1)
    table = spark.read.parquet(str(run.data / "linear" / "train.parquet"))
    names = [f"x{k:03d}" for k in range(COLUMNS)]
    rows = VectorAssembler(inputCols=names, outputCol="features").transform(table)
    rows = rows.selectExpr("features", "cast(y as double) as label")

    def fit() -> None:
        model = LogisticRegression(
            maxIter=10**6, tol=0.0, regParam=L2, fitIntercept=False, standardization=False
        )
        try:
            spark.sparkContext.setJobGroup("fit", "fit")
            model.fit(rows)
            run.note("the fit returned")
        except Exception as error:
            run.note("the fit failed", error=f"{type(error).__name__}: {error}"[:500])
        run.over.set()

    def poll() -> None:
        tracker, done = spark.sparkContext.statusTracker(), set[int]()
        while not run.over.wait(0.2):
            jobs = set(tracker.getJobIdsForGroup("fit")) - done
            infos = {job: tracker.getJobInfo(job) for job in jobs}
            fresh = {job for job, info in infos.items() if info and info.status == "SUCCEEDED"}
            done |= fresh
            last = objectives(iterations)[-1:]
            # The first passes read the file and fill MLlib's cache.
            if fresh and last:
                run.progress(len(done) * ROWS, last[0][1])

    threading.Thread(target=fit, daemon=True).start()
    run.disturb(kill, start)
    poll()
    kill_tree([*(process.pid for process in workers.values()), master.pid])
    kill_tree([spark.sparkContext._gateway.proc.pid])
    os._exit(0)


if __name__ == "__main__":
    main()
