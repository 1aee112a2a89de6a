"""Checks a whole run directory: each file by the reader that knows it, then names, kinds and modes of all of them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprokit import console, entropy, findings, native, pending_lines, rundir, sample_ledgers, trails
from reprokit.bounds import MAX_FILES
from reprokit.errors import RunDamaged, RunError, RunInProgress, RunNotFound, RunNotReadable, RunTooNew
from reprokit.model import located, resumption
from reprokit.model.run import FINISHED, NO_END, SystemCallsFile
from reprokit.rundir import RunDirectory
from reprokit.screen import Cells, print_rows
from reprokit.verify.read import integrity
from reprokit.verify.read.evaluation_columns import EvaluationChecker
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import scan

FORMAT = 1
SHOWN = 1000  # damaged files; all are counted
SHIM_PLAN_SIZE = 2048  # struct rk_plan, whose last 8 bytes are its check

_UNCHECKED = frozenset(
    {
        rundir.WRITTEN,
        rundir.READ,
        rundir.MODULES,
        rundir.STOPPED,
        rundir.VARIABLE_KEY,
        rundir.SEEDS,
        rundir.ORDERS,
        rundir.SIGNALS,
        rundir.RESERVE,
    }
)
_NUMBERED = r"[A-Za-z0-9._-]{1,200}"
# By directory, the files that a run can hold there; True: each is under a digest or a check that is compared.
_KNOWN: dict[str, list[tuple[str, bool]]] = {
    "": [
        *((re.escape(name), name not in _UNCHECKED) for name in sorted(rundir.FILES)),
        (r"[a-z]+\.json\.partial", False),
    ],
    rundir.ENTROPY: [(r"[A-Za-z0-9-]+\.entropy", True), (r"[A-Za-z0-9-]+\.(?:lost|new)|fresh|process-ids", False)],
    rundir.EVALUATION: [(r"[0-9a-f]{16}-[0-9]+\.npy", True)],
    rundir.CONSOLE: [(r"[0-9a-f]{16}-[0-9]+\.console", True)],
    rundir.TRAIL: [(r"[A-Za-z0-9-]+\.trail", True)],
    rundir.SAMPLES: [(r"[0-9a-f]{16}-[0-9]+\.(?:samples|tail)", True)],
    rundir.TENSORS: [(r"[0-9a-f]{16}-[0-9]+(?:\.jsonl|-[0-9]+\.safetensors)", False)],
    rundir.KEPT: [("[0-9]{1,9}", True)],
    rundir.READ_BY: [(r"[0-9]+-[0-9]+", False)],
    rundir.ANSWERS: [(_NUMBERED, False)],
    rundir.PROFILE: [(r"system-calls\.json", True), (_NUMBERED, False)],
    pending_lines.DIRECTORY: [(_NUMBERED, False)],
}
_OF_SNAPSHOT = re.compile(r"snapshot\.json|tensors\.safetensors")


@dataclass(frozen=True)
class FileDamage:
    """A file that is not what it was, or should not be there, or not so."""

    file: str  # relative to the run directory
    what: str


@dataclass
class RunCheck:
    """What came of checking a run directory."""

    path: Path
    run: RunDirectory | None = None
    damages: list[FileDamage] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  # files that no digest and no check is over
    files: int = 0
    size: int = 0

    @property
    def sealed(self) -> bool:
        """Whether the run came to its end, where digests of its files are taken."""
        return self.run is not None and self.run.run.status == FINISHED

    def add(self, file: str, what: str) -> None:
        self.damages.append(FileDamage(file, what))


def check(path: Path) -> RunCheck:
    """Check everything in a run directory; raises RunNotFound, RunNotReadable, RunTooNew and RunInProgress."""
    result = RunCheck(path)
    try:
        result.run = run = RunDirectory(path)
    except RunDamaged as error:
        result.add(rundir.RUN, _without_path(path, error))
        _look_through(result)
        return result
    run.require_finished()
    _refuse_orphans(run)
    for name, reader in (*_readers(run), *_lists(run, result)):
        try:
            reader()
        except (RunNotFound, RunNotReadable, RunTooNew, RunInProgress):
            raise
        except (RunError, OSError) as error:
            result.add(name, _without_path(path, error))
    _look_through(result)
    return result


def _refuse_orphans(run: RunDirectory) -> None:
    try:
        is_written = run.orphaned and entropy.being_written(run.path / rundir.ENTROPY)
    except RunDamaged:
        return  # said by its reader
    if is_written:
        raise RunInProgress(f"{run.path}: its launcher is gone and its training still writes to it; wait for it to end")


def _lists(run: RunDirectory, result: RunCheck) -> Iterator[tuple[str, Callable[[], object]]]:
    """The readers that name each damaged file themselves. A bundle leaves out what was not asked for, and keys."""

    def take(problems: Callable[[RunDirectory], Iterator[integrity.IntegrityProblem]]) -> None:
        for problem in problems(run):
            if problem.is_there or run.run.bundled is None:
                result.add(problem.name, problem.what)

    yield rundir.OUTPUTS, lambda: take(integrity.kept_outputs)
    yield rundir.SNAPSHOTS, lambda: take(integrity.snapshots)
    yield rundir.EVALUATION, lambda: take(integrity.evaluation)
    yield rundir.CONSOLE, lambda: take(integrity.console)


def _readers(run: RunDirectory) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a reader for each part that is there or must be."""
    yield rundir.ENVIRONMENT, run.environment
    yield rundir.FINDINGS, lambda: findings.read(run)
    yield rundir.RESUMPTION, lambda: resumption.read(run)
    yield rundir.DIVERGENCE, lambda: located.read(run)
    if run.has(rundir.SYSTEM_CALLS):
        yield rundir.SYSTEM_CALLS, lambda: run.decode(rundir.SYSTEM_CALLS, SystemCallsFile)
    if run.has(rundir.AGENT_PLAN):
        yield rundir.AGENT_PLAN, lambda: run.decode(rundir.AGENT_PLAN, dict[str, Any])
    if run.has(rundir.SHIM_PLAN):
        yield rundir.SHIM_PLAN, lambda: _check_shim_plan(run)
    yield rundir.METRICS, lambda: scan(run, Normalizations(), EvaluationChecker(run))
    if run.run.has_profile:
        yield rundir.ENTROPY, lambda: entropy.check(run.path / rundir.ENTROPY, run.run.profile)
    yield rundir.TRAIL, lambda: _check_trails(run)
    yield rundir.SAMPLES, lambda: [None for ledger in sample_ledgers.ledgers(run) for _ in ledger.read()]
    if run.keeps_console:
        yield rundir.CONSOLE, lambda: [console.read(run, head) for head in console.heads(run).values()]


