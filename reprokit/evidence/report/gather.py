"""Gathers the audit facts of one run, or of a run and its re-run, from run directories alone."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from reprokit.core.difference import Difference, Verdict
from reprokit.core.errors import NothingComparable, RunError
from reprokit.core.redaction import Secrets
from reprokit.core.untrusted_json import object_in
from reprokit.core.version import VERSION
from reprokit.entropy.request_counts import Requester as EntropyRequester
from reprokit.entropy.request_counts import RequestTotals as EntropyTotals
from reprokit.evidence.attest.source import source_of, stated_source
from reprokit.evidence.report import answers, curves
from reprokit.evidence.report import facts as audit
from reprokit.evidence.report.attention import attention
from reprokit.evidence.report.confusion import confusion_of
from reprokit.evidence.report.histograms import histograms_of
from reprokit.evidence.report.wrong_predictions import wrong_predictions_of
from reprokit.model.plan import RECORD
from reprokit.model.run import ProfileFacts
from reprokit.run_files import findings as findings_file
from reprokit.run_files import rundir
from reprokit.verify.categories import script_variables, seeds
from reprokit.verify.categories.entropy import in_words
from reprokit.verify.ignores import Ignores
from reprokit.verify.runs import Comparison, compare, require_whole
from reprokit.verify.show import comparison as comparisons
from reprokit.verify.show import entropy_requests
from reprokit.verify.show.overview import proof_in_words
from reprokit.verify.show.summary import RunSummary, not_covered, summarize, warnings
from reprokit.verify.verdict import sentence, shortened, verdict_line

MAX_ITEMS = 200_000  # items of all categories; further ones are only counted
MAX_ASKERS = 50
MAX_STATED = 1000  # files of code, and files of data
MAX_FINDINGS = 200
ENVIRONMENT = "environment"  # the category with a section of its own in a report
GROUND = (
    "That two runs are equal is evidence for the reproducibility of this training on the machine described here. It"
    " says nothing about how good, fair or safe the trained model is.",
    "What is compared is what the runs recorded: metrics, weights, predictions and files that were written. What a"
    " training computes and never shows is not seen.",
)
DATED = "The date of this report was set by SOURCE_DATE_EPOCH, and is none of a clock."
BY_BITS = (
    "Numbers are compared by their bits: 0.0 and -0.0 differ, and NaN is equal to the same NaN only.",
    "Weights, predictions and output files are compared by SHA-256 digests of their bytes, with data type and shape.",
)


@dataclass(frozen=True)
class Execution:
    """Results of the process that executed both runs, beyond their comparison."""

    failures: tuple[str, ...] = ()  # any of these makes the verdict "failed"
    notes: tuple[str, ...] = ()


def gather(
    paths: Sequence[Path], execution: Execution | None = None, ignores: Ignores | None = None
) -> audit.AuditFacts:
    """Return the facts of one run, or of two compared, without secrets; raises a RunError for an unreadable directory.

    `execution` is set only if the calling process itself executed both runs.
    """
    facts = _gathered(paths, execution, ignores)
    return msgspec.convert(Secrets().value(msgspec.to_builtins(facts)), audit.AuditFacts)


def _gathered(paths: Sequence[Path], execution: Execution | None, ignores: Ignores | None) -> audit.AuditFacts:
    summaries = [summarize(path) for path in paths]
    first, last = summaries[0], summaries[-1]
    comparison, problem = _compared(summaries, ignores)
    shown_curves, left_out = _curves(summaries)
    histograms, histograms_left_out = histograms_of(first.directory)
    findings, findings_note = _findings(summaries)
    witnessed, of_two = execution or Execution(), comparison if len(summaries) > 1 else None
    epoch = _source_date() if execution is None else ""
    made = epoch or rundir.utc_now()
    return audit.AuditFacts(
        reprokit=VERSION,
        made=made,
        executed_by="unknown" if execution is None else "signer",
        attention=(*witnessed.failures, *attention(summaries, made)),
        verdict=_verdict(summaries, comparison, problem, witnessed.failures),
        runs=tuple(_run(summary, _SIDES[number]) for number, summary in enumerate(summaries)),
        trained=_trained(first),
        compared_how=_how(summaries, comparison),
        excluded=of_two.normalizations if of_two is not None else (),
        ignored=tuple(audit.IgnoredDifferences(**use.document()) for use in (of_two.ignores if of_two else ())),
        notes=tuple(dict.fromkeys((*witnessed.notes, *(of_two.notes if of_two is not None else ())))),
        categories=tuple(_categories(comparison, is_alone=len(summaries) == 1)),
        outputs=tuple(audit.Output(path=file.path, size=file.size, digest=file.digest) for file in first.outputs.files),
        curves=shown_curves,
        curves_left_out=left_out,
        confusion=confusion_of(first.directory),
        wrong_predictions=wrong_predictions_of(first.directory),
        histograms=histograms,
        histograms_left_out=histograms_left_out,
        entropy=_entropy(first, last),
        findings=findings,
        findings_note=findings_note,
        resumption=tuple(answers.resumption_lines(summaries)),
        divergence=tuple(answers.divergence_lines(summaries)),
        patches=tuple(_patches(first)),
        environment=tuple(_environment(comparison, first, is_alone=len(summaries) == 1)),
        packages=tuple(_packages(first)),
        limits=(*_limits(summaries), *([DATED] if epoch else [])),
        check_it=tuple(_check_it(summaries)),
    )


_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


def _source_date() -> str:
    """Return the date that SOURCE_DATE_EPOCH gives the report (reproducible-builds.org); empty if there is none."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isascii() and epoch.isdigit() and len(epoch) < 12:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch)))
    return ""


