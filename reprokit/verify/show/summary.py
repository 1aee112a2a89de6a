"""Summarizes one run, whether finished, crashed or in progress."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from reprokit import entropy
from reprokit.core.errors import RunDamaged, RunError
from reprokit.model.outputs import OutputsFile
from reprokit.model.run import FAILED, FINISHED, NO_END, RunFile, timestamp
from reprokit.model.run_warning import RunWarning, by_cause
from reprokit.model.states import SWITCHES, off_in
from reprokit.run_files import findings, trails
from reprokit.run_files.findings import FindingsFile
from reprokit.run_files.rundir import ENTROPY, RunDirectory
from reprokit.run_files.trails import Series, Trail
from reprokit.verify.categories import console, processes, ranks, script_variables, tracker_metrics
from reprokit.verify.categories.divergences import BOOSTING
from reprokit.verify.categories.match import Raw
from reprokit.verify.categories.status import ended
from reprokit.verify.read import integrity
from reprokit.verify.read.metric_lines import END_WEIGHTS
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import MetricsScan, ScannedSeries, SeriesKey, natural, scan
from reprokit.verify.show import console_text

FORMAT = 1
MAX_ENTROPY_FILES = 100_000
ATTEMPTS = 5  # to read a file that is being written
LOOKED_AT = 64  # first steps that are searched for known quantities
_QUANTITIES = {
    "batch": ("batch",),
    "random state": ("torch", "python", "numpy"),
    "loss": ("loss",),
    "gradients": ("gradients",),
    "parameters": ("parameters",),
    "buffers": ("buffers",),
    "model inputs": ("inputs",),
}


@dataclass(frozen=True)
class RunSummary:
    """One run, read once."""

    directory: RunDirectory
    in_progress: bool
    environment: dict[str, Any]
    outputs: OutputsFile
    scan: MetricsScan
    entropy_files: int
    entropy_size: int
    trails: list[TrailContents] = field(default_factory=list)
    problems: list[RunWarning] = field(default_factory=list)  # problems with reading trails and findings
    findings: FindingsFile | None = None
    printed: list[tuple[str, list[int]]] = field(default_factory=list)  # number of lines of each stream, by process
    unseen: str = ""  # which output was not kept, in words

    @cached_property
    def logged(self) -> tracker_metrics.TrackerMetrics:
        """Return the metrics in files of experiment trackers."""
        return tracker_metrics.read(self.directory, self.outputs)

    @property
    def run(self) -> RunFile:
        """Return the content of run.json."""
        return self.directory.run

    @property
    def succeeded(self) -> bool:
        """Return whether the training ended with exit status 0."""
        return self.run.status == FINISHED and self.run.signal is None and self.run.exit_code == 0

    @cached_property
    def deaths(self) -> list[str]:
        """Return the ranks that died and the helpers that a signal ended, in words; none of a run in progress."""
        if self.in_progress:
            return []
        try:
            dead = [rank.words for rank in ranks.dead_ranks(self.directory, self.scan)]
        except RunError:  # a damaged trail, which is reported
            dead = []
        return [*dead, *processes.killed_helpers(self.scan)]

    @property
    def behind(self) -> Iterator[str]:
        """Yield the ranks that are behind others, unless the run has succeeded."""
        ended = timestamp(self.run.ended or "")
        end = ended if ended is not None else time.time() if self.directory.in_progress else None
        updates, losses, moments = Counter[str](), Counter[str](), dict[str, float]()
        for trail in self.trails:
            updates[trail.process] += trail.steps
            moments[trail.process] = max(trail.stepped, moments.get(trail.process, 0.0))
        for key, series in self.series("loss"):
            losses[key.process] += series.count
        names = sorted((name for name in self.scan.processes if ranks.rank_of(name)[0] == name), key=natural)
        progress = [ranks.RankProgress(name, updates[name], losses[name], moments.get(name, 0.0)) for name in names]
        # Of a run that is over, files are no witness: its ranks may have written their ends long after they hung.
        written = self.directory.recorded_at if ended is None else 0.0
        yield from () if self.succeeded else ranks.behind(progress, end, is_over=ended is not None, written=written)

    @property
    def state(self) -> str:
        """Return how the run ended, or that it is in progress."""
        if self.directory.in_progress:
            return f"in progress (process {self.run.launcher_pid})"
        if self.in_progress:
            return "in progress, though its launcher is gone"
        if self.run.status == FAILED:
            return "failed to start"
        return ended(self.run) or f"{NO_END}; what it had recorded is shown"

    def series(self, *kinds: str) -> Iterator[tuple[SeriesKey, ScannedSeries]]:
        """Yield the series of these kinds, in the order of the kinds, then of processes and names."""
        for kind in kinds:
            keys = [key for key in self.scan.series if key.kind == kind]
            yield from ((key, self.scan.series[key]) for key in sorted(keys, key=lambda key: key.order))

    @property
    def epochs(self) -> int:
        """Return the number of epochs of the process and loader with most of them."""
        counts = [series.count for _, series in self.series("epoch")]
        return max([*counts, *(_longest_history(series.last) for _, series in self.series("history"))], default=0)


def _longest_history(history: Raw | None) -> int:
    return max((len(values) for values in (history or {}).get("values", {}).values()), default=0)


def summarize(path: Path) -> RunSummary:
    """Read a run; raises a RunError where that is impossible."""
    directory = RunDirectory(path)
    in_progress = directory.in_progress or _is_still_written(directory)
    outputs = directory.outputs() or OutputsFile()
    scanned = scan(directory, Normalizations())
    environment = directory.environment() or {}
    trails, problems = holdings(directory, in_progress=in_progress)
    findings_file = _findings(directory, problems)
    entropy_facts = _entropy(path / ENTROPY)
    printed_counts: list[tuple[str, list[int]]] = []
    unseen = ""
    try:
        printed_counts, unseen = list(console_text.counts(directory)), "; ".join(console.unseen(directory))
    except RunError as error:
        problems.append(RunWarning(str(error), error.slug))
    return RunSummary(
        directory,
        in_progress,
        environment,
        outputs,
        scanned,
        *entropy_facts,
        trails,
        problems,
        findings_file,
        printed_counts,
        unseen,
    )


def _findings(directory: RunDirectory, problems: list[RunWarning]) -> FindingsFile | None:
    """Return the findings of reprokit profile; a damaged file is reported as a problem."""
    try:
        return findings.read(directory)
    except RunError as error:
        problems.append(RunWarning(str(error), error.slug))
        return None


def _is_still_written(directory: RunDirectory) -> bool:
    """Return whether the training runs on without its launcher; False if the profile is damaged."""
    with suppress(RunError):
        return directory.orphaned and entropy.being_written(directory.path / ENTROPY)
    return False


def _entropy(path: Path) -> tuple[int, int]:
    """Return number and bytes of the entropy files, for a run that has not counted them at its end."""
    try:
        with os.scandir(path) as entries:
            files = (entry for entry in islice(entries, MAX_ENTROPY_FILES) if entry.name.endswith(".entropy"))
            sizes = [entry.stat(follow_symlinks=False).st_size for entry in files]
    except OSError:
        return 0, 0
    return len(sizes), sum(sizes)


def not_covered(summary: RunSummary) -> Iterator[str]:
    """Yield what the run's record lacks, and why."""
    run = summary.run
    yield from _uncovered(summary)
    if not run.has_profile:
        yield "who asked for entropy, and any replay: the random profile was left out of the bundle that it came in"
    if run.agent is not None and not run.agent.is_loaded:
        yield f"metrics, weights and seeds: the agent was {run.agent.words}"
    if run.profile is not None and run.profile.withheld:
        yield f"the bytes of {run.profile.withheld} requests by cryptographic libraries, which are never written down"
    if run.profile is not None and not run.profile.sealed:
        yield "what a process that outlived the command asked for after the end"
    yield from filter(None, [run.outliving_in_words, summary.unseen])
    yield from (
        option.sentence
        for option in off_in(run.switched_off)
        if option.option != SWITCHES["supervisor"].option  # it is among what is uncovered
    )
    lost = sum(process.lost for process in summary.scan.processes.values())
    if lost and not summary.in_progress:
        yield f"{lost} lines of metrics that could not be written"
    unread = [file for file in summary.outputs.files if not file.digest]
    if unread:
        yield f"the content of {len(unread)} outputs, first {unread[0].path}: {unread[0].note or 'not read'}"
    if summary.outputs.left_out:
        yield f"{summary.outputs.left_out} further outputs, or more"
    yield from (f"the content of outputs: {text}" for text in summary.outputs.not_compared)


