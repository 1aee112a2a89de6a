"""Dates that cannot be: of a replay before its recording, and of a report before what it is about."""

from __future__ import annotations

import msgspec
import pytest

from reprokit.evidence.attest.statement import statement
from reprokit.evidence.report.gather import gather
from reprokit.evidence.report.sections.limits import DATED
from reprokit.verify.categories.status import date_problems
from reprokit.verify.runs import compare
from tests.verify.runs import Building

Pair = tuple[Building, Building]
NOON, LATER, BEFORE = "2026-03-01T12:00:00Z", "2026-03-01T12:00:09Z", "2026-03-01T11:59:59Z"


def dated(pair: Pair, *, replayed_at: str) -> Pair:
    left, right = pair
    left.run.started, left.run.ended = BEFORE, NOON
    right.run.started, right.run.ended = replayed_at, LATER
    return pair


@pytest.mark.parametrize("replayed_at", [BEFORE, "2020-01-01T00:00:00Z"])
def test_a_replay_dated_before_its_recording_is_said(pair: Pair, replayed_at: str) -> None:
    paths = [run.write() for run in dated(pair, replayed_at=replayed_at)]
    words = f"is dated {replayed_at}, before its recording ended at {NOON}"
    assert any(words in note for note in compare(*paths).notes)
    assert any(words in note for note in compare(*reversed(paths)).notes)
    facts = gather(paths)
    assert any(words in text for text in facts.attention)
    assert any(words in text for text in statement(facts, "bitwise-rerun")["predicate"]["attention"])


def test_possible_dates_are_not_said(pair: Pair) -> None:
    left, right = dated(pair, replayed_at=NOON)
    assert list(date_problems(left.run, right.run)) == []
    left.run.ended = None  # its launcher died
    right.run.started = LATER
    assert list(date_problems(left.run, right.run)) == []
    other = msgspec.structs.replace(right.run, replay_of=None, started="2020-01-01T00:00:00Z", ended=BEFORE)
    assert list(date_problems(left.run, other)) == []  # another recording


def test_a_run_that_ended_before_it_began_is_said(pair: Pair) -> None:
    left, _ = dated(pair, replayed_at=NOON)
    left.run.ended = "2020-01-01T00:00:00Z"
    assert "a clock was set, or a date was changed" in next(date_problems(left.run))


def test_a_report_that_is_dated_by_hand_says_so_and_repeats(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [run.write() for run in dated(pair, replayed_at=NOON)]
    assert DATED not in gather(paths).limits
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    facts = gather(paths)
    assert facts == gather(paths)
    assert DATED in facts.limits
    assert any("This is dated 2020-09-13T12:26:40Z, before left ended at" in text for text in facts.attention)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1900000000")
    facts = gather(paths)
    assert DATED in facts.limits
    assert not any("This is dated" in text for text in facts.attention)
    content = statement(facts, "bitwise-rerun")["predicate"]
    assert (content["made"], DATED in content["limits"]) == (facts.made, True)