# The verdict


def _compared(summaries: Sequence[RunSummary], ignores: Ignores | None) -> tuple[Comparison | None, str]:
    """Return the comparison, or why there is none; a single run is compared with itself to list its parts."""
    for summary in summaries:
        if summary.in_progress:
            return None, f"{summary.directory.path} is still being written"
    paths = [summary.directory.path for summary in summaries]
    try:
        for path in paths:
            require_whole(path)
        comparison = compare(paths[0], paths[-1], ignores=ignores)
    except NothingComparable as error:
        return None, str(error)
    if len(paths) > 1 and comparison.shared is not None:
        return None, f"both directories hold the same run, as {comparison.shared.value} is the same in both"
    return comparison, ""


def _verdict(
    summaries: Sequence[RunSummary], comparison: Comparison | None, problem: str, failures: Sequence[str]
) -> audit.ReportVerdict:
    if len(summaries) == 1:
        state = "is not finished" if summaries[0].in_progress else "was not compared with another"
        return audit.ReportVerdict(
            outcome=audit.NOT_COMPARED, sentence=f"This run {state}: nothing is said about its reproducibility."
        )
    if comparison is None:
        return audit.ReportVerdict(outcome=audit.NOT_COMPARED, sentence=f"Nothing was compared: {problem}.")
    first = comparison.tree.decisive()
    has_failed = bool(failures) or not all(summary.succeeded for summary in summaries)
    outcome = _outcome(comparison, has_failed=has_failed)
    return audit.ReportVerdict(
        outcome=outcome,
        sentence=_sentence(verdict_line(comparison), outcome),
        counts=_counts(comparison),
        first_difference="" if first is None else sentence(first),
        causes=tuple(comparisons.causes(comparison)),
    )


def _outcome(comparison: Comparison, *, has_failed: bool) -> audit.Outcome:
    """Return the outcome; equal bits are no success if a training failed."""
    if comparison.verdict.differs:
        return "different"
    if has_failed:
        return "failed"
    if comparison.verdict is Verdict.NOT_COMPARED:
        return "not-compared"
    return "tolerated" if comparison.verdict is Verdict.TOLERATED else "identical"


