"""Summarizes one run on one screen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from reprokit.capture import files
from reprokit.core.printable import bounded
from reprokit.core.screen import Cells, labeled, print_rows
from reprokit.core.untrusted_json import object_in
from reprokit.model.run import Proof, RunFile
from reprokit.run_files import findings
from reprokit.run_files.console import STREAMS
from reprokit.verify.categories import script_variables, seeds, series_leaves, tracker_metrics
from reprokit.verify.categories.entropy import in_words
from reprokit.verify.categories.metrics import WORDINGS, text
from reprokit.verify.categories.status import failed, seconds
from reprokit.verify.read.metric_lines import END_WEIGHTS, TrackerLine
from reprokit.verify.read.scan import ScannedSeries, SeriesKey, of_process
from reprokit.verify.show.summary import RunSummary, not_covered, warnings
from reprokit.verify.verdict import shortened

TRACKERS = {"mlflow": "MLflow", "wandb": "Weights & Biases"}
SHOWN = 6  # lines of a kind on one screen


def print_summary(summary: RunSummary) -> None:
    """Print the summary; the state comes first, so that nobody overlooks an incomplete run."""
    is_unwell = summary.directory.unfinished or failed(summary.run)
    style = "bold yellow" if summary.in_progress else "bold red" if is_unwell else "bold green"
    print_rows(headline(summary), [Cells(row) for row in rows(summary)], style=style)


def headline(summary: RunSummary) -> str:
    """Return kind, path and final state of the run."""
    return f"{series_leaves.KINDS[summary.run.kind]} {summary.directory.path}: {summary.state}"


def rows(summary: RunSummary) -> list[tuple[str, str]]:
    """Return the lines below the headline with their labels; a label is empty if it repeats the one before."""
    sections = [*_command(summary), *_environment(summary)]
    sections += [
        *_limited("patches", _patches(summary.run)),
        *_entropy(summary),
        *_results(summary),
        *_captured(summary),
        *_caveats(summary),
    ]
    return [(label, shortened(line)) for label, line in labeled(sections)]


def _captured(summary: RunSummary) -> Iterator[tuple[str, str]]:
    for framework in summary.run.captures_unavailable:
        yield "captures", f"none of {framework.framework} {framework.version}: {files.UNAVAILABLE[framework.reason]}"
    snapshots = files.of_run(summary.directory)
    lines = (f"{Path(facts.directory, facts.name)}: {facts.problem or facts.trigger}" for facts in snapshots)
    yield from (("snapshots", line) for line in bounded(lines, SHOWN))


def _command(summary: RunSummary) -> Iterator[tuple[str, str]]:
    run = summary.run
    yield "command", shlex.join(run.command)
    yield "directory", run.working_directory
    lasted = f", {seconds(run.duration)}" if run.duration is not None else ""
    yield "started", f"{run.started}{lasted}, on {run.host}, by reprokit {run.reprokit}"
    yield from _limited("ended", iter(summary.deaths))
    yield from _limited("behind", summary.behind)


def _environment(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield a line each for machine, system, Python and frameworks."""
    facts = summary.environment
    cpu, system = object_in(facts, "cpu"), object_in(facts, "system")
    memory = facts.get("memory")
    parts = [str(cpu.get("model") or ""), f"{cpu['count']} processors" if cpu.get("count") else ""]
    parts.append(f"{memory / 2**30:.0f} GiB" if isinstance(memory, int) and memory > 0 else "")
    gpus = facts.get("gpus")
    parts += [str(gpu) for gpu in gpus[:SHOWN]] if isinstance(gpus, list) else []
    yield "environment", _joined(parts) or "the machine was not recorded"
    parts = [" ".join(str(system.get(key) or "") for key in ("os", "kernel", "machine")).strip()]
    addresses = summary.run.address_randomization
    parts += [str(system.get("distribution") or ""), str(system.get("libc") or "")]
    parts += [f"address randomization {addresses.words}"] if addresses else []
    yield "environment", _joined(parts) or "the system was not recorded"
    agents = [process.agent for process in summary.scan.processes.values() if process.agent is not None]
    pythons = sorted({f"{agent.implementation} {agent.python}" for agent in agents})
    frameworks = [f"{name} {'/'.join(sorted(versions))}" for name, versions in sorted(summary.scan.frameworks.items())]
    yield "environment", _joined([*pythons, *frameworks]) or "no Python was seen"
    reads = script_variables.listed(summary.scan.variables)
    yield from _limited("reads", (f"{read.name} ({read.state}), at {read.where}" for read in reads))


def _patches(run: RunFile) -> Iterator[str]:
    """Yield the requested patches and their final states."""
    for patch in run.patches:
        where = f" in {series_leaves.counted(patch.processes, 'process')}" if patch.processes else ""
        why = f": {patch.why}" if patch.why else ""
        yield f"{patch.text} {patch.state.replace('-', ' ')}{where}{why}"


def _joined(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part)


