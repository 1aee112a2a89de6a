"""Writes a page over all runs of a directory: recordings with their replays, what came of them, and their reports."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from reprokit.core.errors import CannotWriteReport, RunError, refused_as
from reprokit.core.pages import environment as pages
from reprokit.core.pages.markdown import escaped
from reprokit.core.redaction import Secrets
from reprokit.core.version import VERSION
from reprokit.evidence.report import html
from reprokit.evidence.report.gather import dated, gather
from reprokit.evidence.report.html import came
from reprokit.evidence.report.markdown import table
from reprokit.evidence.report.phrases import JUDGMENTS, MARKS
from reprokit.run_files.home import recording_of
from reprokit.verify.categories.status import seconds
from reprokit.verify.ignores import Ignores
from reprokit.verify.show import run_list
from reprokit.verify.show.run_list import ListedRun

FORMAT = 1
MAX_RUNS = 10_000  # of a page, the newest
LONGEST = 200  # bytes of a page's name
PAGES = ".pages"  # behind the page's name: the folder of the reports
FILTERS_OF_RUNS = {
    "differs": "only what differs",
    "same": "only what is the same",
    "failed": "only what failed",
    "other": "only what was not compared",
}


class IndexedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a directory, as far as it can be read."""

    name: str  # by which commands find it
    path: str
    kind: str = ""  # "recording", "replay", or "plain" for one that nothing was recorded of; empty if not readable
    recording: str = ""  # of a replay: the name of what it replayed, or "not here"
    verdict: str = ""  # what verify, or the report of it that was just written, says of replay and recording
    sentence: str = ""
    state: str = ""
    has_failed: bool = False
    command: str = ""
    started: str = ""
    seconds: float | None = None
    host: str = ""
    size: int = 0  # bytes of its files
    page: str = ""  # its report, relative to the page
    problem: str = ""  # why it cannot be read, or has no report


class IndexFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a page over a directory says."""

    format: int = FORMAT
    reprokit: str
    made: str  # ISO 8601, UTC
    directory: str
    runs: tuple[IndexedRun, ...]  # each recording with its replays behind it, the newest first
    left_out: int


def gather_index(directory: Path, report: Callable[[ListedRun], tuple[str, str, str]] | None = None) -> IndexFacts:
    """Return the facts of all runs in a directory.

    `report` writes the report of a run, and returns its address, verdict and sentence. Raises RunNotFound.
    """
    listed = run_list.runs(directory)
    runs = [_indexed(run, report) for run in _grouped(listed[:MAX_RUNS])]
    named = directory if directory.name.strip(".") else directory.resolve()  # "." says nothing on a page
    facts = {"reprokit": VERSION, "made": dated()[0], "directory": str(named)}
    content = {**facts, "runs": runs, "left_out": len(listed) - len(runs)}
    return msgspec.convert(Secrets().value(msgspec.to_builtins(content)), IndexFacts)


def _grouped(listed: Sequence[ListedRun]) -> Iterator[ListedRun]:
    """Yield each recording with its replays behind it; what was made last, or replayed last, comes first."""
    groups: dict[str, list[ListedRun]] = {}
    names = {run.name for run in listed}
    for run in listed:
        groups.setdefault(run.recording if run.recording in names else run.name, []).append(run)
    for name, group in groups.items():
        yield from sorted(group, key=lambda run: run.name != name)


def _indexed(listed: ListedRun, report: Callable[[ListedRun], tuple[str, str, str]] | None) -> IndexedRun:
    if listed.run is None:
        return IndexedRun(name=listed.name, path=str(listed.path), size=listed.size, problem=listed.problem)
    run = listed.run.run
    address, verdict, sentence, problem = "", listed.verdict, "", ""
    if report is not None and not listed.run.in_progress:
        try:
            address, found, sentence = report(listed)
            verdict = found or verdict
        except RunError as error:
            problem = str(error)
    return IndexedRun(
        name=listed.name,
        path=str(listed.path),
        kind={"record": "recording", "run": "plain"}.get(run.kind, run.kind),
        recording=listed.recording,
        verdict=verdict,
        sentence=sentence,
        state=listed.state,
        has_failed=not listed.run.in_progress and (run.signal is not None or run.exit_code != 0),
        command=shlex.join(run.command),
        started=run.started,
        seconds=run.duration,
        host=run.host,
        size=listed.size,
        page=address,
        problem=problem,
    )


def reports(output: Path, ignores: Ignores, write: Callable[[Path, str], None]) -> Callable[[ListedRun], Any]:
    """Return what writes the report of a run into the folder beside the page: of a replay with its recording."""
    folder = output.with_name(output.name + PAGES)
    with refused_as(CannotWriteReport, folder, "choose another place with -o"):
        folder.mkdir(exist_ok=True)

    def report(listed: ListedRun) -> tuple[str, str, str]:
        assert listed.run is not None
        pair = [listed.path]
        if listed.recording not in ("", "not here"):
            pair.insert(0, recording_of(listed.run))
        facts = gather(pair, ignores=ignores)
        path = folder / f"{_page_name(listed.path.name)}.html"
        write(path, html.page(facts))
        verdict = facts.verdict.outcome if len(pair) > 1 else ""
        return f"{quote(folder.name)}/{quote(path.name)}", verdict, facts.verdict.sentence if len(pair) > 1 else ""

    return report


def _page_name(name: str) -> str:
    """Return a run's name, or its digest where that is no name for a page and its address."""
    raw = os.fsencode(name)
    return name if name.isprintable() and len(raw) <= LONGEST else hashlib.sha256(raw).hexdigest()


