"""Checks a whole run directory: each file with its reader, then names, types and modes of all files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprokit import entropy
from reprokit.core import native
from reprokit.core.bounds import MAX_FILES
from reprokit.core.errors import RunDamaged, RunError, RunInProgress, RunNotFound, RunNotReadable, RunTooNew
from reprokit.core.screen import Cells, print_rows
from reprokit.model.run import FINISHED, NO_END, SystemCallsFile
from reprokit.run_files import answers, console, findings, keyframes, rundir, trails
from reprokit.run_files import ledgers as sample_ledgers
from reprokit.run_files import unflushed as pending_lines
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.read import integrity
from reprokit.verify.read.evaluation_columns import EvaluationChecker
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import scan

FORMAT = 1
SHOWN = 1000  # number of damaged files that are listed; all are counted
SHIM_PLAN_SIZE = 2048  # bytes of struct rk_plan; the last 8 are its checksum

_UNCHECKED = frozenset(
    {
        rundir.WRITTEN,
        rundir.READ,
        rundir.FOUND_LIST,
        rundir.MODULES,
        rundir.STOPPED,
        rundir.VARIABLE_KEY,
        rundir.SEEDS,
        rundir.ORDERS,
        rundir.SIGNALS,
        rundir.KILLED,
        rundir.RESERVE,
    }
)
_ANY_NAME = r"[A-Za-z0-9._-]{1,200}"
# By directory, patterns of the files that a run may hold there; True: their digest or checksum is verified.
_ALLOWED: dict[str, list[tuple[str, bool]]] = {
    "": [
        *((re.escape(name), name not in _UNCHECKED) for name in sorted(rundir.FILES)),
        (r"[a-z]+\.json\.partial", False),
    ],
    rundir.ENTROPY: [
        (r"[A-Za-z0-9-]+\.entropy", True),
        (r"[A-Za-z0-9-]+\.(?:lost|new)|fresh|process-ids", False),
        (rundir.OVER, True),
    ],
    rundir.EVALUATION: [(r"[0-9a-f]{16}-[0-9]+\.npy", True)],
    rundir.CONSOLE: [(r"[0-9a-f]{16}-[0-9]+\.console", True)],
    rundir.TRAIL: [(r"[A-Za-z0-9-]+\.trail", True), (r"[A-Za-z0-9.-]+\.new", False)],
    rundir.NUMBERS: [(r"[0-9a-f]{16}-[0-9]+\.numbers", True)],
    rundir.SAMPLES: [(r"[0-9a-f]{16}-[0-9]+\.(?:samples|tail)", True)],
    rundir.TENSORS: [(r"[0-9a-f]{16}-[0-9]+(?:\.jsonl|\.partial|-[0-9]+\.safetensors)", False)],
    rundir.KEYFRAMES: [
        (r"[0-9a-f]{16}-[0-9]+(?:\.jsonl|\.draws)|seal\.json", True),
        (r"[0-9a-f]{16}-[0-9]+(?:\.partial|-[0-9]+\.safetensors)", False),
    ],
    rundir.KEPT: [("[0-9]{1,9}", True)],
    rundir.FOUND: [("[0-9]{1,20}-[0-9]{1,20}", True)],
    rundir.READ_BY: [(r"[0-9]+-[0-9]+", False)],
    rundir.ANSWERS: [(_ANY_NAME, False)],
    rundir.PROFILE: [(r"system-calls\.json", True), (_ANY_NAME, False)],
    pending_lines.DIRECTORY: [(_ANY_NAME, False)],
}
_SNAPSHOT_FILE = re.compile(r"snapshot\.json|tensors\.safetensors")


@dataclass(frozen=True)
class FileDamage:
    """A file of a run that was altered, does not belong there, or has a wrong type or mode."""

    file: str  # relative to the run directory
    what: str  # the problem, in words


@dataclass
class RunCheck:
    """The result of checking a run directory."""

    path: Path
    run: RunDirectory | None = None
    damages: list[FileDamage] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  # names of files that no digest or checksum covers
    files: int = 0
    size: int = 0

    @property
    def sealed(self) -> bool:
        """Return whether the run ended regularly: digests of its files are taken at its end."""
        return self.run is not None and self.run.run.status == FINISHED

    def add(self, file: str, what: str) -> None:
        self.damages.append(FileDamage(file, what))


def check(path: Path) -> RunCheck:
    """Check all files of a run directory; raises RunNotFound, RunNotReadable, RunTooNew and RunInProgress."""
    result = RunCheck(path)
    try:
        result.run = run = RunDirectory(path)
    except RunDamaged as error:
        result.add(rundir.RUN, _without_path(path, error))
        _check_entries(result)
        return result
    run.require_finished()
    _refuse_orphans(run)
    for name, reader in (*_readers(run), *_problem_readers(run, result)):
        try:
            reader()
        except (RunNotFound, RunNotReadable, RunTooNew, RunInProgress):
            raise
        except (RunError, OSError) as error:
            result.add(name, _without_path(path, error))
    _check_entries(result)
    return result


def _refuse_orphans(run: RunDirectory) -> None:
    try:
        is_written = run.orphaned and entropy.being_written(run.path / rundir.ENTROPY)
    except RunDamaged:
        return  # the reader of this file reports it
    if is_written:
        raise RunInProgress(f"{run.path}: its launcher is gone and its training still writes to it; wait for it to end")


def _problem_readers(run: RunDirectory, result: RunCheck) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the readers that report each damaged file by name; files that a bundle omits are not reported."""

    def add_problems(problems: Callable[[RunDirectory], Iterator[integrity.IntegrityProblem]]) -> None:
        for problem in problems(run):
            if problem.exists or run.run.bundled is None:
                result.add(problem.name, problem.what)

    yield rundir.OUTPUTS, lambda: add_problems(integrity.kept_outputs)
    yield rundir.FOUND, lambda: add_problems(integrity.found_files)
    yield rundir.SNAPSHOTS, lambda: add_problems(integrity.snapshots)
    yield rundir.EVALUATION, lambda: add_problems(integrity.evaluation)
    yield rundir.CONSOLE, lambda: add_problems(integrity.console)