def _entropy(summary: RunSummary) -> Iterator[tuple[str, str]]:
    run, profile = summary.run, summary.run.profile
    if run.replay_of is not None:
        yield "entropy", f"replay of {run.replay_of.path}"
        yield "entropy", in_words(run.fidelity) if run.fidelity is not None else "fidelity not known yet"
        if run.fidelity is not None and run.fidelity.orders_in_words:
            yield "orders", run.fidelity.orders_in_words
    if run.continues is not None:
        at_step = f" at step {run.continues.step:,}" if run.continues.step else ""
        yield "entropy", f"goes on from {run.continues.path}{at_step}, with all of its entropy"
    if profile is not None and run.keyed:
        yield (
            "entropy",
            (
                f"keyed: {profile.events} requests, {profile.entropy} bytes given to {profile.processes} processes and"
                f" {profile.threads} threads from a 256-bit key; nothing else is stored"
                f"{' but the time of day' if run.calendar else ''}"
            ),
        )
    elif profile is not None:
        yield (
            "entropy",
            (
                f"{profile.events} events, {profile.entropy} bytes given to {profile.processes} processes and"
                f" {profile.threads} threads; {profile.size} bytes in {profile.files} files"
            ),
        )
        yield "entropy", f"profile {profile.digest}"
    elif run.replay_of is None:
        yield "entropy", f"not counted: {summary.entropy_size} bytes in {summary.entropy_files} files so far"
    if run.proof is not None:
        yield "entropy", f"proof: {proof_in_words(run.proof)}"
    yield from _limited("seeds", seeds.summary(summary.scan))


def proof_in_words(proof: Proof) -> str:
    """Return the result of --prove in one line: the requests that strace saw."""
    missed = proof.requests - proof.accounted
    words = f"{proof.requests} requests to the kernel, all accounted for"
    if missed:
        words = f"{missed} of {proof.requests} requests to the kernel were not recorded"
    return "; ".join(part for part in (words if proof.requests else "", proof.problem) if part)


def _results(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield metrics, weights and outputs."""
    if summary.epochs:
        yield "metrics", series_leaves.counted(summary.epochs, "epoch")
    yield from _limited(
        "metrics", (_first_and_last_value(key, series) for key, series in summary.series("loss", "log"))
    )
    kinds = ("collective", "epoch", "history", "evaluation", "evaluate", "predict")
    yield from _limited("metrics", (_last_value(key, series) for key, series in summary.series(*kinds)))
    yield from _limited("in files", _in_files(summary))
    yield from _limited("tracked by", (_tracker(item) for item in summary.scan.trackers))
    weights = (_weights(key, series) for key, series in summary.series(END_WEIGHTS))
    yield from _limited("weights", weights)
    yield from _limited("trail", map(str, summary.trails))
    trail = summary.run.trail
    if trail is not None and not trail.is_on:
        yield "trail", trail.words
    if summary.findings is not None:
        yield "findings", f"{findings.in_words(summary.findings)} (--findings shows them)"
    yield from _limited("printed", _printed(summary))
    files = summary.outputs.files
    yield from _limited(
        "outputs", (f"{item.path}: {item.size} bytes {item.digest or item.note}".strip() for item in files)
    )
    yield from _limited("links", (f"{link.path} -> {link.target}" for link in summary.outputs.links))


def _in_files(summary: RunSummary) -> Iterator[str]:
    """Yield the metrics that experiment trackers wrote, and the files that cannot be read."""
    logged = summary.logged
    for name, points in sorted(logged.series.items(), key=lambda item: item[0].order):
        yield f"{name} ({logged.trackers[name.place]}): {tracker_metrics.summary(points)}"
    yield from (f"{place}: {problem}" for place, problem in sorted({**logged.problems, **logged.unread}.items()))


def _printed(summary: RunSummary) -> Iterator[str]:
    """Yield the number of printed lines per stream; --stdout and --stderr show them."""
    for process, counts in summary.printed:
        for number, stream in zip(counts, STREAMS, strict=True):
            if number:
                yield f"{series_leaves.counted(number, 'line')} of {of_process(stream, process)}"


def _tracker(line: TrackerLine) -> str:
    group = f" of {line.group}" if line.group else ""
    return f"{TRACKERS.get(line.name, line.name)} run {line.run}{group}, in {line.place}"


def _limited(label: str, lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the first lines with their label, and how many more there are."""
    yield from ((label, line) for line in bounded(lines, SHOWN, " (--json has them all)"))


def _first_and_last_value(key: SeriesKey, series: ScannedSeries) -> str:
    name = series_leaves.title(key, WORDINGS[key.kind].noun)
    if series.first is None or series.last is None or series.count == 1:
        return f"{name}: {series_leaves.summary(series, WORDINGS[key.kind])}"
    count = series_leaves.counted(series.count, WORDINGS[key.kind].unit)
    return f"{name}: {count}, first {text(series.first['value'])}, last {text(series.last['value'])}"


def _last_value(key: SeriesKey, series: ScannedSeries) -> str:
    return f"{series_leaves.title(key, WORDINGS[key.kind].noun)}: {series_leaves.summary(series, WORDINGS[key.kind])}"


def _weights(key: SeriesKey, series: ScannedSeries) -> str:
    line = series.last or {}
    tensors = f", {len(line['tensors'])} tensors" if line.get("tensors") else ""
    return f"{line.get('class', '')} {key.name} of process {key.process}: {line.get('digest', '')}{tensors}".strip()


def _caveats(summary: RunSummary) -> Iterator[tuple[str, str]]:
    yield from _limited("changed", iter(summary.run.changed))
    yield from _limited("warning", (warning.line for warning in warnings(summary)))
    yield from _limited("not covered", not_covered(summary))
    if summary.run.proof is not None:
        yield from _limited("not recorded", iter(summary.run.proof.unaccounted))