def _counts(comparison: Comparison) -> dict[str, int]:
    """Return the number of compared items by verdict, without the environment, which decides nothing."""
    leaves = (leaf for child in comparison.tree.children if child.name != ENVIRONMENT for leaf in child.leaves())
    counts = Counter(leaf.verdict for leaf in leaves)
    decided = (
        *(Verdict.IDENTICAL, Verdict.BOOKKEEPING, Verdict.TOLERATED, Verdict.IGNORED),
        *(Verdict.DIFFERENT, Verdict.MISSING),
    )
    return {verdict.value: counts[verdict] for verdict in decided if counts[verdict]}


def _sentence(line: str, outcome: str) -> str:
    """Turn verify's line into a sentence, without the verdict, which the report shows above it."""
    text = line.partition(": ")[2]
    if outcome == "failed":
        return f"What both runs recorded is equal as far as it goes: {text}."
    return f"First difference: {text}." if outcome == "different" else f"{text[:1].upper()}{text[1:]}."


def _how(summaries: Sequence[RunSummary], comparison: Comparison | None) -> tuple[str, ...]:
    if len(summaries) == 1 or comparison is None:
        return ()
    first, last = summaries[0].run, summaries[-1].run
    kind = "two recordings, each with randomness of its own"
    if last.replay_of is not None and last.replay_of.run_id == first.run_id:
        kind = "a recording and its replay, which was given the recorded randomness again"
    elif first.replay_of is not None or last.replay_of is not None:
        kind = "no recording and its replay, in this order: one of them, or both, replays something else"
    return (f"The runs are {kind}.", *BY_BITS)


# What was compared


def _categories(comparison: Comparison | None, *, is_alone: bool) -> Iterator[audit.Category]:
    if comparison is None:
        return
    room = MAX_ITEMS
    for child in comparison.tree.children:
        if child.name == ENVIRONMENT:
            continue
        items = tuple(islice(_items(child, "", is_alone=is_alone), room))
        room -= len(items)
        summary = "" if is_alone else shortened(comparisons.headline(child))
        yield audit.Category(name=child.name, verdict=_judgment(child, is_alone), summary=summary, items=items)


def _items(node: Difference, prefix: str, *, is_alone: bool) -> Iterator[audit.Item]:
    """Yield the leaves below a node, each with the names of its groups."""
    for child in node.children:
        if child.judged is None:
            yield from _items(child, f"{prefix}{child.name}: ", is_alone=is_alone)
        else:
            yield _item(child, prefix + child.name, is_alone)


def _item(leaf: Difference, name: str, is_alone: bool) -> audit.Item:
    return audit.Item(
        name=name,
        verdict=_judgment(leaf, is_alone),
        left=leaf.left,
        right="" if is_alone else leaf.right,
        detail=leaf.detail,
        can_change_results=leaf.can_change_results,
    )


def _judgment(node: Difference, is_alone: bool) -> Any:
    is_judged = node.verdict not in (Verdict.INFORMATION, Verdict.NOT_RECORDED)
    return audit.NOT_COMPARED if is_alone and is_judged else node.verdict.value


def _environment(comparison: Comparison | None, first: RunSummary, *, is_alone: bool) -> Iterator[audit.Item]:
    """Yield the facts of the environment; those that differ come first."""
    if comparison is None:
        yield from (audit.Item(name=name, verdict=audit.NOT_COMPARED, left=value) for name, value in _host(first))
        return
    tree = next(child for child in comparison.tree.children if child.name == ENVIRONMENT)
    items = [item for item in _items(tree, "", is_alone=is_alone) if item.verdict != "not-recorded"]
    yield from sorted(items, key=lambda item: (not item.can_change_results, item.left == item.right))


