"""Exports the audit facts to MLflow: tags, metrics and files of the training's MLflow run, or of a new one."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from reprokit.core.errors import TrackerFailed, UsageError, needed_for
from reprokit.core.printable import printable
from reprokit.evidence.report.facts import NOT_COMPARED, AuditFacts
from reprokit.evidence.report.phrases import outcome
from reprokit.evidence.report.sections import curves
from reprokit.model.run import timestamp
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.read import scan

EXPERIMENT = "reprokit"
FOLDER = "reprokit"  # folder of the artifacts
MAX_METRICS = 100_000
BATCH = 1000  # metrics that MLflow accepts per request
LONGEST = 1000  # characters of a tag or parameter
MAX_PARAMETERS = 50
_UNFIT = re.compile(r"[^\w.\- /]")


@dataclass(frozen=True)
class Target:
    """The destination of an export."""

    tracking_uri: str | None = None  # None: MLflow's own setting
    experiment: str | None = None
    run: str | None = None


@dataclass(frozen=True)
class ExportOutcome:
    """The result of an export."""

    run: str
    store: str
    is_new: bool
    metrics: int
    replaced: str = ""  # the run that the recording opened, if the store has the replay's in its place


def export(facts: AuditFacts, paths: Sequence[Path], files: Sequence[Path], target: Target) -> ExportOutcome:
    """Write the facts of one run, or of two compared, into MLflow."""
    client_class, refused = mlflow_library()
    runs = [RunDirectory(path) for path in paths]
    opened = [opened_runs(run) for run in runs]
    chosen = target.run or _only(opened[0])
    replaced = ""
    try:
        client = client_class(tracking_uri=target.tracking_uri)
        store = str(client.tracking_uri)
        if not target.run and _replaced(client, opened, refused):
            chosen, replaced = opened[1][0], opened[0][0]
        run = _existing(client, chosen, refused, store) if chosen else _new(client, facts, target.experiment)
        has_metrics = bool(chosen) and bool(client.get_run(run).data.metrics)
        count = 0 if has_metrics else _log_metrics(client, run, runs[0])
        _log_verdict(client, run, facts)
        for file in files:
            client.log_artifact(run, str(file), FOLDER)
        if not chosen:
            _close(client, run, runs[0])
        if len(opened) > 1 and len(opened[1]) == 1 and opened[1][0] != run:
            _mark_replay(client, opened[1][0], run, facts, refused)
    except refused as error:
        raise TrackerFailed(f"MLflow refused: {' '.join(str(error).split())[:LONGEST]}") from None
    return ExportOutcome(run, store, not chosen, count, replaced)


def mlflow_library() -> tuple[Any, type[Exception]]:
    """Return the client of MLflow and its errors; ExtraMissing if it is not installed."""
    with needed_for("exporting to MLflow", "mlflow-skinny"):
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    return MlflowClient, MlflowException


def opened_runs(run: RunDirectory) -> list[str]:
    """Return the MLflow runs that a training opened, each once."""
    lines_of_trackers = (place.line for place in scan.read(run) if place.key.kind == "tracker")
    return list(dict.fromkeys(line.run for line in lines_of_trackers if getattr(line, "name", "") == "mlflow"))  # type: ignore[union-attr]


def _only(opened: list[str]) -> str | None:
    if len(opened) > 1:
        raise UsageError(f"the training opened {len(opened)} runs of MLflow; choose one with --run-id {opened[0]}")
    return opened[0] if opened else None


def _replaced(client: Any, opened: Sequence[list[str]], refused: type[Exception]) -> bool:
    """Return whether the store has the run that the replay opened in place of the recording's.

    A replay starts from the files that its recording found. So a database in a file loses the recording's run.
    """
    if [len(runs) for runs in opened] != [1, 1]:
        return False
    recorded, replayed = (_is_there(client, runs[0], refused) for runs in opened)
    return replayed and not recorded


def _is_there(client: Any, run: str, refused: type[Exception]) -> bool:
    try:
        client.get_run(run)
    except refused:
        return False
    return True


def _existing(client: Any, run: str, refused: type[Exception], store: str) -> str:
    if not _is_there(client, run, refused):
        raise TrackerFailed(
            f"MLflow's run {run} is not in {store}; name its store with --tracking-uri, or MLFLOW_TRACKING_URI; if a"
            " replay has replaced a database in a file, give that replay as RUN2"
        )
    return run


def _new(client: Any, facts: AuditFacts, experiment: str | None) -> str:
    name = experiment or EXPERIMENT
    existing = client.get_experiment_by_name(name)
    number = existing.experiment_id if existing is not None else client.create_experiment(name)
    first = facts.runs[0]
    run = client.create_run(number, start_time=_milliseconds(first.started), run_name=Path(first.path).name)
    for key, value in islice(parameters(facts), MAX_PARAMETERS):
        client.log_param(run.info.run_id, key, value)
    return str(run.info.run_id)


def parameters(facts: AuditFacts) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a training: its command, the options in it, the commit."""
    yield "command", _cut(facts.trained.command)
    words = facts.runs[0].command
    seen = {"command", "git commit"}
    for place, word in enumerate(words):
        name, mark, value = word.partition("=")
        key = key_of(name.lstrip("-"))
        following = words[place + 1] if place + 1 < len(words) else "-"
        if not (word.startswith("--") and name.strip("-")) or key in seen:
            continue
        seen.add(key)
        yield key, _cut(value if mark else "true" if following.startswith("-") else following)
    yield from ((fact.name, _cut(fact.value)) for fact in facts.trained.code[:1] if fact.name == "git commit")


