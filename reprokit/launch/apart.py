"""Each run has a launcher process of its own: shim, supervisor and signals are set up once in a process's life."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

import msgspec

from reprokit import errors
from reprokit.errors import LaunchError, ReprokitError
from reprokit.launch.interruption import Interruption
from reprokit.launch.process import Ended
from reprokit.launch.run import run
from reprokit.plan import Plan

MAX_REPORT = 60 << 10  # bytes, which a pipe takes without a reader


class Report(msgspec.Struct, frozen=True):
    """What a launcher process has to say at its end."""

    ended: Ended | None = None
    error: str = ""  # the class of reprokit's error
    text: str = ""


class Executed(msgspec.Struct, frozen=True):
    """A run that was executed, and the processor time that it took with all its processes."""

    ended: Ended
    processor: float


def execute(plan: Plan, interruption: Interruption) -> Executed:
    """Execute the plan in a process of its own; raises its error here, and Interrupted if a signal came."""
    reader, writer = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    pid = os.fork()
    if pid == 0:
        interruption.restore()
        _launch(plan, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as file, interruption.handing_to(pid):
        _, status, used = os.wait4(pid, 0)
        os.set_blocking(file.fileno(), False)  # what outlives the run may hold the other end
        data = file.read(MAX_REPORT) or b""
    return Executed(_ended(data, status), used.ru_utime + used.ru_stime)


def _launch(plan: Plan, writer: int) -> NoReturn:
    try:
        report = Report(ended=run(plan))
    except BaseException as error:
        name = type(error).__name__ if isinstance(error, ReprokitError) else ""
        report = Report(error=name or "ReprokitError", text=str(error) if name else f"{type(error).__name__}: {error}")
    with suppress(OSError):
        text = report.text[: MAX_REPORT // 8].encode("utf-8", "backslashreplace").decode()
        os.write(writer, msgspec.json.encode(msgspec.structs.replace(report, text=text)))
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)


def _ended(data: bytes, status: int) -> Ended:
    try:
        report = msgspec.json.decode(data, type=Report)
    except msgspec.MsgspecError:
        how = f"wait status {status}"
        raise LaunchError(f"the process that launched the run did not come to its end ({how}); try again") from None
    if report.ended is not None:
        return report.ended
    kind = getattr(errors, report.error, ReprokitError)
    raise kind(report.text)