def _readers(run: RunDirectory) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a reader for each part that exists or is required."""
    yield rundir.ENVIRONMENT, run.environment
    yield rundir.FINDINGS, lambda: findings.read(run)
    yield rundir.RESUMPTION, lambda: answers.resumption(run)
    yield rundir.DIVERGENCE, lambda: answers.divergence(run)
    if run.has(rundir.SYSTEM_CALLS):
        yield rundir.SYSTEM_CALLS, lambda: run.decode(rundir.SYSTEM_CALLS, SystemCallsFile)
    if run.has(rundir.OPTIONS):
        yield rundir.OPTIONS, lambda: run.decode(rundir.OPTIONS, dict[str, Any])
    if run.has(rundir.AGENT_PLAN):
        yield rundir.AGENT_PLAN, lambda: run.decode(rundir.AGENT_PLAN, dict[str, Any])
    if run.has(rundir.SHIM_PLAN):
        yield rundir.SHIM_PLAN, lambda: _check_shim_plan(run)
    yield rundir.METRICS, lambda: scan(run, Normalizations(), EvaluationChecker(run))
    if run.run.has_profile:
        yield rundir.ENTROPY, lambda: entropy.check(run.path / rundir.ENTROPY, run.run.profile)
    over = f"{rundir.ENTROPY}/{rundir.OVER}"
    if run.has(over):
        yield over, lambda: run.read(over, 0)
    yield rundir.TRAIL, lambda: _check_trails(run)
    yield rundir.KEYFRAMES, lambda: keyframes.read(run.path, run.run.keyframes)
    yield rundir.SAMPLES, lambda: [None for ledger in sample_ledgers.ledgers(run) for _ in ledger.read()]
    if run.keeps_console:
        yield rundir.CONSOLE, lambda: [console.read(run, head) for head in console.heads(run).values()]


def _check_shim_plan(run: RunDirectory) -> None:
    data = run.read(rundir.SHIM_PLAN, SHIM_PLAN_SIZE)
    if len(data) != SHIM_PLAN_SIZE or native.checker()(data[:-8], 0) != int.from_bytes(data[-8:], "little"):
        raise RunDamaged(f"{run.path / rundir.SHIM_PLAN} was altered: its check does not fit")


def _check_trails(run: RunDirectory) -> None:
    """Read every step, and every recorded digest of a single tensor."""
    for trail in trails.read(run):
        for series in trail.series:
            series.check()
            for number in series.kept():
                series.digests(number)


# ---- names, types and modes ---------------------------------------------------------------------------


def _check_entries(result: RunCheck) -> None:
    """Report files that do not belong to a run or that other users may access; list those that nothing checks."""
    mode = stat.S_IMODE(os.stat(result.path).st_mode)
    if mode & 0o077:
        result.add(".", _mode_problem(mode))
    for name, status in _entries(result.path, ""):
        result.files += 1
        result.size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if result.files > MAX_FILES:
            result.add(".", f"holds more than {MAX_FILES} files")
            return
        if what := _problem(name, status):
            result.add(name, what)
        elif stat.S_ISREG(status.st_mode) and not _is_checked(name):
            result.unchecked.append(name)


def _entries(directory: Path, prefix: str, depth: int = 0) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of everything below a directory, without following symbolic links."""
    with os.scandir(directory) as entries:
        for entry in entries:
            name, status = prefix + entry.name, entry.stat(follow_symlinks=False)
            yield name, status
            if stat.S_ISDIR(status.st_mode) and depth < 3:
                yield from _entries(directory / entry.name, f"{name}/", depth + 1)


