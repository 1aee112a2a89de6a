"""What makes a pair on another machine: takes the order for it from the depot, and leaves there what came of it.

Each run has a process of its own: the worker that starts it has nothing of the shim in it.
"""

from __future__ import annotations

import gzip
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from reprokit.core.errors import CannotBegin, ReprokitError
from reprokit.run.environment import inherited
from reprokit.run.interruption import Interrupted
from reprokit.study import attempt as attempts
from reprokit.study.attempt import PairReport, PairTask, Task
from reprokit.study.engines import shared_store as depots
from reprokit.study.engines.engine import continued
from reprokit.study.engines.local import MAX_LOG, Local
from reprokit.study.engines.shared_store import Depot
from reprokit.study.results import MAX_LINE, PairResult, RunResult
from reprokit.study.store import LOGS, PREDICTIONS, RUNS, name_of

ORDER, CLAIM, BEAT, REPORT, STOP, ENDED = "order.json", "claim.json", "beat", "report.json", "stop", "ended.json"
ALL: Final = (ORDER, CLAIM, BEAT, REPORT, STOP, ENDED)  # what a job may leave in the depot, behind its name and a dot
NOW: Final = b"now"  # a job that finds this as its STOP ends what it does
UNLESS_BEGUN: Final = b"unless begun"  # and one that finds this does not begin

MAX_ORDER: Final = 16 << 20  # bytes
MAX_REPORT: Final = 2 * MAX_LINE + (1 << 20)
MAX_TASKS: Final = 256 << 20  # bytes of all orders of a manifest


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job: a pair, and the place of its results."""

    pair: PairTask
    apart: bool  # no directory is shared: the pair is made in one of the worker's, and its files go to the depot
    beat: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # seconds between two signs of life


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """States that a worker has begun a job, so that no other one begins it."""

    worker: str = ""
    host: str = ""
    process: int = 0


class JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    """States that a job has ended."""

    words: str = ""  # why not all of it was made


def encoded(order: Order) -> bytes:
    """Return an order as JSON."""
    fields = {"pair": msgspec.Raw(attempts.encoded(order.pair)), "apart": order.apart, "beat": order.beat}
    return msgspec.json.encode(fields)


def work(place: str, name: str, worker: str) -> None:
    """Make the pair of a job, its two runs one after the other, unless it was begun before."""
    depot = depots.opened(place)
    data = depot.get(f"{name}.{ORDER}", MAX_ORDER)
    if data is None:
        raise CannotBegin(
            f"{worker} on {os.uname().nodename} finds nothing to do in {place}: is that the same place there?"
        )
    perform(depot, name, data, worker)


def perform(depot: Depot, name: str, data: bytes, worker: str) -> None:
    """Make the pair of this order."""
    order = msgspec.json.decode(data, type=Order, strict=False)
    if depot.get(f"{name}.{STOP}", 100) is not None:
        depot.put(f"{name}.{ENDED}", msgspec.json.encode(JobEnd()))  # or the study would wait to see what it has left
        return
    claim = Claim(worker=worker, host=os.uname().nodename, process=os.getpid())
    if not depot.create(f"{name}.{CLAIM}", msgspec.json.encode(claim)):
        raise CannotBegin("its job was started once more, and made nothing: that would be another pair")
    words = ""
    try:
        with _directory(order) as directory:
            words = _Job(depot, name, order, directory).make(_placed(order, directory, worker))
    except BaseException as error:
        words = f"its worker was ended ({type(error).__name__}: {error})".replace(": )", ")")
        raise
    finally:
        depot.put(f"{name}.{ENDED}", msgspec.json.encode(JobEnd(words=words)))


@contextmanager
def _directory(order: Order) -> Iterator[Path]:
    """Return the study's directory, or a temporary one in its place."""
    if not order.apart:
        yield Path(order.pair.first.place)
        return
    with tempfile.TemporaryDirectory(prefix="reprokit-") as name:
        directory = Path(os.path.realpath(name))
        (directory / RUNS).mkdir(mode=0o700)
        yield directory


def _placed(order: Order, directory: Path, worker: str) -> PairTask:
    """Return the pair with the directories of this machine."""

    def run(run_task: Task, part: str) -> str:
        return str(directory / RUNS / name_of(run_task.setup, run_task.pair, part))

    def placed(run_task: Task) -> Task:
        run_task = msgspec.structs.replace(run_task, worker=worker)
        if not order.apart:
            return run_task
        recording = run(run_task, "first") if run_task.recording else ""
        return msgspec.structs.replace(
            run_task, place=str(directory), run=run(run_task, run_task.part), recording=recording
        )

    pair = order.pair
    return msgspec.structs.replace(pair, first=placed(pair.first), second=placed(pair.second))


