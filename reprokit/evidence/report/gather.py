"""Gathers the audit facts of one run, or of a run and its re-run, from run directories alone."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reprokit.core.errors import NothingComparable
from reprokit.core.redaction import Secrets
from reprokit.core.version import VERSION
from reprokit.evidence.report.facts import AuditFacts
from reprokit.evidence.report.section import Execution, ReportedRuns
from reprokit.evidence.report.sections import SECTIONS
from reprokit.run_files import rundir
from reprokit.verify.comparison import Comparison
from reprokit.verify.ignores import Ignores
from reprokit.verify.runs import compare, require_whole
from reprokit.verify.show.summary import RunSummary, summarize


def gather(paths: Sequence[Path], execution: Execution | None = None, ignores: Ignores | None = None) -> AuditFacts:
    """Return the facts of one run, or of two compared, without secrets; raises a RunError for an unreadable directory.

    `execution` is set only if the calling process itself executed both runs.
    """
    summaries = [summarize(path) for path in paths]
    comparison, problem = compared(summaries, ignores)
    made, is_dated = dated() if execution is None else (rundir.utc_now(), False)
    runs = ReportedRuns(summaries, comparison, problem, execution, made, is_dated)
    facts = {"reprokit": VERSION, "made": runs.made, "executed_by": "unknown" if execution is None else "signer"}
    for section in SECTIONS:
        facts.update(section(runs))
    return msgspec.convert(Secrets().value(msgspec.to_builtins(facts)), AuditFacts)


def dated() -> tuple[str, bool]:
    """Return the date of a report, and whether SOURCE_DATE_EPOCH sets it (reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isascii() and epoch.isdigit() and len(epoch) < 12:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch))), True
    return rundir.utc_now(), False


def compared(summaries: Sequence[RunSummary], ignores: Ignores | None) -> tuple[Comparison | None, str]:
    """Return the comparison, or why there is none; a single run is compared with itself to list its parts."""
    for summary in summaries:
        if summary.in_progress:
            return None, f"{summary.directory.path} is still being written"
    runs = [summary.directory for summary in summaries]
    try:
        for run in runs:
            require_whole(run.path)
        comparison = compare(runs[0], runs[-1], ignores=ignores)
    except NothingComparable as error:
        return None, str(error)
    if len(runs) > 1 and comparison.shared is not None:
        return None, f"both directories hold the same run, as {comparison.shared.value} is the same in both"
    return comparison, ""