def _check_shim_plan(run: RunDirectory) -> None:
    data = run.read(rundir.SHIM_PLAN, SHIM_PLAN_SIZE)
    if len(data) != SHIM_PLAN_SIZE or native.checker()(data[:-8], 0) != int.from_bytes(data[-8:], "little"):
        raise RunDamaged(f"{run.path / rundir.SHIM_PLAN} was altered: its check does not fit")


def _check_trails(run: RunDirectory) -> None:
    """Read every step, and every digest of single tensors that was kept."""
    for trail in trails.read(run):
        for series in trail.series:
            for _ in series.steps():
                pass
            for number in series.kept():
                series.digests(number)


# ---- names, kinds and modes ---------------------------------------------------------------------------


def _look_through(result: RunCheck) -> None:
    """Note what should not be there, or that others than its owner may read, and what nothing checks."""
    mode = stat.S_IMODE(os.stat(result.path).st_mode)
    if mode & 0o077:
        result.add(".", _open_to_others(mode))
    for name, status in _entries(result.path, ""):
        result.files += 1
        result.size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if result.files > MAX_FILES:
            result.add(".", f"holds more than {MAX_FILES} files")
            return
        if what := _wrong(name, status):
            result.add(name, what)
        elif stat.S_ISREG(status.st_mode) and not _rule(name):
            result.unchecked.append(name)


def _entries(directory: Path, prefix: str, depth: int = 0) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a directory, no symbolic link followed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            name, status = prefix + entry.name, entry.stat(follow_symlinks=False)
            yield name, status
            if stat.S_ISDIR(status.st_mode) and depth < 3:
                yield from _entries(directory / entry.name, f"{name}/", depth + 1)


def _wrong(name: str, status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return _wrong_directory(name) or _open_to_others(stat.S_IMODE(status.st_mode))
    if not stat.S_ISREG(status.st_mode):
        return "is neither a file nor a directory"
    if _rule(name) is None:
        return "is no file of a run"
    return _open_to_others(stat.S_IMODE(status.st_mode))


def _wrong_directory(name: str) -> str:
    parent = name.rpartition("/")[0]
    known = name in (*_KNOWN, rundir.SNAPSHOTS) if not parent else parent == rundir.SNAPSHOTS
    return "" if known else "is no directory of a run"


def _open_to_others(mode: int) -> str:
    return f"may be read or written by others (mode {mode:04o}): chmod -R go= RUN" if mode & 0o077 else ""


def _rule(name: str) -> bool | None:
    """Return whether files of this name are checked; None where a run has none such."""
    parent, _, base = name.rpartition("/")
    if parent.startswith(f"{rundir.SNAPSHOTS}/"):
        return not os.path.basename(parent).startswith(".") if _OF_SNAPSHOT.fullmatch(base) else None
    return next((checked for pattern, checked in _KNOWN.get(parent, ()) if re.fullmatch(pattern, base)), None)


def _without_path(path: Path, error: Exception) -> str:
    """Return what a reader said, without the run directory that is named above it."""
    return str(error).replace(f"{path}/", "").removesuffix("; the run cannot be used")


# ---- the answer -------------------------------------------------------------------------------------------


def document(result: RunCheck) -> dict[str, Any]:
    """Return the answer as a JSON document."""
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
    """Print the answer: damage first, then what nothing is known of."""
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
