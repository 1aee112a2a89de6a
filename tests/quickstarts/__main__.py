"""Tries quick starts by the real packages: python -m tests.quickstarts [NAME ...]. Exit status: 0 if none is wrong."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.quickstarts.table import QUICK_STARTS
from tests.quickstarts.trial import Outcome, try_out


def main(names: Sequence[str]) -> int:
    """Try the quick starts of these names, or all, and print a line for each."""
    outcomes = []
    for start in QUICK_STARTS:
        if names and start.name not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="quickstart-") as directory:
            trial = try_out(start, Path(directory))
        outcomes.append(trial.outcome)
        bare = "varies" if trial.varies_bare else "repeats"
        print(f"{start.name:32} bare {bare:8} {trial.outcome.value}", flush=True)
        if trial.outcome is Outcome.WRONG or names:
            print("    " + trial.text.strip().replace("\n", "\n    "), flush=True)
    print(f"{outcomes.count(Outcome.WRONG)} wrong of {len(outcomes)}")
    return int(Outcome.WRONG in outcomes or not outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
