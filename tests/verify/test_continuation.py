"""The last lines that a resumed training printed, logged or added to a file are those of the whole one."""

from __future__ import annotations

import pytest

from reprokit.verify.bookkeeping.recognition import RunContext
from reprokit.verify.categories.continuation import _equal_lines, _first_difference, _printed

WHOLE = ["start at epoch 0", "epoch 0 loss 4.5", "epoch 1 loss 3.5", "epoch 2 loss 2.5", "best 2.5 of [0, 1, 2]"]
INTERRUPTED = WHOLE[:3]


def difference(resumed: list[str], whole: list[str] = WHOLE, interrupted: list[str] = INTERRUPTED) -> str | None:
    """How the lines of a resumed training differ."""
    left, earlier, right = (_printed("\n".join(lines).encode()) for lines in (whole, interrupted, resumed))
    return _first_difference(left, earlier, right, _equal_lines((RunContext(), RunContext())))


@pytest.mark.parametrize(
    "resumed",
    [
        ["resuming from step 16", *WHOLE[3:]],
        ["start at epoch 2", *WHOLE[3:]],
        WHOLE[2:],  # it was resumed on an older checkpoint than the newest
        ["loading ...", "done", *WHOLE[3:]],
        WHOLE,
    ],
)
def test_what_it_says_of_itself_before_is_left_out(resumed: list[str]) -> None:
    assert difference(resumed) is None


@pytest.mark.parametrize(
    ("resumed", "words"),
    [
        (["epoch 2 loss 2.5", "best 2.5 of [2]"], "the last one is 'best 2.5 of [0, 1, 2]'"),
        (["epoch 2 loss 2.75", WHOLE[4]], "number 2 from the end is 'epoch 2 loss 2.5'"),
        ([WHOLE[4]], "number 2 from the end is only in the whole training"),
        (["resuming", WHOLE[3]], "the last one is 'best 2.5 of [0, 1, 2]' in the whole training, 'epoch 2 loss 2.5'"),
        ([], "the last one is only in the whole training"),
    ],
)
def test_another_line_behind_the_interruption_is_a_difference(resumed: list[str], words: str) -> None:
    assert (difference(resumed) or "").startswith(words)


def test_a_training_that_prints_only_as_it_begins_is_resumed_by_one_that_does() -> None:
    assert difference(["hello", "going on"], whole=["hello"], interrupted=["hello"]) is None
