"""Presents findings on one screen and as a JSON document."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Any

import msgspec

from reprokit.core.printable import bounded, cut, listed
from reprokit.core.screen import Cells, labeled, print_rows
from reprokit.model.run import RunFile
from reprokit.profiling.groups import DIFFERENT
from reprokit.run_files import findings
from reprokit.run_files.findings import (
    COMPILED,
    FUNCTION,
    ORDER,
    SETTING,
    SOURCE,
    SYSTEM_CALL,
    CodePlace,
    Confirmed,
    Cure,
    Finding,
    FindingsFile,
)
from reprokit.run_files.rundir import RunDirectory

FORMAT = 1
SHOWN = 6  # findings with an explanation
SHOWN_SETTINGS = 4
SHOWN_NOTES = 5
REQUESTS = (SOURCE, SYSTEM_CALL)
CLOCK = "python.clock"  # id of a fact in profiles/python.toml
NAMED = 6  # names in one line
SHORT = 200  # characters of a reason


def document(run: RunDirectory, profiled: FindingsFile) -> dict[str, Any]:
    """Return all findings as JSON; reprokit/schemas/findings.schema.json describes it."""
    return {
        "format": FORMAT,
        "path": str(run.path),
        "run_id": profiled.run_id,
        "command": run.run.command,
        "exit_code": run.run.exit_code,
        "signal": run.run.signal,
        "profiling": msgspec.to_builtins(run.run.profiling),
        "findings": msgspec.to_builtins(profiled.findings),
        "notes": [*profiled.notes, *profiled.rule_notes],
    }


def print_findings(run: RunDirectory, profiled: FindingsFile) -> None:
    """Print the most urgent findings with explanations; the rest in a line for each kind."""
    blamed = [finding for finding in profiled.findings if finding.blamed]
    rows = [
        *_alarms(run.run, profiled),
        *_blamed(run.run, blamed),
        *_settings(run.run, profiled),
        *_rest(profiled),
        *_notes(profiled),
    ]
    cells = list(map(Cells, labeled(rows)))
    urgent = (findings.GUILTY, findings.ALARM)
    style = (
        "bold red"
        if any(finding.verdict in urgent for finding in profiled.findings)
        else "bold yellow"
        if blamed
        else "bold"
    )
    print_rows(
        f"findings in {run.path}: {findings.in_words(profiled)}",
        cells,
        list(_advice(run.run, profiled.findings, blamed)),
        style=style,
    )


def _alarms(run: RunFile, profiled: FindingsFile) -> Iterator[tuple[str, str]]:
    alarms = [
        f"{item.title}{_in_brackets(run, item.where)} at step {item.step}: {cut(item.why, SHORT)}"
        for item in profiled.findings
        if item.verdict == findings.ALARM
    ]
    yield from (("alarm", line) for line in bounded(alarms, SHOWN, " (--json has them all)"))


def _blamed(run: RunFile, blamed: list[Finding]) -> Iterator[tuple[str, str]]:
    """Yield the findings that may make runs differ, with counts, places, reasons and cures."""
    for number, finding in enumerate(blamed[:SHOWN], 1):
        label = f"{number} {finding.verdict}"
        if finding.kind in REQUESTS:
            yield from _askers(label, [finding])
        else:
            why_suspected = "depends on timing" if finding.kind == ORDER else "known to differ, not measured here"
            yield label, f"{_subject(finding)}: {measured(finding.confirmed) or why_suspected}"
        if finding.where and finding.kind not in REQUESTS:
            yield label, f"  in {_where(run, finding.where)}"
        if finding.why:
            yield label, f"  because {cut(finding.why, SHORT)}"
        yield label, f"  cure: {_cures(finding.cures) or 'none is known'}"
    if len(blamed) > SHOWN:
        yield f"{SHOWN + 1}...", f"{_names(blamed[SHOWN:])} (--json has them all)"


def _subject(finding: Finding) -> str:
    """Return an operator's name, direction, device and number of calls."""
    where = f" on {finding.device}" if finding.device else ""
    direction = f" {finding.direction}" if finding.direction else ""
    calls = f", {finding.calls} {'call' if finding.calls == 1 else 'calls'}" if finding.calls else ""
    processes = f" in {finding.processes} processes" if finding.processes > 1 else ""
    return f"{finding.kind} {finding.subject}{direction}{where}{calls}{processes}"