def _problem(name: str, status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return _directory_problem(name) or _mode_problem(stat.S_IMODE(status.st_mode))
    if not stat.S_ISREG(status.st_mode):
        return "is neither a file nor a directory"
    if _is_checked(name) is None:
        return "is no file of a run"
    return _mode_problem(stat.S_IMODE(status.st_mode))


def _directory_problem(name: str) -> str:
    parent = name.rpartition("/")[0]
    known = name in (*_ALLOWED, rundir.SNAPSHOTS) if not parent else parent == rundir.SNAPSHOTS
    return "" if known else "is no directory of a run"


def _mode_problem(mode: int) -> str:
    return f"may be read or written by others (mode {mode:04o}): chmod -R go= RUN" if mode & 0o077 else ""


def _is_checked(name: str) -> bool | None:
    """Return whether files of this name are checked; None if a run has no such file."""
    parent, _, base = name.rpartition("/")
    if parent.startswith(f"{rundir.SNAPSHOTS}/"):
        return not os.path.basename(parent).startswith(".") if _SNAPSHOT_FILE.fullmatch(base) else None
    return next((checked for pattern, checked in _ALLOWED.get(parent, ()) if re.fullmatch(pattern, base)), None)


def _without_path(path: Path, error: Exception) -> str:
    """Return an error's message without the path of the run directory, which the headline names."""
    return str(error).replace(f"{path}/", "").removesuffix("; the run cannot be used")


# ---- the result -------------------------------------------------------------------------------------------


def document(result: RunCheck) -> dict[str, Any]:
    """Return the result as a JSON document."""
    run = result.run.run if result.run is not None else None
    return {
        "format": FORMAT,
        "path": str(result.path),
        "run_id": run.run_id if run is not None else None,
        "whole": not result.damages,
        "sealed": result.sealed,
        "damaged": [{"file": damage.file, "problem": damage.what} for damage in result.damages],
        "unchecked": result.unchecked,
        "files": result.files,
        "size": result.size,
    }


def print_check(result: RunCheck) -> None:
    """Print the result: damaged files first, then unchecked ones."""
    count = len(result.damages)
    verdict = "whole" if not count else f"damaged: {count} problem{'' if count == 1 else 's'}"
    rows = [Cells(("damaged", damage.file, damage.what), "bold red") for damage in result.damages[:SHOWN]]
    if count > SHOWN:
        rows.append(Cells(("damaged", "", f"and {count - SHOWN} more: --json has all"), "bold red"))
    if result.run is not None and not result.sealed:
        why = f"the run {NO_END}, where digests are taken: files were read, and not compared with any"
        rows.append(Cells(("unsealed", rundir.RUN, why), "yellow"))
    rows += [Cells(("unchecked", name, "no digest is over it")) for name in sorted(result.unchecked)[:SHOWN]]
    style = "bold red" if count else "bold green"
    print_rows(f"{verdict}: {result.path}, {result.files} files of {result.size} bytes", rows, style=style)
