"""States the randomness of the runs: who asked for it, and how much of it a replay was given again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from reprokit.core.errors import RunError
from reprokit.entropy.request_counts import Requester as EntropyRequester
from reprokit.entropy.request_counts import RequestTotals as EntropyTotals
from reprokit.evidence.report import facts as audit
from reprokit.evidence.report.section import ReportedRuns
from reprokit.model.run import ProfileFacts
from reprokit.verify.categories.entropy import in_words
from reprokit.verify.show import entropy_requests
from reprokit.verify.show.overview import proof_in_words
from reprokit.verify.show.summary import RunSummary

MAX_ASKERS = 50


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the entropy of the first run, and how the last one was answered."""
    return {"entropy": _entropy(runs.first, runs.last)}


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
        purposes=tuple(_purposes(requests)) if requests else (),
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


def _purposes(requests: entropy_requests.EntropyRequests) -> Iterator[audit.EntropyPurpose]:
    """Yield what libraries asked entropy for, the most bytes first."""
    rows = requests.asking.purposes.items()
    for (library, purpose), asked in sorted(rows, key=lambda row: (-row[1].bytes, -row[1].requests, row[0])):
        yield audit.EntropyPurpose(
            library=library, purpose=purpose, requests=asked.requests, bytes=asked.bytes, withheld=asked.withheld
        )


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
