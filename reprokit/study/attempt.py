"""Executes one run of a study on any machine: takes a task of plain data and returns the result.

`python -m reprokit.study.attempt TASK.json RESULT.json` does the same in a separate process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from reprokit.core.difference import Difference, Side, Verdict
from reprokit.core.errors import NothingComparable, ReprokitError
from reprokit.core.messages import warn
from reprokit.model.plan import RECORD, RUN, Plan, ReplayStart
from reprokit.model.run import RunFile
from reprokit.run import agent_lines
from reprokit.run.interruption import WATCHED, Interrupted, Interruption
from reprokit.run.kernel import end_with_parent
from reprokit.run.launcher_process import LaunchResult, execute
from reprokit.run.replay_plan import replay_plan
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.study.results import Evaluation, Mode, Outcome, PairResult, Part, RunResult, encode
from reprokit.study.store import PREDICTIONS, name_of

if TYPE_CHECKING:
    from reprokit.verify.comparison import Comparison

NOT_RUN: Final = "not run: its recording failed"
MAX_NOTES: Final = 20
MAX_FACTS: Final = 3  # environment differences listed per pair
MAX_NOTE: Final = 1000  # characters
TOGETHER: Final = "runs at the same time write into one directory: outputs were not compared"
EXPECTED: Final = ("not-recorded", "not-observed")  # state codes of parts that a setup omits on purpose
PROCESS: Final = ("trail", "process metrics", "metrics in files", "weights")
EVALUATION: Final = "evaluation metrics"
FILE_CATEGORIES: Final = ("outputs", "metrics in files")  # categories of files that concurrent runs may overwrite
INTERRUPTED: Final = 75  # exit status of a run that was ended from outside, without a result


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of a study, with all that another process, perhaps on another machine, needs to execute it."""

    setup: str
    pair: int
    part: Part
    mode: Mode
    command: tuple[str, ...]
    working_directory: str
    place: str  # directory of the study, or its substitute on that machine
    run: str  # run directory to create
    recording: str = ""  # run directory to replay
    seed: int | None = None
    patches: tuple[str, ...] = ()
    calendar: bool = True
    clock: bool = False
    data: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    timeout: float | None = None
    together: int = 1
    worker: str = ""
    notes: tuple[str, ...] = ()  # notes to add to the result


