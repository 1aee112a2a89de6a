"""A Slurm of one node for tests: its daemons and munge's, with all that they keep in one directory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.support import LIMIT, Done

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scancel", "sinfo")
START = 30.0  # seconds until the node must be idle
CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge/socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={place}/controller
SlurmdSpoolDir={place}/node
SlurmctldPidFile={place}/controller.pid
SlurmdPidFile={place}/node.pid
SlurmctldLogFile={place}/controller.log
SlurmdLogFile={place}/node.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The cluster, and commands that know of it."""

    def __init__(self, place: Path) -> None:
        self.environment = {"SLURM_CONF": str(place / "slurm.conf")}

    def run(self, *words: str | Path, directory: Path) -> Done:
        """Run a command to its end."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, timeout=LIMIT)

    def batch(self, script: str, directory: Path) -> str:
        """Run a script as a batch job of two tasks, and return what it printed to both streams."""
        (directory / "job.sh").write_text(f"#!/bin/sh\n{script}\n")
        done = self.run("sbatch", "--wait", "--quiet", "-n2", "--output=job.out", "job.sh", directory=directory)
        printed = (directory / "job.out").read_text() if (directory / "job.out").exists() else ""
        assert done.returncode == 0, done.stderr + printed
        return printed


@contextmanager
def one_node(place: Path) -> Iterator[Slurm]:
    """Start the daemons, and end them; skips where that cannot be done."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"Slurm is not here: no {missing[0]}" if missing else "only root starts a Slurm")
    _write(place)
    slurm, (munge, configuration) = Slurm(place), (place / "munge", str(place / "slurm.conf"))
    daemons = (
        [
            str(_program("munged")),
            "--foreground",
            "--force",
            *(f"--{name}={munge / value}" for name, value in MUNGE.items()),
        ],
        [str(_program("slurmctld")), "-D", "-f", configuration],
        [str(_program("slurmd")), "-D", "-f", configuration],
    )
    with ExitStack() as stack:
        with open(place / "printed", "w") as printed:
            for words in daemons:
                stack.enter_context(_ending(subprocess.Popen(words, stdout=printed, stderr=printed)))
                _await((munge / "socket").exists, place)
        _await(lambda: slurm.run("sinfo", "-h", "-o", "%t", directory=place).stdout.strip() == "idle", place)
        stack.callback(_cancel, slurm, place)
        yield slurm


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


MUNGE = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _write(place: Path) -> None:
    """Write what the daemons read: their ports, the key, and no control groups."""
    for name in ("munge", "controller", "node"):
        (place / name).mkdir(mode=0o755)
    (place / "munge" / "key").touch(mode=0o600)
    (place / "munge" / "key").write_bytes(os.urandom(1024))
    with closing(socket.create_server(("127.0.0.1", 0))) as first, closing(socket.create_server(("", 0))) as second:
        ports = first.getsockname()[1], second.getsockname()[1]
    host = os.uname().nodename.partition(".")[0]
    text = CONFIGURATION.format(host=host, controller=ports[0], node=ports[1], place=place)
    (place / "slurm.conf").write_text(text)
    version = subprocess.run([str(_program("slurmd")), "-V"], capture_output=True, text=True).stdout.split()[-1]
    plugin = "disabled" if int(version.split(".")[0]) >= 23 else "autodetect"
    (place / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")


def _await(condition: Callable[[], bool], place: Path) -> None:
    deadline = time.monotonic() + START
    while not condition():
        if time.monotonic() > deadline:
            logs = [path.read_text().strip().splitlines() for path in (*place.glob("*.log"), place / "printed")]
            pytest.skip(f"Slurm does not start here: {'; '.join(lines[-1] for lines in logs if lines)}")
        time.sleep(0.05)


@contextmanager
def _ending(daemon: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate a daemon at the end, and wait for it."""
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _cancel(slurm: Slurm, place: Path) -> None:
    """End all jobs, whose processes are no children of the daemons'."""
    slurm.run("scancel", "--user=root", directory=place)
    deadline = time.monotonic() + START
    while slurm.run("squeue", "-h", directory=place).stdout and time.monotonic() < deadline:
        time.sleep(0.1)
