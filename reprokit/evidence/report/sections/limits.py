"""States what a report does not show, and how to check it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from reprokit.evidence.report import facts as audit
from reprokit.evidence.report.section import ReportedRuns
from reprokit.model.plan import RECORD
from reprokit.run_files import rundir
from reprokit.verify.show.summary import RunSummary, not_covered, warnings

GROUND = (
    "That two runs are equal is evidence for the reproducibility of this training on the machine described here. It"
    " says nothing about how good, fair or safe the trained model is.",
    "What is compared is what the runs recorded: metrics, weights, predictions and files that were written. What a"
    " training computes and never shows is not seen.",
)
DATED = "The date of this report was set by SOURCE_DATE_EPOCH, and is none of a clock."


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the limits, and commands that check what is said."""
    dated = [DATED] if runs.is_dated else []
    return {"limits": (*_limits(runs), *dated), "check_it": tuple(_check_it(runs.summaries))}


def _limits(runs: ReportedRuns) -> Iterator[str]:
    yield from GROUND
    is_checked = runs.comparison is not None
    said = [f"Not covered: {line}" for summary in runs.summaries for line in not_covered(summary)]
    said += [f"Warning: {each.line}" for summary in runs.summaries for each in warnings(summary, is_checked=is_checked)]
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
