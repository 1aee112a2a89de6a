"""What of a run may appear in what it printed and wrote without being a result: its processes, times, directories."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from reprokit.core.difference import BookkeepingKind
from reprokit.model.outputs import OutputsFile
from reprokit.model.run import timestamp
from reprokit.run_files import console
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping.recognition import Contexts, RunContext
from reprokit.verify.read.output_paths import PairedName
from reprokit.verify.read.scan import MetricsScan

MOST_DIRECTORIES = 50  # whose names are looked for in lines
_MODEL = re.compile(r"(?:^|/)(m-[0-9a-f]{32})/")  # a directory of MLflow's


def run_context(run: RunDirectory, scan: MetricsScan) -> RunContext:
    """Return the context of one run."""
    facts = run.run
    heads = console.heads(run) if run.keeps_console else {}
    agents = [process.agent for process in scan.processes.values()]
    ids = {facts.launcher_pid, *(head.pid for head in heads.values()), *(agent.pid for agent in agents if agent)}
    started, ended = timestamp(facts.started) or 0.0, timestamp(facts.ended or "") or 0.0
    if facts.continues is not None:  # its calendar follows that of the first recording
        ids.update(facts.continues.pids)
        started = min(started, facts.continues.recorded_at / 1e9 or started)
    return RunContext(frozenset(ids), started, ended, facts.working_directory, host=facts.host)


def with_directories(contexts: Contexts, pairs: list[PairedName]) -> Contexts:
    """Return the contexts with the directories that have another name in each run."""
    directories = [pair for pair in pairs if pair.kind is BookkeepingKind.DIRECTORY][:MOST_DIRECTORIES]
    directories.sort(key=lambda pair: -len(pair.right))  # those within others come first
    named = [(pair.left, pair.right) for pair in directories]
    left, right = contexts
    return (
        replace(left, directories=tuple((name, name) for name, _ in named)),
        replace(right, directories=tuple((other, name) for name, other in named)),
    )


def with_own_names(
    contexts: Contexts, scans: tuple[MetricsScan, MetricsScan], outputs: tuple[OutputsFile | None, OutputsFile | None]
) -> Contexts:
    """Return the contexts with what trackers called the runs and their models, where both have equally many."""
    by_kind = [_own_names(scan, files) for scan, files in zip(scans, outputs, strict=True)]
    kinds = [kind for kind in by_kind[0] if len(by_kind[0][kind]) == len(by_kind[1][kind])]
    left, right = (tuple(name for kind in kinds for name in of_side[kind]) for of_side in by_kind)
    return replace(contexts[0], own_names=left), replace(contexts[1], own_names=right)


def _own_names(scan: MetricsScan, outputs: OutputsFile | None) -> dict[str, list[str]]:
    """Return the ids of a run and of its models by the tracker that made them up, each in the order of their making."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for tracker in scan.trackers:
        found[tracker.name][tracker.run] = None
    found["models"].update(dict.fromkeys(_models(outputs)))
    return defaultdict(list, {kind: list(names) for kind, names in found.items()})


def _models(outputs: OutputsFile | None) -> Iterator[str]:
    files = sorted(outputs.files if outputs is not None else (), key=lambda file: file.modified)
    return (match[1] for file in files if (match := _MODEL.search(file.path)))
