"""Quick starts whose training repeats are identical, by default or by what their verdict advised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quickstarts.table import QUICK_STARTS, QuickStart
from tests.quickstarts.trial import ENVIRONMENT, Outcome, try_out

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        not (ENVIRONMENT / "bin" / "python").exists(), reason=f"{ENVIRONMENT} is not there: make quickstarts makes it"
    ),
]


@pytest.mark.parametrize("start", QUICK_STARTS, ids=lambda start: start.name)
def test_a_quick_start_whose_training_repeats_is_identical(start: QuickStart, tmp_path: Path) -> None:
    trial = try_out(start, tmp_path)
    assert trial.outcome is not Outcome.WRONG, trial.text