def page(facts: IndexFacts) -> str:
    """Return the page as one HTML file without external resources or scripts; all texts are escaped."""
    templates = pages.environment("reprokit.evidence.report")
    shown = pages.all_printable(msgspec.to_builtins(facts))
    for run in shown["runs"]:
        judged = came({"verdict": run["verdict"]}) if run["verdict"] else "other"
        run |= {
            "came": f"{judged} failed" if run["has_failed"] else judged,
            "took": seconds(run["seconds"]),
            "size": run_list.in_units(run["size"]),
        }
    return templates.get_template("index.html.jinja").render(
        facts=shown,
        style=pages.style(templates, "page.css", "report.css"),
        counted=counted(facts),
        filters=FILTERS_OF_RUNS,
        marks={**JUDGMENTS, "failed": "equal, but failed"},
    )


def counted(facts: IndexFacts) -> str:
    """Return in a sentence how many runs there are, and what came of them."""
    kinds = Counter(run.kind or "unreadable" for run in facts.runs)
    verdicts = Counter(run.verdict or "not compared" for run in facts.runs if run.kind == "replay")
    failed = sum(run.has_failed for run in facts.runs)
    words = [
        f"{count:,} {kind}{'' if count == 1 or kind in ('plain', 'unreadable') else 's'}"
        for kind, count in kinds.items()
    ]
    text = ", ".join(words) or "no run"
    if verdicts:
        text += f"; replays: {', '.join(f'{count:,} {name}' for name, count in verdicts.items())}"
    return f"{text}; {failed:,} did not end with exit status 0" if failed else text


def markdown(facts: IndexFacts) -> str:
    """Return the list as Markdown text."""
    rows = [
        [escaped(cell) for cell in (run.name, run.kind, run.recording)]
        + [
            MARKS.get(run.verdict, run.verdict),
            *(escaped(cell) for cell in (run.problem or run.state, run.started, run.command)),
        ]
        for run in facts.runs
    ]
    heads = ["run", "kind", "of", "verdict", "how it ended", "started", "command"]
    head = [f"# Runs of {escaped(facts.directory)}\n", f"{counted(facts)}\n"]
    return "\n".join([*head, *table(heads, rows), f"Made on {facts.made} by reprokit {facts.reprokit}."]) + "\n"
