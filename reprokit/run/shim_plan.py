"""Writes what the launcher asks of the shim: shim.plan, and the directory of kept files."""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path

from reprokit.core import native
from reprokit.core.errors import ShimMissing
from reprokit.model.plan import Plan

MODES = {"record": 1, "replay": 2}
POLICIES = {"strict": 1, "derive": 2, "live": 3}
CONTINUE = 4  # the policy of a run that goes on from a recording
_PLAN = struct.Struct("<8sIIII32s512s512s512s256sIIIIqI64sI4QII2QIIqqq8x")
_RANKS = {  # as in native/shim/identity/identity.c: variables, and what tells their launch from another one
    "RANK": "",
    "JAX_PROCESS_ID": "",
    "TF_CONFIG": "",
    "HOROVOD_RANK": "",
    "OMPI_COMM_WORLD_RANK": "",
    "MV2_COMM_WORLD_RANK": "",
    "PMIX_RANK": "PMIX_NAMESPACE",
    "PMI_RANK": "PMI_JOBID",
    "PALS_RANKID": "",
    "SLURM_PROCID": "SLURM_STEP_ID",
}


def _path_field(path: Path | None) -> bytes:
    text = b"" if path is None else os.fsencode(path)
    if len(text) > 511:
        raise ShimMissing(f"{path}: the path is longer than 511 bytes; install or run reprokit elsewhere")
    return text


def _tensorflow_rank(config: str) -> str:
    """Return the number of TensorFlow's worker, of which a chief is the first; empty where it is none."""
    try:
        read = json.loads(config)
        kind, index = read["task"]["type"], int(read["task"]["index"])
        return str(index + (kind == "worker" and "chief" in read["cluster"])) if kind in ("chief", "worker") else ""
    except (ValueError, TypeError, KeyError):
        return ""


def _own_ranks() -> bytes:
    """Return the variables, with their values, by which this process knows itself as a rank of a distributed job."""
    values = {name: os.environ.get(name, "") for name in _RANKS}
    values["TF_CONFIG"] = _tensorflow_rank(values["TF_CONFIG"])
    ranks = [f" {name}={value}{_launch(name)} " for name, value in values.items() if re.fullmatch("[0-9]{1,20}", value)]
    return "".join(ranks).encode()[:255]


def _launch(name: str) -> str:
    """Return a check of the name of the launch in which this process has the rank of a variable."""
    launch = os.fsencode(os.environ.get(_RANKS[name], ""))
    return f"@{native.check_in_python(launch):016x}" if launch else ""


def _printed(plan: Plan) -> tuple[int, ...]:
    """Return which of stdout and stderr are open and to be kept, as bits, and the device and inode of each."""
    bits, files = 0, [0, 0, 0, 0]
    for stream in (0, 1) if plan.console else ():
        with suppress(OSError):
            status = os.fstat(stream + 1)
            bits |= 1 << stream
            files[2 * stream : 2 * stream + 2] = status.st_dev, status.st_ino
    return bits, *files


def _piped() -> tuple[int, int, int]:
    """Return whether standard input is a pipe, and its device and inode."""
    with suppress(OSError):
        status = os.fstat(0)
        if stat.S_ISFIFO(status.st_mode):
            return 1, status.st_dev, status.st_ino
    return 0, 0, 0


def write(path: Path, plan: Plan, preload: Path, python_path: Path) -> None:
    """Write shim.plan (struct rk_plan): what the launcher asks of the shim.

    ``preload`` and ``python_path`` are what the shim puts back into LD_PRELOAD and PYTHONPATH of a child.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(_packed(plan, preload, python_path, os.fstat(fd).st_ctime_ns))


def prepare_found(directory: Path, keep: int) -> None:
    """Create the directory in which shim and supervisor keep what a recording changes, with the size of all copies."""
    directory.mkdir(mode=0o700)
    fd = os.open(directory / "room", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(struct.pack("<q", keep))


def _packed(plan: Plan, preload: Path, python_path: Path, started: int) -> bytes:
    varied = plan.varied
    data = _PLAN.pack(
        b"RKPLAN",
        native.constants().RK_ABI,
        MODES[plan.mode],
        CONTINUE if plan.continues else POLICIES[plan.policy],
        plan.record_crypto,
        plan.key,
        _path_field(plan.profile),
        _path_field(preload),
        _path_field(python_path),
        _own_ranks(),
        plan.keyed,
        plan.clock,
        plan.hide_rdrand,
        varied is not None and varied.backwards,
        0 if varied is None else varied.later * 10**9,
        0 if varied is None else varied.processors,
        b"" if varied is None else varied.host.encode("ascii")[:63],
        *_printed(plan),
        os.getpid(),
        *_piped(),
        MODES[plan.mode] == MODES["replay"],  # its recording wrote down which programs it started
        plan.calendar or plan.clock,
        plan.recorded_at - time.monotonic_ns() if plan.recorded_at else 0,
        time.time_ns() - time.monotonic_ns(),
        started,
    )
    return data + struct.pack("<Q", native.check_in_python(data))
