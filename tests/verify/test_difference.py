"""The tree of differences: verdicts are derived and causes come first."""

from __future__ import annotations

import pytest

from reprokit.core.difference import Difference, Verdict, compared, group, information, missing

SAME = compared("same", "1", "1")
OTHER = compared("other", "1", "2", "it changed")
ABSENT = missing("absent", "1", "")
TOLD = information("told", "1", "2")
UNKNOWN = compared("unknown", "", "")


@pytest.mark.parametrize(
    ("children", "verdict"),
    [
        ((), Verdict.NOT_RECORDED),
        ((UNKNOWN,), Verdict.NOT_RECORDED),
        ((UNKNOWN, TOLD), Verdict.INFORMATION),
        ((SAME, UNKNOWN), Verdict.IDENTICAL),
        ((TOLD, SAME, UNKNOWN), Verdict.INFORMATION),
        ((SAME, OTHER), Verdict.DIFFERENT),
        ((SAME, ABSENT), Verdict.DIFFERENT),
        ((SAME, group("inner", (TOLD, OTHER))), Verdict.DIFFERENT),
    ],
)
def test_the_verdict_of_a_group_follows_from_its_children(children: tuple[Difference, ...], verdict: Verdict) -> None:
    assert group("group", children).verdict is verdict


def test_the_first_difference_is_the_first_in_causal_order() -> None:
    tree = group("runs", (group("a", (SAME, TOLD)), group("b", (SAME, ABSENT)), group("c", (OTHER,))))
    assert tree.first() is ABSENT


def test_there_is_no_first_difference_where_nothing_differs() -> None:
    assert group("runs", (SAME, TOLD, UNKNOWN)).first() is None


def test_what_one_side_lacks_is_missing_and_not_just_different() -> None:
    assert compared("x", "", "2").verdict is Verdict.MISSING
    assert compared("x", "1", "").detail == "only the left run has it"


def test_the_meaning_of_a_difference_is_left_out_where_there_is_none() -> None:
    assert compared("x", "1", "1", "it changed").detail == ""
