"""Run the code blocks of a page in their order, as a reader would; ``python -m tests.pages PAGE``.

The working folder holds the files that a reader has (``write_files``). Blocks of Python share one
namespace; blocks of shell run in bash, with background commands ended at the end. A block whose
first line is a comment with a file name is written to that file. Any other block of YAML is a job
file, or sections of one, and is run or simulated. Addresses of a scheduler are replaced by one that
runs here: the page's own, or one that is started for it. ``NOT_RUN`` lists the exceptions.
"""

from __future__ import annotations

import gzip
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from dask.distributed import Client

from elasticml.jobs.job_spec import JobSpec

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Folders of the pages whose blocks run; README.md is another such page.
FOLDERS = ("start", "tutorials", "how-to", "reference", "explanation")

_HADOOP = "needs Hadoop; tests/yarn runs jobs on a real one"
_SLURM = "needs SLURM; tests/cluster/test_slurm.py runs such a job on a real one"
_KUBERNETES = "needs Kubernetes; tests/cluster/test_stock_stops.py sends the same signals"
_INSTALLS = "installs packages"
_INTERRUPTED = "needs a run that was interrupted; tests/cluster/test_resume.py has some"
#: Blocks that are not run: the page, a part of the block that no other block of it has, the reason.
NOT_RUN = (
    ("README.md", "make demo", "tests/cluster/test_demo_command.py runs the demo"),
    ("start/install.md", "pip install .", _INSTALLS),
    ("start/laptop.md", "make demo", "tests/cluster/test_demo_command.py runs the demo"),
    ("start/laptop.md", "source .venv/bin/activate", "the environment of the tests is active"),
    ("start/yarn.md", "make yarn-demo", _HADOOP),
    ("start/yarn.md", "make yarn-up", _HADOOP),
    ("start/yarn.md", "elasticml doctor", _HADOOP),
    ("start/yarn.md", "name: first", _HADOOP),
    ("start/yarn.md", "--pack", _HADOOP),
    ("how-to/checkpoints.md", "--resume", _INTERRUPTED),
    ("how-to/checkpoints.md", "em.Job.resume", _INTERRUPTED),
    ("how-to/dask-clusters.md", "tls:", "needs certificates; tests/cluster/test_tls.py makes some"),
    ("how-to/dask-clusters.md", "SLURMCluster", _SLURM),
    ("how-to/doctor.md", "elasticml doctor --yarn", _HADOOP),
    ("how-to/hdfs.md", "hdfs dfs", _HADOOP),
    ("how-to/hdfs.md", "data: {format", _HADOOP),
    ("how-to/kubernetes.md", "KubeCluster", _KUBERNETES),
    ("how-to/kubernetes.md", "kind: Deployment", _KUBERNETES),
    ("how-to/kubernetes.md", "kubectl drain", _KUBERNETES),
    ("how-to/slurm.md", "SLURMCluster", _SLURM),
    ("how-to/slurm.md", "#SBATCH", _SLURM),
    ("how-to/slurm.md", "test_slurm.py", "is a test itself"),
    (
        "how-to/watch.md",
        "em.watch",
        "needs a notebook; tests/unit/jobs/test_handle.py has a stand-in",
    ),
    ("how-to/watch.md", "alert:", "a rule of Prometheus"),
    ("how-to/yarn.md", "make yarn-up", _HADOOP),
    ("how-to/yarn.md", "--pack: ship", _HADOOP),
    ("how-to/yarn.md", "name: first", _HADOOP),
    ("how-to/yarn.md", "em.YarnCluster", _HADOOP),
)
#: Pages of which all blocks need PyTorch.
TORCH = ("tutorials/images.md", "explanation/local-sgd.md")

_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")
#: Hosts in the pages' addresses, and the ports of a scheduler and its pages.
_HOST = re.compile(r"\b(?:SCHEDULER|dask-scheduler|scheduler|10\.0\.\d+\.\d+)(?=[:\"\n])")


def name_of(page: Path) -> str:
    """Return the name of a page in the lists above."""
    return str(page.relative_to(DOCS) if page.is_relative_to(DOCS) else page.relative_to(ROOT))


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    #: Why it is not run; "" if it is.
    not_run: str

    @property
    def file(self) -> str | None:
        """The file that holds the block's text."""
        named = _FILE.match(self.text)
        return named[1] if named and self.language in ("python", "yaml") else None

    @property
    def runs(self) -> bool:
        """Whether the block is run or written."""
        return self.language in ("python", "sh", "yaml") and not self.not_run


def pages() -> list[Path]:
    """Return README and the pages in all folders."""
    return [
        ROOT / "README.md",
        *(path for name in FOLDERS for path in sorted((DOCS / name).glob("*.md"))),
    ]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    name = name_of(page)
    reasons = {part: why for listed, part, why in NOT_RUN if listed == name}
    for found in _BLOCK.finditer(page.read_text()):
        text = found["text"]
        why = next((why for part, why in reasons.items() if part in text), "")
        yield Block(language=found["language"], text=text, not_run=why)