def _log_metrics(client: Any, run: str, recorded: RunDirectory) -> int:
    """Return the curves of the run, value by value."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    count = 0
    values = islice(metrics(recorded), MAX_METRICS)
    while batch := [Metric(name, value, now, step) for name, step, value in islice(values, BATCH)]:
        client.log_batch(run, metrics=batch)
        count += len(batch)
    return count


def metrics(run: RunDirectory) -> Iterator[tuple[str, int, float]]:
    """Yield name, step and value of each recorded metric; those of child processes have a prefix."""
    counts: dict[str, int] = {}
    for (process, name, _), step, value in curves.values(run):
        key = key_of(scan.of_process(name, process))
        place = counts.get(key, 0)
        counts[key] = place + 1
        yield key, place if step is None else step, math.nan if value is None else value


def verdict(facts: AuditFacts) -> Iterator[tuple[str, str]]:
    """Yield the verdict as tags."""
    yield "verdict", facts.verdict.outcome
    yield "verdict.words", _cut(f"{outcome(facts)}. {facts.verdict.sentence}")
    if facts.verdict.first_difference:
        yield "first_difference", _cut(facts.verdict.first_difference)
    for run, name in zip(facts.runs, ("run", "second_run"), strict=False):
        yield f"{name}.id", run.run_id
        yield f"{name}.kind", run.kind
        yield f"{name}.digest", run.digest
    if facts.entropy.profile:
        yield "profile.digest", facts.entropy.profile
    if facts.entropy.fidelity_sentence:
        yield "fidelity", facts.entropy.fidelity_sentence
    artifacts = (item for item in facts.digests if item.left and item.verdict != "not-recorded")
    for item in islice(artifacts, MAX_PARAMETERS):
        yield f"digest.{key_of(item.name).replace('/', '_')}", _cut(item.left)
    yield "version", facts.reprokit


def _log_verdict(client: Any, run: str, facts: AuditFacts) -> None:
    tags_before = client.get_run(run).data.tags
    for name, value in verdict(facts):
        if facts.verdict.outcome == NOT_COMPARED and name.startswith("verdict") and "reprokit.verdict" in tags_before:
            continue  # a single run must not overwrite the result of a comparison
        client.set_tag(run, f"reprokit.{name}"[:250], value)
    if facts.verdict.outcome != NOT_COMPARED:
        client.log_metric(run, "reprokit/identical", float(facts.verdict.outcome == "identical"))
    if facts.entropy.exactly_answered is not None:
        client.log_metric(run, "reprokit/fidelity", facts.entropy.exactly_answered)


def _mark_replay(client: Any, replay: str, run: str, facts: AuditFacts, refused: type[Exception]) -> None:
    """Tag the run that the replay opened with the recording's run, if both are in the same store."""
    if not _is_there(client, replay, refused):
        return
    client.set_tag(replay, "reprokit.verdict", facts.verdict.outcome)
    client.set_tag(replay, "reprokit.compared_with", run)
    client.set_tag(replay, "reprokit.run.id", facts.runs[1].run_id)


def _close(client: Any, run: str, recorded: RunDirectory) -> None:
    facts = recorded.run
    status = "FINISHED" if facts.exit_code == 0 else "RUNNING" if recorded.in_progress else "FAILED"
    if status != "RUNNING":
        client.set_terminated(run, status, _milliseconds(facts.ended or facts.started))


def key_of(name: str) -> str:
    """Return a name that MLflow accepts and that cannot lead out of its directory."""
    words = _UNFIT.sub("_", printable(name, 200)).split("/")
    return "/".join(word if word.strip(". ") else "_" for word in words)


def _cut(text: str) -> str:
    return printable(text, LONGEST)


def _milliseconds(when: str) -> int | None:
    seconds = timestamp(when)
    return None if seconds is None else int(seconds * 1000)