def _uncovered(summary: RunSummary) -> Iterator[str]:
    """Yield entropy that was not recorded; without the shim the supervisor records it, if it is on."""
    run = summary.run
    is_supervised = run.supervisor is not None and run.supervisor.is_on
    is_reported = any(uncovered.source == "command" for uncovered in run.uncovered)
    if run.shim is not None and not run.shim.is_loaded and not is_supervised and not is_reported:
        yield f"entropy: the shim was {run.shim.words}"
    yield from (uncovered.text for uncovered in run.uncovered)
    if run.unsupervised:
        yield run.unsupervised
    if run.ended is None and (unanswered := entropy.fresh_requests(summary.directory.path / ENTROPY)):
        yield f"{unanswered} requests that the supervisor did not answer, as it was stopped or gone"


def warnings(summary: RunSummary, *, is_checked: bool = False) -> list[RunWarning]:
    """Return the warnings of launcher and agent, each once; of a run that was compared its copies are whole."""
    damages = _damage_warnings(summary, is_checked)
    of_agents = (
        msgspec.structs.replace(warning, text=f"the agent: {warning.text}")
        for warning in by_cause(summary.scan.warnings)
        if warning.text
    )
    return list(dict.fromkeys([*summary.run.warnings, *summary.problems, *damages, *of_agents]))