class PairTask(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of runs, executed on one machine one after the other."""

    first: Task
    second: Task
    made: tuple[RunResult, ...] = ()  # results of its runs that exist already
    lock: int | None = None  # descriptor of its lock, which its runs inherit
    keep: Literal["none", "different", "all"] = "none"
    ignore: tuple[str, ...] = ()  # as the study's
    ignore_console: tuple[str, ...] = ()


class PairReport(msgspec.Struct, kw_only=True):
    """The report of a process that executes a pair or a single run, as far as it has come."""

    runs: list[RunResult] = []
    pair: PairResult | None = None
    refused: str = ""  # why a pair cannot be made there


def attempt(task: Task, interruption: Interruption) -> RunResult:
    """Execute the run and return its result; an error of reprokit's is the result of a failed run."""
    started = rundir.utc_now()
    try:
        with _set(task.variables):
            executed = execute(_plan(task), interruption, lambda: end_with_parent(signal.SIGTERM))
        return _executed_result(task, started, executed)
    except ReprokitError as error:
        return _result(task, started, "failed", f"{error.slug}: {error}")


@contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the duration of a context; the command inherits them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def not_run(task: Task) -> RunResult:
    """Return the result of a replay that was not executed, as its recording failed."""
    return _result(task, rundir.utc_now(), "failed", NOT_RUN)


def lost(task: Task, words: str) -> RunResult:
    """Return the result of a run whose process died without reporting one."""
    return _result(task, rundir.utc_now(), "lost", words)


def _plan(task: Task) -> Plan:
    if task.mode == "replayed":
        # Runs at the same time write the same files: none of them may be moved.
        start = ReplayStart.FOUND if task.together == 1 else ReplayStart.HERE
        plan = replay_plan(RunDirectory(Path(task.recording)), Path(task.run), start=start)
        return msgspec.structs.replace(plan, timeout=task.timeout)
    directory = Path(task.working_directory)
    return Plan(
        mode=RECORD if task.mode == "recorded" else RUN,
        command=task.command,
        working_directory=directory,
        output=Path(task.run),
        data=task.data,
        calendar=task.calendar,
        clock=task.clock,
        patches=_patches(task, directory),
        observed=task.mode == "observed",
        untouched=task.mode == "untouched",
        aside=(Path(task.place),),
        timeout=task.timeout,
    )


def _patches(task: Task, directory: Path) -> tuple[str, ...]:
    words = (*task.patches, *([f"seed={task.seed}"] if task.seed is not None else []))
    if not words:
        return ()
    from reprokit.run.run_patches import wanted

    return wanted(words, task.command, directory)


def _result(task: Task, started: str, outcome: Outcome, ended: str) -> RunResult:
    """Return a result without measurements."""
    return RunResult(
        setup=task.setup,
        pair=task.pair,
        part=task.part,
        mode=task.mode,
        seed=task.seed,
        outcome=outcome,
        ended=ended[:MAX_NOTE],
        started=started,
        seconds=0.0,
        processor=0.0,
        host=os.uname().nodename,
        worker=task.worker,
        together=task.together,
        notes=list(task.notes),
    )


def _executed_result(task: Task, started: str, executed: LaunchResult) -> RunResult:
    """Return the result of an executed run: what its directory records, and its measurements."""
    directory = RunDirectory(Path(task.run))
    run, ended = directory.run, executed.ended
    is_over = task.timeout is not None and (run.duration or 0.0) >= task.timeout and ended.exit_code != 0
    outcome: Outcome = "finished" if ended.exit_code == 0 else "timeout" if is_over else "failed"
    notes = [*task.notes, *_notes(directory)]
    how = f"ended after {task.timeout:g} s, the study's timeout" if is_over else ended.words
    bare = _result(task, started, outcome, how)
    size = rundir.size_of(directory.path)
    result = msgspec.structs.replace(
        bare,
        seconds=run.duration or 0.0,
        processor=executed.used.processor,
        memory=executed.used.memory or None,
        stored=0 if task.mode == "untouched" else size,  # the study's own files there do not count
        profile=run.profile.size if run.profile is not None else 0,
        outputs=_outputs_digest(directory) if task.together == 1 else "",
    )
    try:
        result = _observed(task, directory, result)
    except ReprokitError as error:  # the run ended in the middle of a line
        notes.append(f"what was observed cannot be read: {error}")
    return msgspec.structs.replace(result, notes=[note[:MAX_NOTE] for note in notes[:MAX_NOTES]])


def _observed(task: Task, directory: RunDirectory, result: RunResult) -> RunResult:
    """Return the result with the metrics that the agent recorded."""
    if task.mode == "untouched":
        return result
    from reprokit.study import predictions, series  # lazily: importing them must not delay the run

    metrics = series.read(directory)
    name = f"{PREDICTIONS}/{name_of(task.setup, task.pair, task.part)}.json"
    file = Path(task.place) / name
    file.parent.mkdir(mode=0o700, exist_ok=True)
    return msgspec.structs.replace(
        result,
        epochs=metrics.epochs,
        series=metrics.series,
        weights=metrics.weights,
        evaluations=predictions.keep(directory, file, name),
    )


def _notes(directory: RunDirectory) -> Iterator[str]:
    """Yield notes for the reader of the figures."""
    for patch in directory.run.patches:
        if patch.state != "applied":
            yield f"patch {patch.text} was {patch.state.replace('-', ' ')}: {patch.why}"
    fidelity = directory.run.fidelity
    if fidelity is not None and (fidelity.derived or fidelity.live):
        yield f"{fidelity.derived + fidelity.live} of {fidelity.requests} requests were not answered as recorded"
    agent = directory.run.agent
    if agent is not None and not agent.is_loaded and agent.code != "not-observed":
        yield f"the agent was {agent.words}: metrics, weights and predictions are not known"
    yield from (warning.text for warning in directory.run.warnings)
    yield from (f"the agent: {warning.text}" for warning in agent_lines.read(directory.path).warnings)
    yield from (uncovered.text for uncovered in directory.run.uncovered)


def _outputs_digest(directory: RunDirectory) -> str:
    """Return one digest of all outputs, leaving out the noise of container formats; empty without outputs."""
    outputs = directory.outputs()
    files, links = (outputs.files, outputs.links) if outputs is not None else ([], [])
    contents = sorted((file.path, file.content or file.digest) for file in files)
    contents += sorted((link.path, f"-> {link.target}") for link in links)
    if not contents or not all(digest for _, digest in contents):
        return ""
    digest = hashlib.sha256(b"reprokit-outputs-1\0")
    for path, content in contents:
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + content.encode() + b"\0")
    return f"sha256:{digest.hexdigest()}"


