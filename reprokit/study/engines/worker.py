"""What makes a pair on another machine: takes the order for it from the depot, and leaves there what came of it.

The training is started by processes of reprokit's own: the worker that runs this has nothing of the shim in it.
"""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from reprokit.errors import CannotBegin, ReprokitError
from reprokit.launch.environment import inherited
from reprokit.launch.interruption import WATCHED, Interrupted
from reprokit.launch.kernel import end_with_parent
from reprokit.study import attempt as attempts
from reprokit.study.attempt import INTERRUPTED, PairReport, PairTask, Task
from reprokit.study.engines import shared_store as depots
from reprokit.study.engines.engine import PairSchedule
from reprokit.study.engines.local import GRACE, MAX_LOG, Local
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
CODE: Final = (
    "import sys; sys.path[:] = {path!r}; from reprokit.study.engines.worker import pair; sys.exit(pair(sys.argv[1:]))"
)


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job: a pair, and where its results go."""

    pair: PairTask
    apart: bool  # no directory is shared: the pair is made in one of the worker's, and its files go to the depot
    beat: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # seconds between two signs of life


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Says that a job has begun, so that nobody begins it once more."""

    worker: str = ""
    host: str = ""
    process: int = 0


class JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Says that a job is over."""

    words: str = ""  # why not all of it was made


def encoded(order: Order) -> bytes:
    """An order as JSON."""
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
        return
    claim = Claim(worker=worker, host=os.uname().nodename, process=os.getpid())
    if not depot.create(f"{name}.{CLAIM}", msgspec.json.encode(claim)):
        raise CannotBegin("its job was started once more, and made nothing: that would be another pair")
    words = ""
    try:
        with _directory(order) as directory:
            words = _Job(depot, name, order, directory).made(_placed(order, directory, worker))
    except BaseException as error:
        words = f"its worker was ended ({type(error).__name__}: {error})".replace(": )", ")")
        raise
    finally:
        depot.put(f"{name}.{ENDED}", msgspec.json.encode(JobEnd(words=words)))


@contextmanager
def _directory(order: Order) -> Iterator[Path]:
    """The directory of the study, or one that stands in for it."""
    if not order.apart:
        yield Path(order.pair.first.place)
        return
    with tempfile.TemporaryDirectory(prefix="reprokit-") as name:
        directory = Path(os.path.realpath(name))
        (directory / RUNS).mkdir(mode=0o700)
        yield directory


def _placed(order: Order, directory: Path, worker: str) -> PairTask:
    """The pair with the directories of this machine."""

    def run(one: Task, part: str) -> str:
        return str(directory / RUNS / name_of(one.setup, one.pair, part))

    def placed(one: Task) -> Task:
        one = msgspec.structs.replace(one, worker=worker)
        if not order.apart:
            return one
        recording = run(one, "first") if one.recording else ""
        return msgspec.structs.replace(one, place=str(directory), run=run(one, one.part), recording=recording)

    pair = order.pair
    return msgspec.structs.replace(pair, first=placed(pair.first), second=placed(pair.second))


class _Job:
    """The process that makes a pair, and what is said of it meanwhile."""

    def __init__(self, depot: Depot, name: str, order: Order, directory: Path) -> None:
        self._depot, self._name, self._order, self._directory = depot, name, order, directory
        self._scratch = Path(tempfile.mkdtemp(prefix=".job-", dir=directory))
        self._report = self._scratch / REPORT
        self._told = b""
        self._beats = 0

    def made(self, pair: PairTask) -> str:
        """Make it; why not all of it was made, or nothing."""
        process = self._start(pair)
        try:
            words = self._watched(process)
        finally:
            _ended(process)
            self._tell_report()
            if self._order.apart:
                self._hand_over(pair)
            for file in self._scratch.iterdir():
                file.unlink()
            self._scratch.rmdir()
        return words

    def _start(self, pair: PairTask) -> subprocess.Popen[bytes]:
        order = self._scratch / ORDER
        order.write_bytes(attempts.encoded(pair))
        code = CODE.format(path=[part for part in sys.path if part])
        with open(os.devnull, "r+b") as nothing:
            return subprocess.Popen(
                [sys.executable, "-c", code, str(order), str(self._report)],
                stdin=nothing,
                env=_environment(),
                start_new_session=True,
            )

    def _watched(self, process: subprocess.Popen[bytes]) -> str:
        """Give signs of life until it has ended; how it ended, where that was not well."""
        is_stopped = False
        while True:
            with suppress(subprocess.TimeoutExpired):
                return _words(process.wait(self._order.beat), is_stopped=is_stopped)
            if self._is_to_stop() and not is_stopped:
                is_stopped = True
                process.terminate()

    def _is_to_stop(self) -> bool:
        """Ask whether to end, and tell that this goes on; a depot that is away for a while is no reason to end."""
        with suppress(ReprokitError):
            self._beats += 1
            self._depot.put(f"{self._name}.{BEAT}", str(self._beats).encode())
            self._tell_report()
            return self._depot.get(f"{self._name}.{STOP}", 100) == NOW
        return False

    def _tell_report(self) -> None:
        report = self._report.read_bytes() if self._report.exists() else b""
        if report != self._told:
            self._depot.put(f"{self._name}.{REPORT}", report)
            self._told = report

    def _hand_over(self, pair: PairTask) -> None:
        """What a run predicted, and the end of what it printed if that was kept."""
        for one in (pair.first, pair.second):
            name = name_of(one.setup, one.pair, one.part)
            for file in (self._directory / PREDICTIONS / f"{name}.json", self._directory / LOGS / f"{name}.log"):
                if file.is_file():
                    with open(file, "rb") as stream:
                        stream.seek(-min(MAX_LOG, file.stat().st_size) if file.suffix == ".log" else 0, _whence(file))
                        self._depot.put(f"{self._name}.{file.name}", stream.read())


def _whence(file: Path) -> int:
    return os.SEEK_END if file.suffix == ".log" else os.SEEK_SET


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Nothing of a job outlives it."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _words(status: int, *, is_stopped: bool) -> str:
    if status == 0:
        return ""
    if status == INTERRUPTED:
        return "it was interrupted" if is_stopped else "the process that made it was ended from outside"
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"the process that made it {how}"


def _environment() -> dict[str, str]:
    """The worker's own, without what its Dask has set for itself: numbers of threads are the training's business."""
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
    """The names of the variables that a process was started with; none if they are kept from us."""
    with suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
        return {os.fsdecode(entry.partition(b"=")[0]) for entry in file.read().split(b"\0")}
    return set()


# The process that makes a pair


class _Reporter:
    """Writes down whatever has ended."""

    def __init__(self, file: Path) -> None:
        self._file, self._report = file, PairReport()

    def run_ended(self, run: RunResult) -> None:
        """A run has ended."""
        self._report.runs.append(run)
        attempts.write_report(self._report, self._file)

    def pair_ended(self, _task: PairTask, pair: PairResult) -> None:
        """Both were compared."""
        self._report.pair = pair
        attempts.write_report(self._report, self._file)


def pair(arguments: list[str]) -> int:
    """Make the pair of a file, as a study on this machine does, and write what came of it."""
    order, report = map(Path, arguments)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)  # which a worker may have blocked
    parent = os.getppid()
    end_with_parent(signal.SIGTERM)  # of a worker that dies no training is to go on
    if os.getppid() != parent:
        return INTERRUPTED
    task = msgspec.json.decode(order.read_bytes(), type=PairTask, strict=False)
    local = Local(Path(task.first.place), os.open(os.devnull, os.O_RDWR), keep_logs=task.keep == "all")
    try:
        PairSchedule(local, 1).make(iter([task]), _Reporter(report))
    except Interrupted:
        return INTERRUPTED
    return 0


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
    """What a worker is called that its scheduler gives no name: its job, its container, or this process."""
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID")
    return f"job {job}" if job else os.environ.get("HOSTNAME", "") or f"process {os.getpid()}"


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