def _damage_warnings(summary: RunSummary, is_checked: bool) -> Iterator[RunWarning]:
    """Yield what is wrong with the random profile and the kept files, if the run has ended."""
    if summary.in_progress:
        return
    run = summary.directory
    try:
        if run.run.has_profile:
            entropy.check(run.path / ENTROPY, run.run.profile)
    except RunError as error:
        yield RunWarning(str(error), error.slug)
    kept_outputs = partial(integrity.kept_outputs, is_checked=is_checked)
    for part in (integrity.evaluation, integrity.console, kept_outputs, integrity.snapshots):
        try:
            for problem in part(run):
                yield RunWarning(f"{run.path / problem.name} {problem.what}", RunDamaged.slug)
        except RunError as error:
            yield RunWarning(str(error), error.slug)


def document(summary: RunSummary) -> dict[str, Any]:
    """Return the summary as a JSON document, without the profile's key, which is secret."""
    run = msgspec.to_builtins(summary.run)
    del run["key"]
    scanned = summary.scan.series
    return {
        "format": FORMAT,
        "path": str(summary.directory.path),
        "state": summary.state,
        "in_progress": summary.in_progress,
        "run": run,
        "environment": summary.environment,
        "frameworks": {name: sorted(versions) for name, versions in sorted(summary.scan.frameworks.items())},
        "script_variables": [variable._asdict() for variable in script_variables.listed(summary.scan.variables)],
        "processes": [_process(name, summary) for name in summary.scan.processes],
        "epochs": summary.epochs,
        "series": [_series(key, scanned[key]) for key in sorted(scanned, key=lambda key: key.order)],
        "metrics_in_files": tracker_metrics.document(summary.logged),
        "trackers": [
            {"name": tracker.name, "run": tracker.run, "place": tracker.place, "group": tracker.group}
            for tracker in summary.scan.trackers
        ],
        "trails": [holding.document() for holding in summary.trails],
        "findings": findings.counts(summary.findings),
        "printed": [{"process": name, "stdout": counts[0], "stderr": counts[1]} for name, counts in summary.printed],
        "outputs": msgspec.to_builtins(summary.outputs.files),
        "links": msgspec.to_builtins(summary.outputs.links),
        "warnings": [{"text": warning.text, "code": warning.code} for warning in warnings(summary)],
        "not_covered": list(not_covered(summary)),
    }


def _process(name: str, summary: RunSummary) -> dict[str, Any]:
    process = summary.scan.processes[name]
    python = f"{process.agent.implementation} {process.agent.python}" if process.agent is not None else None
    return {
        "identity": name,
        "python": python,
        "ended": process.ended,
        "killed_by": process.killed_by,
        "lines": process.count,
        "lost": process.lost,
    }


def _series(key: SeriesKey, series: ScannedSeries) -> dict[str, Any]:
    kind, at = (key.kind, None) if key.kind != END_WEIGHTS else ("weights", "end")
    line = {"process": key.process, "kind": kind, "name": key.name, "lines": series.count}
    return {**line, "at": at, "first": series.first, "last": series.last}


@dataclass(frozen=True)
class TrailContents:
    """What the trail holds of one optimizer's steps."""

    process: str
    name: str
    kind: str
    steps: int
    quantities: list[str]
    tensors: int
    bytes: int  # size of the file, which all optimizers of a process share
    every: int  # it has one in so many steps
    always: int  # and each of so many first ones
    stepped: float  # of a rank: when the process's last step was written, seconds since 1970; 0: not known

    def document(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return {"class" if key == "kind" else key: value for key, value in asdict(self).items()}

    def __str__(self) -> str:
        what = ", ".join(self.quantities) or "nothing known of them"
        has_gaps = self.every > 1 and self.steps > self.always
        gaps = f" (from step {self.always} on one in {self.every:,})" if has_gaps else ""
        return (
            f"{self.name} ({self.kind}) of process {self.process}: {self.steps:,} step{'' if self.steps == 1 else 's'}"
            f"{gaps} of {self.tensors} tensors: {what}; in a file of {self.bytes} bytes"
        )


def holdings(run: RunDirectory, *, in_progress: bool) -> tuple[list[TrailContents], list[RunWarning]]:
    """Return the contents of each optimizer's trail, and a warning if they cannot be read."""
    for attempt in range(ATTEMPTS):
        try:
            return [contents for trail in trails.read(run) for contents in _contents_of(trail)], []
        except RunDamaged as error:
            if not in_progress or attempt == ATTEMPTS - 1:
                return [], [RunWarning(str(error), error.slug)]
        except RunError as error:
            return [], [RunWarning(str(error), error.slug)]
    return [], []


def _contents_of(trail: Trail) -> Iterator[TrailContents]:
    for series in trail.series:
        tensors = len(series.tensors(max(0, series.count - 1)))
        known, gaps = _known_quantities(series), (series.every, series.always)
        facts = (series.name, series.kind, series.count, known, tensors, trail.size, *gaps, trail.stepped)
        yield TrailContents(trail.process, *facts)


def _known_quantities(series: Series) -> list[str]:
    steps = list(series.steps(0, LOOKED_AT))
    has_buffers = series.framework not in BOOSTING  # there a field of the last round only, for all trees
    return [
        name
        for name, fields in _QUANTITIES.items()
        if (has_buffers or name != "buffers")
        and any(getattr(step, field) is not None for step in steps for field in fields)
    ]
