"""What of a run may appear in what it printed and wrote without being a result: its processes, times, directories."""

from __future__ import annotations

from dataclasses import replace

from reprokit import console
from reprokit.difference import BookkeepingKind
from reprokit.model.run import timestamp
from reprokit.rundir import RunDirectory
from reprokit.verify.bookkeeping.recognition import Contexts, RunContext
from reprokit.verify.read.output_paths import PairedName
from reprokit.verify.read.scan import MetricsScan

MOST_DIRECTORIES = 50  # whose names are looked for in lines


def run_context(run: RunDirectory, scan: MetricsScan) -> RunContext:
    """Return the context of one run."""
    facts = run.run
    heads = console.heads(run) if run.keeps_console else {}
    agents = [process.agent for process in scan.processes.values()]
    ids = {facts.launcher_pid, *(head.pid for head in heads.values()), *(agent.pid for agent in agents if agent)}
    started, ended = timestamp(facts.started) or 0.0, timestamp(facts.ended or "") or 0.0
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