# Pairs


def compared(task: PairTask, first: RunResult, second: RunResult) -> PairResult:
    """Return the comparison of both runs; without a verdict if one of them did not finish."""
    bare = PairResult(setup=first.setup, pair=first.pair, notes=[])
    for run in (first, second):
        if run.outcome != "finished":
            verb = {"failed": "failed ({})", "timeout": "was {}", "lost": "is lost ({})"}[run.outcome]
            return msgspec.structs.replace(bare, words=f"not compared: the {run.part} run {verb.format(run.ended)}")
    from reprokit.verify.ignores import declared
    from reprokit.verify.runs import compare

    try:
        ignores = declared(task.ignore, task.ignore_console, "the study")
        comparison = compare(Path(task.first.run), Path(task.second.run), ignores=ignores)
    except NothingComparable as error:
        return msgspec.structs.replace(bare, words=f"not compared: {error}")
    except ReprokitError as error:
        return msgspec.structs.replace(bare, words=f"not compared: {error.slug}: {error}")
    result = _of_comparison(bare, comparison, together=max(first.together, second.together) > 1)
    return _with_differences(result, task, first, second)


def _of_comparison(bare: PairResult, comparison: Comparison, *, together: bool) -> PairResult:
    children = [child for child in comparison.tree.children if not (together and child.name in FILE_CATEGORIES)]
    differing = [child.name for child in children if child.verdict.differs]
    judged = any(child.verdict.is_same for child in children if child.name in (*PROCESS, EVALUATION))
    is_unknown = any(child.verdict is Verdict.NOT_COMPARED for child in children)
    is_known = bool(differing) or (not is_unknown and (not together or judged))
    from reprokit.verify.runs import not_loaded
    from reprokit.verify.verdict import BUT_FOR_OUTPUTS, shortened, verdict_line

    sides: tuple[tuple[RunFile, Side], ...] = (comparison.left.run, "left"), (comparison.right.run, "right")
    expected = {text for side in sides for state, text in not_loaded(*side) if state.code in EXPECTED}
    words = verdict_line(comparison)
    if together and comparison.identical is False and not differing:
        words = BUT_FOR_OUTPUTS
    evaluation = next((child for child in children if child.name == EVALUATION), None)
    facts = [leaf for leaf in comparison.tree.leaves() if leaf.can_change_results][:MAX_FACTS]
    surroundings = [f"{leaf.name} can change results: {leaf.left} against {leaf.right}" for leaf in facts]
    return msgspec.structs.replace(
        bare,
        identical=not differing if is_known else None,
        process_equal=_equal(child for child in children if child.name in PROCESS),
        evaluation_equal=_equal([evaluation] if evaluation is not None else []),
        words=words,
        categories=differing,
        ignored={str(use.rule): use.times for use in comparison.ignores},
        notes=[
            *([TOGETHER] if together else []),
            *map(shortened, surroundings),
            *(note[:MAX_NOTE] for note in comparison.notes[:MAX_NOTES] if note not in expected),
        ],
    )