def measured(confirmed: Confirmed | None) -> str:
    """Return the result of re-executing an operator, in words."""
    if confirmed is None:
        return ""
    if not confirmed.repeats:
        return f"not measured: {confirmed.problem}" if confirmed.problem else ""
    if confirmed.results > 1:
        return f"gave {confirmed.results} results in {confirmed.repeats} repeats here"
    if confirmed.races:
        number = next(number for number, outcome in confirmed.threads.items() if outcome == "varies")
        return f"varied with {number} threads, though not in {confirmed.repeats} repeats with the present number"
    others = f"; of other calls: {confirmed.problem}" if confirmed.problem else ""
    return f"no variation seen in {confirmed.repeats} repeats{others}"


def _where(run: RunFile, places: list[CodePlace]) -> str:
    """Return the first place with a short path, and how many more there are."""
    first, more = places[0], len(places) - 1
    file = first.file
    base = run.working_directory.rstrip("/") + "/"
    file = file[len(base) :] if file.startswith(base) else file
    name = f" ({first.function})" if first.function else ""
    return f"{file}:{first.line}{name}" + (f" and {more} more {'place' if more == 1 else 'places'}" if more else "")


def _in_brackets(run: RunFile, places: list[CodePlace]) -> str:
    return f" ({_where(run, places)})" if places else ""


def _cures(cures: list[Cure]) -> str:
    """Return the first cure with its cost, and the names of others."""
    others = [cure.patch or cure.does for cure in cures[1:4]]
    return f"{_cure(cures[0])}" + (f"; or {', '.join(others)}" if others else "") if cures else ""


def _cure(cure: Cure) -> str:
    patch = f"--patch {cure.patch}" if cure.patch else ""
    words = f"{patch} ({cure.does})" if patch and cure.does else patch or cure.does
    return f"{words}: {cut(cure.cost, SHORT)}" if cure.cost else words


def _settings(run: RunFile, profiled: FindingsFile) -> Iterator[tuple[str, str]]:
    """Yield settings and machine properties that affect results, but are constant on this machine."""
    settings = [
        finding for finding in profiled.findings if finding.verdict == findings.AS_SET and finding.kind == SETTING
    ]
    for finding in settings[:SHOWN_SETTINGS]:
        where = f" in {_where(run, finding.where)}" if finding.where else ""
        yield "setting", f"{finding.subject}{where}: {cut(finding.why, SHORT)}"
    if len(settings) > SHOWN_SETTINGS:
        yield "setting", f"and {_names(settings[SHOWN_SETTINGS:])}"
    others = [
        finding for finding in profiled.findings if finding.verdict == findings.AS_SET and finding.kind != SETTING
    ]
    compiled = [
        f"{_subject(finding)} in {_where(run, finding.where)}" if finding.where else _subject(finding)
        for finding in others
        if finding.kind == COMPILED
    ]
    yield from (("compiled", line) for line in bounded(compiled, SHOWN_SETTINGS))
    for finding in (finding for finding in others if finding.fact == CLOCK):
        where = f" in {_where(run, finding.where)}" if finding.where else ""
        told = "a replay is told the recorded time" if run.calendar else "a replay reads another time (--no-calendar)"
        yield "clock", f"{_subject(finding)}{where}: {told}"
    for finding in (finding for finding in others if finding.is_unwatched):
        yield "threads", f"{finding.subject}: {cut(finding.why, SHORT)}"
    depending = [
        finding
        for finding in others
        if finding.kind not in (*REQUESTS, COMPILED) and finding.fact != CLOCK and not finding.is_unwatched
    ]
    if depending:
        yield "machine", f"depends on processors and threads: {_names(depending)}"
    yield from _askers("machine", [finding for finding in others if finding.kind in REQUESTS])


def _rest(profiled: FindingsFile) -> Iterator[tuple[str, str]]:
    """Yield what was cleared, what would differ on other machines, and what a replay repeats."""
    unwritten = [finding for finding in profiled.findings if finding.only_unwritten_memory]
    if unwritten:
        yield "memory", f"varies only for who reads it before writing: {_names(unwritten)}"
    cleared = [finding for finding in profiled.findings if finding.verdict == findings.CLEARED]
    if cleared:
        repeats = min((finding.confirmed.repeats for finding in cleared if finding.confirmed), default=0)
        times = f" in {repeats} repeats or more" if repeats else ""
        yield "cleared", f"no variation seen{times}: {_names(cleared)}"
    for condition, differing in _elsewhere(profiled):
        yield "elsewhere", f"other bits with {condition}: {_names(differing)}"
    covered = [finding for finding in profiled.findings if finding.verdict == findings.COVERED]
    random = [finding for finding in covered if finding.kind not in REQUESTS]
    if random:
        yield "covered", f"random, and given again by a replay: {_names(random)}"
    yield from _askers("covered", [finding for finding in covered if finding.kind in REQUESTS])