class _Job:
    """Executes a pair, sends heartbeats meanwhile, and reports each run that has ended."""

    def __init__(self, depot: Depot, name: str, order: Order, directory: Path) -> None:
        self._depot, self._name, self._order, self._directory = depot, name, order, directory
        self._local = Local(directory, keep_logs=order.pair.keep == "all", variables=_environment())
        self._report = PairReport()
        self._has_told = True  # the report as it is now
        self._telling = threading.Lock()
        self._is_over = threading.Event()
        self._is_stopped = False

    def make(self, pair: PairTask) -> str:
        """Execute the pair; return why a part of it was not executed, or an empty text."""
        thread = threading.Thread(target=self._look, name="signs of life", daemon=True)
        thread.start()
        try:
            self._local.open(self)
            rest = continued(pair, [pair.made] if pair.made is not None else [], self)
            while rest is not None:
                self._local.begin(rest)
                rest = self._local.settle(self)
        except Interrupted:
            return "it was interrupted" if self._is_stopped else "the process that made it was ended from outside"
        finally:
            try:
                self._local.close()
            finally:
                self._is_over.set()
                thread.join()
                self._end(pair)
        return ""

    def _end(self, pair: PairTask) -> None:
        self._has_told = False  # nothing may have ended
        try:
            self._tell()
        finally:
            if self._order.apart:
                self._hand_over(pair)

    def run_ended(self, run: RunResult) -> None:
        """Report a run."""
        self._report.runs.append(run)
        self._has_told = False
        self._try_to_tell()

    def pair_ended(self, _task: PairTask, pair: PairResult) -> None:
        """Report the comparison."""
        self._report.pair = pair
        self._has_told = False
        self._try_to_tell()

    def _try_to_tell(self) -> None:
        with suppress(ReprokitError):  # a depot that is away for a while is no reason to end
            self._tell()

    def _tell(self) -> None:
        with self._telling:
            if not self._has_told:
                self._depot.put(f"{self._name}.{REPORT}", attempts.encoded_report(self._report))
                self._has_told = True

    def _look(self) -> None:
        """Send a heartbeat, and read whether the job must end."""
        beats = 0
        while not self._is_over.wait(self._order.beat):
            with suppress(ReprokitError):
                beats += 1
                self._depot.put(f"{self._name}.{BEAT}", str(beats).encode())
                self._tell()  # what the depot could not be told when a run ended
                if not self._is_stopped and self._depot.get(f"{self._name}.{STOP}", 100) == NOW:
                    self._is_stopped = True
                    self._local.interrupt(signal.SIGTERM)

    def _hand_over(self, pair: PairTask) -> None:
        """Store the predictions of a run, and the end of its log if that was kept."""
        for run in (pair.first, pair.second):
            name = name_of(run.setup, run.pair, run.part)
            for file in (self._directory / PREDICTIONS / f"{name}.json", self._directory / LOGS / f"{name}.log"):
                if file.is_file():
                    with open(file, "rb") as stream:
                        if file.suffix == ".log":
                            stream.seek(-min(MAX_LOG, file.stat().st_size), os.SEEK_END)
                        self._depot.put(f"{self._name}.{file.name}", stream.read())


def _environment() -> dict[str, str]:
    """Return the worker's environment without the thread counts that Dask has set for itself."""
    variables = inherited()
    config = sys.modules.get("dask.config")
    if config is None:
        return variables
    before = _environment_of(os.getppid())
    for name, value in {**(config.get("distributed.nanny.pre-spawn-environ", None) or {})}.items():
        if variables.get(name) == str(value) and name not in before:
            del variables[name]
    return variables


def _environment_of(process: int) -> set[str]:
    """Return the names of the variables that a process was started with; none if they cannot be read."""
    with suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
        return {os.fsdecode(entry.partition(b"=")[0]) for entry in file.read().split(b"\0")}
    return set()


# A command of any scheduler


def main(arguments: list[str]) -> int:
    """`python -m reprokit.study.engines.worker PLACE TASK`: make the pair of a task.

    In place of TASK a container gives a file of orders, of which JOB_COMPLETION_INDEX counts one.
    """
    signal.signal(signal.SIGTERM, _leave)  # which the first process of a container would never notice otherwise
    place, task = arguments
    try:
        if "/" in task:
            name, order = _counted(task)
            perform(depots.opened(place), name, order, own_name())
        else:
            work(place, task, own_name())
    except ReprokitError as error:
        print(f"reprokit: {error.slug}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _counted(file: str) -> tuple[str, bytes]:
    with gzip.open(file) as stream:
        orders = msgspec.json.decode(stream.read(MAX_TASKS), type=list[tuple[str, msgspec.Raw]])
    name, order = orders[int(os.environ["JOB_COMPLETION_INDEX"])]
    return name, bytes(order)


def own_name() -> str:
    """Return a name for a worker without one from its scheduler: its job, its container, or this process."""
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID")
    return f"job {job}" if job else os.environ.get("HOSTNAME", "") or f"process {os.getpid()}"


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