def _equal(children: Iterable[Difference]) -> bool | None:
    """Return whether all of these are identical; None if there are none."""
    verdicts = [child.verdict for child in children]
    if any(verdict.differs for verdict in verdicts):
        return False
    return True if any(verdict.is_same for verdict in verdicts) else None


def _with_differences(result: PairResult, task: PairTask, first: RunResult, second: RunResult) -> PairResult:
    """Return the comparison with the distance of the runs in their last evaluation that has a score."""
    others = {evaluation.name: evaluation for evaluation in second.evaluations}
    scored = [
        evaluation for evaluation in first.evaluations if evaluation.accuracy is not None or evaluation.mae is not None
    ]
    pairs = [(evaluation, others[evaluation.name]) for evaluation in reversed(scored) if evaluation.name in others]
    if not pairs:
        return result
    evaluation, other = pairs[0]
    rates = [{label.label: label.correct / label.count for label in side.labels if label.count} for side in pairs[0]]
    inconsistent = _inconsistent(Path(task.first.place), evaluation, other)
    if inconsistent is None and result.evaluation_equal:
        inconsistent = 0
    return msgspec.structs.replace(
        result,
        inconsistent=inconsistent,
        predictions=None if inconsistent is None else evaluation.count,
        accuracy_difference=_distance(evaluation.accuracy, other.accuracy),
        mae_difference=_distance(evaluation.mae, other.mae),
        largest_class_difference=max(
            (abs(rates[0][name] - rates[1][name]) for name in rates[0].keys() & rates[1]), default=None
        ),
    )


def _distance(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else abs(left - right)


def _inconsistent(place: Path, first: Evaluation, second: Evaluation) -> int | None:
    """Return how many predictions differ; None if not all were kept, or they are of different samples."""
    from reprokit.study import predictions

    left, right = (predictions.read(place, side.predictions).get(side.name) for side in (first, second))
    if left is None or right is None or left.truth != right.truth or len(left.predicted) != len(right.predicted):
        return None
    return sum(left.labels[a] != right.labels[b] for a, b in zip(left.predicted, right.predicted, strict=True))


def tidy(task: PairTask, result: PairResult) -> None:
    """Remove the run directories that the study does not keep."""
    if task.keep == "all" or (task.keep == "different" and result.identical is not True):
        return
    for run_task in (task.first, task.second):
        shutil.rmtree(run_task.run, ignore_errors=True)


# A process of its own


def main(arguments: list[str]) -> int:
    """Execute a task file and write its report; the exit status says only whether a report was written."""
    task_file, result_file = map(Path, arguments[:2])
    for descriptor in arguments[2:]:  # locks that this process holds; the command must not inherit them
        os.set_inheritable(int(descriptor), False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)  # a worker may have blocked these
    parent = os.getppid()
    end_with_parent(signal.SIGTERM)  # no run of a killed study may continue beside those of its next start
    if os.getppid() != parent:
        return INTERRUPTED
    task = msgspec.json.decode(task_file.read_bytes(), type=Task, strict=False)
    try:
        with Interruption() as interruption:
            report = PairReport(runs=[attempt(task, interruption)])
            rundir.write_whole(result_file, encoded_report(report), synced=True)
    except Interrupted:
        return INTERRUPTED
    return 0


def encoded_report(report: PairReport) -> bytes:
    """Return a report as JSON; NaN and infinities become texts."""
    runs = b",".join(map(encode, report.runs))
    pair = encode(report.pair) if report.pair is not None else b"null"
    return b'{"runs":[' + runs + b'],"pair":' + pair + b',"refused":' + msgspec.json.encode(report.refused) + b"}\n"


def read_report(file: Path) -> PairReport:
    """Return the report in a file; an empty one if the process wrote nothing."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=PairReport, strict=False)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        if not isinstance(error, FileNotFoundError):
            warn(f"{file}: {error}", "report-not-used")
        return PairReport()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