def _askers(label: str, some: list[Finding]) -> Iterator[tuple[str, str]]:
    """Yield lines on sources and system calls, with the requesting code."""
    for finding in some[:SHOWN_SETTINGS]:
        names = list(dict.fromkeys(_asker(asker) for asker in finding.where))
        yield label, f"{_subject(finding)}" + (f", by {listed(names, 3)}" if names else "")
    if len(some) > SHOWN_SETTINGS:
        yield label, f"and {_names(some[SHOWN_SETTINGS:])}"


def _asker(asker: CodePlace) -> str:
    name = os.path.basename(asker.file)
    return f"{name}:{asker.line}" if asker.line else name


def _elsewhere(profiled: FindingsFile) -> Iterator[tuple[str, list[Finding]]]:
    """Yield conditions of other machines under which calls gave other bits than here."""
    conditions: dict[str, list[Finding]] = {}
    for finding in profiled.findings:
        if finding.confirmed is None or finding.verdict == findings.GUILTY:
            continue
        for number in _differing(finding.confirmed.threads):
            conditions.setdefault(f"{number} {'thread' if number == '1' else 'threads'}", []).append(finding)
        for name in _differing(finding.confirmed.capabilities):
            conditions.setdefault(f"processor capabilities capped to {name}", []).append(finding)
    yield from list(conditions.items())[:SHOWN_SETTINGS]


def _differing(outcomes: dict[str, str]) -> list[str]:
    return [condition for condition, outcome in outcomes.items() if outcome in DIFFERENT]


def _names(some: list[Finding]) -> str:
    """Return the first subjects, each once, and how many more there are."""
    return listed(list(dict.fromkeys(_last_names(finding) for finding in some)), NAMED)


def _last_names(finding: Finding) -> str:
    """Return the subject; for a function the last parts of its qualified name."""
    if finding.kind != FUNCTION:
        return finding.subject
    return ".".join(finding.subject.split(".")[-3:])


def _notes(profiled: FindingsFile) -> Iterator[tuple[str, str]]:
    yield from (("note", text) for text in bounded([*profiled.notes, *profiled.rule_notes], SHOWN_NOTES))


def _advice(run: RunFile, all_findings: list[Finding], blamed: list[Finding]) -> Iterator[str]:
    """Yield advice on what to do next after a profile."""
    if run.profiling is None:
        return
    patches = list(
        dict.fromkeys(finding.cures[0].patch for finding in blamed if finding.cures and finding.cures[0].patch)
    )
    command = shlex.join(run.command)
    if patches:
        yield f"try: reprokit record --patch {shlex.quote(','.join(map(str, patches)))} -- {command}"
    if blamed:
        yield f"or have cures tried, a pair of runs for each: reprokit reproduce -- {command}"
    elif run.signal or run.exit_code:
        how = f"by {run.signal}" if run.signal else f"with exit status {run.exit_code}"
        yield f"the command ended {how}: what it would have done after that is not known"
    elif run.command:
        watched = ", ".join(_watched(run)) or "nothing was"
        unwatched = ", ".join(_unwatched(run, all_findings))
        yield f"nothing that was watched is known to vary ({watched}); not watched: {unwatched}"
        yield f"whether it repeats is seen in a replay: reprokit record -- {command}"


def _watched(run: RunFile) -> Iterator[str]:
    """Yield what the run was watched for, in words."""
    profiling, has_agent = run.profiling, run.agent is not None and run.agent.is_loaded
    assert profiling is not None
    if has_agent:
        yield from ("functions",) * profiling.functions
        yield from ("operators",) * profiling.operators
        yield "settings and orders of completion of Python"
    if run.shim is not None and run.shim.is_loaded:
        yield "requests for randomness"
        yield from ("reads of the clock",) * run.calendar
    yield from ("system calls",) * profiling.system_calls.is_on


def _unwatched(run: RunFile, all_findings: list[Finding]) -> Iterator[str]:
    """Yield what may make runs differ and was not watched, or stands against a replay that repeats."""
    threads = [finding.subject for finding in all_findings if finding.is_unwatched]
    yield "threads of native code" + (f" ({listed(threads, NAMED)})" if threads else "")
    if not run.calendar:
        yield "the time of day (--no-calendar)"
    if run.agent is None or not run.agent.is_loaded:
        yield "what programs other than Python compute"
    if run.fidelity is not None and not run.fidelity.is_whole:
        counts = ", ".join(f"{number} {kind}" for kind, number in run.fidelity.kinds.items() if number)
        yield f"why this replay asked for entropy in another way than its recording ({counts})"