def _host(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield the facts of the environment of a run without a comparison."""
    from reprokit.verify.categories.environment import flat

    skipped = ("packages.", "check", "format", "imported")
    yield from (pair for pair in flat(summary.environment) if pair[1] and not pair[0].startswith(skipped))


def _curves(summaries: Sequence[RunSummary]) -> tuple[tuple[audit.MetricCurve, ...], int]:
    left, right = _curves_of(summaries[0]), _curves_of(summaries[1]) if len(summaries) > 1 else {}
    paired_curves = tuple(curves.paired(left, right))
    return paired_curves[: curves.SHOWN], max(0, len(paired_curves) - curves.SHOWN)


def _curves_of(summary: RunSummary) -> dict[curves.Name, curves.ThinnedCurve]:
    return {**curves.read(summary.directory), **curves.in_files(summary.logged)}


# What was trained


def _run(summary: RunSummary, side: Literal["left", "right"]) -> audit.RunReport:
    run = summary.run
    sealed = rundir.seal_file(summary.directory.path / rundir.RUN)
    return audit.RunReport(
        side=side,
        run_id=run.run_id,
        kind="replay" if run.kind == "replay" else "recording",
        path=str(summary.directory.path),
        state=summary.state,
        whole=not (summary.in_progress or summary.directory.unfinished),
        command=tuple(run.command),
        working_directory=run.working_directory,
        started=run.started,
        ended=run.ended or "",
        seconds=run.duration,
        host=run.host,
        reprokit=run.reprokit,
        machine=_machine(summary.environment),
        source=source_of(summary.environment),
        replay_of=run.replay_of.run_id if run.replay_of is not None else "",
        digest=sealed.digest if sealed is not None else "",
        outliving=run.outliving_processes,
        original=run.bundled.original if run.bundled is not None else "",
    )


def _machine(environment: dict[str, Any]) -> str:
    """Return processor, accelerators and system in one line."""
    cpu, system, gpus = object_in(environment, "cpu"), object_in(environment, "system"), environment.get("gpus")
    parts = [cpu.get("model"), f"{cpu['count']} processors" if cpu.get("count") else ""]
    parts += gpus if isinstance(gpus, list) else []
    parts += [system.get(key) for key in ("os", "kernel", "libc")]
    return "; ".join(str(part) for part in parts if part)


def _trained(summary: RunSummary) -> audit.Trained:
    run = summary.run
    return audit.Trained(
        command=shlex.join(Secrets().value(run.command)),
        code=tuple(islice(_code(summary.environment), MAX_STATED)),
        data=tuple(islice(_data(summary.environment), MAX_STATED)),
        seeds=(*seeds.seeding_calls(summary.directory, summary.scan), *seeds.summary(summary.scan)),
        variables=tuple(
            f"{read.name} ({read.state}), at {read.where}"
            for read in islice(script_variables.listed(summary.scan.variables), MAX_STATED)
        ),
        recipe=f"{run.recipe.path} ({run.recipe.digest})" if run.recipe is not None else "",
    )


def _code(environment: dict[str, Any]) -> Iterator[audit.Stated]:
    yield from stated_source(environment)
    for name, digest in sorted(object_in(environment, "code").items()):
        yield audit.Stated(str(name), str(digest))


def _data(environment: dict[str, Any]) -> Iterator[audit.Stated]:
    data = environment.get("data")
    for read_file in data if isinstance(data, list) else ():
        if isinstance(read_file, dict):
            rest = ", ".join(
                f"{key} {value}"
                for key, value in read_file.items()
                if key not in ("path", "digest", "pieces") and value
            )
            value = str(read_file.get("digest") or "not read")
            yield audit.Stated(str(read_file.get("path", "")), f"{value} ({rest})" if rest else value)


def _packages(summary: RunSummary) -> Iterator[audit.Package]:
    imported = summary.environment.get("imported")
    names = set(map(str, imported)) if isinstance(imported, list) else set()
    for name, version in sorted(object_in(summary.environment, "packages").items()):
        yield audit.Package(name=str(name), version=str(version), imported=str(name) in names)


# Randomness, findings, patches


def _entropy(first: RunSummary, last: RunSummary) -> audit.Entropy:
    run, fidelity, requests = first.run, last.run.fidelity, _asking(first)
    ordered = entropy_requests.ordered(requests.asking.rows) if requests is not None else []
    profile = run.profile or ProfileFacts(digest="")
    return audit.Entropy(
        profile=profile.digest,
        keyed=run.keyed,
        requests=profile.events,
        bytes=profile.entropy,
        processes=profile.processes,
        threads=profile.threads,
        withheld=profile.withheld,
        askers=tuple(_asker(requests, asker, asked) for asker, asked in ordered[:MAX_ASKERS]) if requests else (),
        askers_left_out=max(0, len(ordered) - MAX_ASKERS),
        fidelity=None if fidelity is None else fidelity.kinds,
        fidelity_sentence=in_words(fidelity) if fidelity is not None else "",
        proof=proof_in_words(run.proof) if run.proof is not None else "",
        uncovered=tuple(uncovered.text for uncovered in run.uncovered),
    )


def _asking(summary: RunSummary) -> entropy_requests.EntropyRequests | None:
    """Return the requesters of entropy; None if the random profile cannot be read, which is a warning of the run."""
    try:
        return entropy_requests.report(summary.directory.path)
    except RunError:
        return None


def _asker(
    requests: entropy_requests.EntropyRequests, asker: EntropyRequester, asked: EntropyTotals
) -> audit.EntropyAsker:
    return audit.EntropyAsker(
        module=os.path.basename(asker.module or asker.program),
        call=requests.symbols.get(asker) or f"offset {asker.offset:#x}",
        source=asker.source,
        requests=asked.requests,
        bytes=asked.bytes,
        withheld=asked.withheld,
    )


def _findings(summaries: Sequence[RunSummary]) -> tuple[tuple[audit.ReportedFinding, ...], str]:
    """Return the findings of the first run that was profiled or judged by rules."""
    content = next((summary.findings for summary in summaries if summary.findings is not None), None)
    if content is None:
        return (), "No run was profiled: 'reprokit profile' looks for operations that are not deterministic."
    reported = tuple(
        audit.ReportedFinding(
            subject=finding.title,
            verdict=findings_file.WORDS[finding.verdict],
            why=finding.why,
            where=", ".join(f"{place.file}:{place.line}" for place in finding.where[:1]),
            cures=tuple(f"--patch {cure.patch}" if cure.patch else cure.does for cure in finding.cures),
        )
        for finding in content.findings[:MAX_FINDINGS]
    )
    notes = "; ".join((*content.notes, *content.rule_notes))
    return reported, findings_file.in_words(content) + (f". Notes: {notes}" if notes else "")


def _patches(summary: RunSummary) -> Iterator[audit.AppliedPatch]:
    for patch in summary.run.patches:
        yield audit.AppliedPatch(
            name=patch.text,
            state=patch.state.replace("-", " "),
            why=patch.why,
            warnings=tuple(patch.warnings),
        )


# Limits, and how to check


def _limits(summaries: Sequence[RunSummary]) -> Iterator[str]:
    yield from GROUND
    said = [f"Not covered: {line}" for summary in summaries for line in not_covered(summary)]
    said += [f"Warning: {line}" for summary in summaries for line in warnings(summary)]
    yield from dict.fromkeys(said)


def _check_it(summaries: Sequence[RunSummary]) -> Iterator[audit.Stated]:
    first = summaries[0]
    paths = [shlex.quote(str(summary.directory.path)) for summary in summaries]
    if len(paths) > 1:
        yield audit.Stated("Compare the two run directories again", f"reprokit verify {' '.join(paths)}")
    if first.run.kind == RECORD and first.run.profile is not None and first.run.has_profile:
        yield audit.Stated(
            "Run the training again with the recorded randomness", f"reprokit replay {paths[0]} -o rerun"
        )
        yield audit.Stated("Compare that run with the recording", f"reprokit verify {paths[0]} rerun")
        yield audit.Stated("See who asked for randomness", f"reprokit show {paths[0]} --entropy")
    for file in first.outputs.files[:3]:
        if file.digest:
            yield audit.Stated(f"Compare an output's digest with {file.digest}", shlex.join(["sha256sum", file.path]))
    for path in paths:
        yield audit.Stated("Compare the digest of a record with the one below", f"sha256sum {path}/{rundir.RUN}")
