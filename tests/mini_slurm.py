"""A real SLURM of two nodes on this host, from Debian's packages; a partition pre-empts another.

``apt-get install slurmctld slurmd slurm-client munge``. Everything listens on 127.0.0.1, keeps its
files in one folder, and ends with the block. Only root may start it: slurmd sets a job's user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

from tests.waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
NODES = ("n0", "n1")
#: Seconds from a preemption to SIGTERM, and from SIGTERM to SIGKILL.
GRACE_S, KILL_S = 15, 5
#: A requeued job waits as long as a credential lives.
REQUEUE_S = 5

CONFIGURATION = """\
ClusterName=mini
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={requeue_s}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
KillWait={kill_s}
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
PartitionName=low Nodes=n0,n1 Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=high Nodes=n0,n1 PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Return why no SLURM can be started here; empty if one can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install slurmctld slurmd munge"
    return "" if os.geteuid() == 0 else "slurmd has to be started by root"


class MiniSlurm:
    """The daemons of a SLURM.

    Parameters
    ----------
    folder : Path
        Empty; its path is short enough for a Unix socket.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are idle."""
        for name in ("state", "munge", *NODES):
            (self.folder / name).mkdir()
        key = self.folder / "munge" / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.configuration.write_text(
            CONFIGURATION.format(
                folder=self.folder,
                host=socket.gethostname().split(".")[0],
                ports=_free_ports(3),
                grace_s=GRACE_S,
                kill_s=KILL_S,
                requeue_s=REQUEUE_S,
            )
        )
        munge = self.folder / "munge"
        self._run(
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket"),
            *(f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log"),
        )
        until(lambda: (munge / "socket").exists(), "munged has no socket")
        configuration = str(self.configuration)
        self._run("slurmctld", "-D", "-f", configuration)
        for node in NODES:
            self._run("slurmd", "-D", "-N", node, "-f", configuration)
        until(
            lambda: self.ask("sinfo", "-h", "-p", "low", "-N", "-o", "%t") == "idle\nidle",
            f"the nodes are not idle; see the logs in {self.folder}",
        )

    def close(self) -> None:
        """End the daemons and what is left of jobs."""
        self._kill_jobs()
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._kill_jobs()

    def _kill_jobs(self) -> None:
        """Kill all processes but the daemons that carry this SLURM in their environment."""
        mark = f"SLURM_CONF={self.configuration}".encode()
        daemons = {process.pid for process in self._processes}
        for entry in Path("/proc").glob("[0-9]*"):
            pid = int(entry.name)
            with contextlib.suppress(OSError):
                if pid not in daemons and mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    def ask(self, *command: str) -> str:
        """Run a client of SLURM; returns its output."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script's text; returns the job's id."""
        file = self.folder / f"script-{time.monotonic_ns()}.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        return self.ask("sbatch", "--parsable", "--output=/dev/null", *options, str(file))

    def show(self, job: str) -> dict[str, str]:
        """Return the fields of a job."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def _run(self, *command: str) -> None:
        with open(self.folder / f"{command[0]}.log", "ab") as log:
            self._processes.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            )


@contextlib.contextmanager
def mini_slurm(folder: Path) -> Generator[MiniSlurm]:
    """Yield a SLURM with two idle nodes: partition ``high`` pre-empts ``low``."""
    slurm = MiniSlurm(folder)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