def write_files() -> None:
    """Write the files that the pages name and that a reader has, with a few rows each."""
    random = np.random.default_rng(0)
    for name, n_rows in (("train", 600), ("test", 200)):
        X = random.normal(size=(n_rows, 8)).round(3)
        y = np.where(X @ np.arange(-3, 5) + random.normal(size=n_rows) > 0, 1, -1)
        rows = [
            f"{y[i]} " + " ".join(f"{j + 1}:{X[i, j]}" for j in range(8)) for i in range(n_rows)
        ]
        Path(f"{name}.svm").write_text("\n".join(rows) + "\n")
        Path(f"{name}.svm.gz").write_bytes(gzip.compress(Path(f"{name}.svm").read_bytes()))
    for name, n_rows in (("flights", 600), ("new", 20)):
        lines = ["id,carrier,hour,distance,arr_delay,late"]
        for i in range(n_rows):
            carrier, hour = ("AA", "UA", "DL")[random.integers(3)], random.integers(5, 23)
            delay = int(5 * (hour - 12) + 20 * (carrier == "UA") + random.normal(0, 20))
            late = "yes" if delay > 15 else "no"
            lines.append(f"{i},{carrier},{hour},{random.integers(100, 3000)},{delay},{late}")
        Path(f"{name}.csv").write_text("\n".join(lines) + "\n")
    for name, n_rows in (("clicks", 400), ("new", 20)):
        columns = np.sort(random.permuted(np.tile(np.arange(12), (n_rows, 1)), axis=1)[:, :4])
        Path(f"{name}.ffm").write_text(
            "".join(
                f"{int(row[0] < 2)} " + " ".join(f"{j % 3}:{j}:1" for j in row) + "\n"
                for row in columns.tolist()
            )
        )
    np.savez("points.npz", X=random.normal(size=(600, 4)), y=np.zeros(600))
    years = random.uniform(0.5, 2, 400)
    claims = random.poisson(0.3 * years)
    ages = random.integers(18, 80, 400)
    Path("claims.csv").write_text(
        "age,log_years,claims\n"
        + "".join(f"{a},{np.log(t):.6f},{c}\n" for a, t, c in zip(ages, years, claims, strict=True))
    )
    for part, n_rows in (("train", 240), ("t10k", 60)):
        header = np.array([0x803, n_rows, 28, 28], dtype=">i4").tobytes()
        pixels = random.integers(0, 256, (n_rows, 28, 28), dtype=np.uint8)
        Path(f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
        header = np.array([0x801, n_rows], dtype=">i4").tobytes()
        labels = random.integers(0, 10, n_rows, dtype=np.uint8)
        Path(f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels.tobytes()))


def write_job() -> None:
    """Write a job file with a loss and a return."""
    Path("job.yaml").write_text(
        "data: {format: svmlight, path: train.svm}\n"
        "algorithm: {name: batch_gradient, loss: logistic, l2: 1.0e-3}\n"
        "cluster: {kind: local, workers: 2}\n"
        "stop: {rounds: 12}\n"
        "faults: [{round: 3, lose: 1, how: kill}, {round: 6, return: 1}]\n"
    )


def shell(text: str) -> None:
    """Run commands; background commands stay in the group of this process."""
    subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True)


def run_yaml(text: str) -> None:
    """Run a job file, or simulate it if it has options of the simulator; complete mere sections."""
    raw = yaml.safe_load(text)
    base = {
        "data": {"format": "svmlight", "path": "train.svm"},
        "algorithm": {"name": "cocoa", "loss": "hinge"},
    }
    if not {"data", "algorithm"} <= raw.keys():
        JobSpec.from_sections({**base, **raw}, folder=Path.cwd(), name="page")
        return
    Path("page.yaml").write_text(text)
    shell(
        "elasticml simulate page.yaml" if "simulate" in raw else "elasticml run --quiet page.yaml"
    )


def free_port() -> str:
    """Return a port on which nothing listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def run_page(page: Path) -> int:
    """Run the blocks in the working folder; return how many."""
    names: dict[str, Any] = {"__name__": "__page__"}
    # Dask's default ports may be taken on this machine.
    ports = {"8786": free_port(), "8787": free_port()}
    blocks = [block for block in blocks_of(page) if block.runs]
    texts = "\n".join(block.text for block in blocks)
    if "8786" in texts and "dask scheduler" not in texts:
        address = f"tcp://127.0.0.1:{ports['8786']}"
        preload = "--preload elasticml.preload"
        shell(f"dask scheduler --port {ports['8786']} --dashboard-address :0 {preload} &")
        shell(f"dask worker {address} --nworkers 2 --nthreads 1 --name worker {preload} &")
        with Client(address) as client:
            client.wait_for_workers(2)
    if "--out job.yaml" not in texts:
        write_job()
    for block in blocks:
        text = re.sub("8786|8787", lambda port: ports[port[0]], _HOST.sub("127.0.0.1", block.text))
        print(f"== {text}", flush=True)
        if block.file is not None:
            Path(block.file).write_text(text)
        elif block.language == "python":
            exec(compile(text, str(page), "exec"), names)
        elif block.language == "yaml":
            run_yaml(text)
        else:
            shell(text)
    return len(blocks)


def main() -> None:
    """Run the page that the command line names, and end what it has started."""
    sys.path.insert(0, os.getcwd())
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # MLflow refuses its default, a folder of files, without this.
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.setpgid(0, 0)
    try:
        write_files()
        print(f"{run_page(Path(sys.argv[1]).resolve())} blocks", flush=True)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main()
