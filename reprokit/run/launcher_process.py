"""Executes each run in a launcher process of its own: shim, supervisor and signals are set up once per process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

from reprokit.core import errors
from reprokit.core.errors import LaunchError, ReprokitError, reason
from reprokit.model.plan import Plan
from reprokit.run.interruption import Interruption
from reprokit.run.process import ExitStatus, ResourceUsage
from reprokit.run.run import execute as execute_here

MAX_REPORT = 60 << 10  # bytes, which a pipe buffers without a reader


class LauncherReport(msgspec.Struct, frozen=True):
    """What a launcher process reports at its end."""

    ended: ExitStatus | None = None
    used: ResourceUsage = ResourceUsage()
    error: str = ""  # name of the class of reprokit's error
    text: str = ""


class LaunchResult(msgspec.Struct, frozen=True):
    """An executed run's exit status, and the processor seconds of all its processes."""

    ended: ExitStatus
    processor: float
    used: ResourceUsage = ResourceUsage()  # of the command alone, without the launcher's work before and after


def execute(plan: Plan, interruption: Interruption, before: Callable[[], None] | None = None) -> LaunchResult:
    """Execute the plan in a separate process; raise its error here, or Interrupted if a signal came.

    `before` is called in that process first.
    """
    reader, writer = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()

    def start() -> int:
        pid = os.fork()
        if pid == 0:
            interruption.restore()
            _launch(plan, writer, before)
        os.close(writer)
        return pid

    with os.fdopen(reader, "rb") as file, interruption.handing_to(start) as pid:
        _, status, usage = os.wait4(pid, 0)
        os.set_blocking(file.fileno(), False)  # processes that outlive the run may hold the other end open
        data = file.read(MAX_REPORT) or b""
    report = _report(data, status)
    assert report.ended is not None
    return LaunchResult(report.ended, usage.ru_utime + usage.ru_stime, report.used)


def _launch(plan: Plan, writer: int, before: Callable[[], None] | None) -> NoReturn:
    try:
        if before is not None:
            before()
        run = execute_here(plan)
        report = LauncherReport(ended=run.ended, used=run.usage)
    except BaseException as error:
        name = type(error).__name__ if isinstance(error, ReprokitError) else ""
        text = str(error) if name else f"{type(error).__name__}: {reason(error)}"
        report = LauncherReport(error=name or "ReprokitError", text=text)
    with suppress(OSError):
        text = report.text[: MAX_REPORT // 8].encode("utf-8", "backslashreplace").decode()
        os.write(writer, msgspec.json.encode(msgspec.structs.replace(report, text=text)))
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)


def _report(data: bytes, status: int) -> LauncherReport:
    try:
        report = msgspec.json.decode(data, type=LauncherReport)
    except msgspec.MsgspecError:
        detail = f"wait status {status}"
        raise LaunchError(f"the process that launched the run did not come to its end ({detail}); try again") from None
    if report.ended is not None:
        return report
    error_class = getattr(errors, report.error, ReprokitError)
    raise error_class(report.text)
