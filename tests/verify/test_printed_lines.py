"""What may differ in two printed lines without being a difference, and what may never be left out."""

from __future__ import annotations

import time
from typing import Any

import pytest

from reprokit.core.difference import BookkeepingKind, Verdict
from reprokit.run_files.console import PrintedPiece, ProcessConsole
from reprokit.verify.bookkeeping.recognition import RunContext
from reprokit.verify.categories.console import _printed_stream, _stream_leaf, compare_as_set, without_ranks
from reprokit.verify.categories.printed_lines import LineComparer, compare_lines, printed_lines, tells_results

from .bookkeeping_lines import BOOKKEEPING, RESULTS, STARTED

VERSIONS = "lightning_logs/version_0", "lightning_logs/version_1"
CONTEXTS = (
    RunContext(frozenset([4711, 57]), STARTED, STARTED + 60, "/home/a/work", ((VERSIONS[0], VERSIONS[0]),), "vm-1"),
    RunContext(frozenset([4712, 61]), STARTED + 3600, 0.0, "/home/b/work", ((VERSIONS[1], VERSIONS[0]),), "vm-2"),
)


def kinds(left: str, right: str, *before: str) -> list[str] | None:
    """The kinds of bookkeeping that differ in two lines, behind others that are the same."""
    comparer = LineComparer(CONTEXTS)
    for line in before:
        assert comparer.compare(line, line) == []
    values = comparer.compare(left, right)
    return None if values is None else sorted({value.kind.value for value in values})


@pytest.mark.parametrize(("left", "right"), BOOKKEEPING)
def test_what_says_something_of_the_run_alone_may_differ(left: str, right: str) -> None:
    assert kinds(left, right)
    assert kinds(right, right) == []


@pytest.mark.parametrize(("left", "right"), RESULTS)
def test_a_result_may_not(left: str, right: str) -> None:
    assert kinds(left, right) is None
    assert kinds(left, left) == []


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ("step 3ms, 4 it/s", "step 4ms, 5 it/s", ["duration", "rate"]),
        ("2026-11-29 09:26:05 4711 INFO x", "2026-11-29 09:26:07 4712 INFO x", ["date", "process id"]),
        ("v_num: 0 at 0x7f3a12345678", "v_num: 1 at 0x7f3a12345679", ["address", "directory name"]),
        ("below /home/a/work/out", "below /home/b/work/out", ["path"]),
        ("100%|██| 5/5 [00:01<00:00]", "100%|█| 5/5 [00:01<00:00]", ["progress bar"]),
        ("job_id: 3f2b8c1e-5d4a-4e6f-9b0a-1c2d3e4f5a6b", "job_id: 4f2b8c1e-5d4a-4e6f-9b0a-1c2d3e4f5a6b", ["id"]),
        ("http://localhost:40001", "http://localhost:40002", ["port"]),
        ("in /tmp/tmpab12cd34", "in /tmp/tmpab12cd35", ["temporary name"]),
    ],
)
def test_each_value_has_its_kind(left: str, right: str, found: list[str]) -> None:
    assert kinds(left, right) == found


def test_a_column_is_named_by_its_head() -> None:
    row = "      1        0.6850       0.5500        {}  0.0125".format
    head = "  epoch    train_loss    valid_acc    valid_loss     dur"
    assert kinds(row(0.6785), row(0.6785).replace("0.0125", "0.0097"), head, "-------  ---") == ["duration"]
    assert kinds(row(0.6785), row(0.6786), head) is None
    assert kinds(row(0.6785), row(0.6785).replace("0.0125", "0.0097")) is None
    assert kinds("3  12.5", "3  12.6", "trip  travel_time") is None
    assert kinds("3  12.5", "3  12.6", "epoch  dur", "1  2.5", "the predictions follow") is None
    drawn = "┃ epoch ┃ loss   ┃ time (s) ┃", "┡━━━━━━━╇━━━━━━━━╇━━━━━━━━━━┩"
    assert kinds("│ 0     │ 0.0005 │ 0.0697   │", "│ 0     │ 0.0005 │ 0.0585   │", *drawn) == ["duration"]
    assert kinds("│ 0     │ 0.0005 │ 0.0697   │", "│ 0     │ 0.0004 │ 0.0697   │", *drawn) is None
    assert kinds("| a | 1.5 |", "| a | 2.5 |", "| patient | time |") is None


def test_what_only_looks_like_a_duration_is_pointed_out() -> None:
    left, right = (printed_lines(f"epoch 1\nbraking 3.{digit} s\n".encode())[0] for digit in "12")
    comparison = compare_lines(left, right, CONTEXTS)
    assert comparison.look_alike is not None
    assert (comparison.look_alike.kind, comparison.look_alike.left) == (BookkeepingKind.DURATION, "3.1 s")
    for name in ("loss 3.{}", "MAE 3.{} s", "predicted time: 3.{} s", "RUL 12{} hours"):
        left, right = (printed_lines(name.format(digit).encode())[0] for digit in "12")
        assert compare_lines(left, right, CONTEXTS).look_alike is None


def lines(text: str) -> list[str]:
    return [line.text for line in printed_lines(text.encode())[0]]


def test_of_a_line_that_is_written_over_the_last_state_counts() -> None:
    assert lines("\rstep 1\rstep 2\r\n\n  \nkeras 1/2\x08\x08\x08keras 2/2\n") == ["step 2", "keras 2/2"]
    assert printed_lines(b" 50%|## | 1/2 [00:00<?, ?it/s]\r100%|####| 2/2 [00:00<00:00]\n 10%|# | 1/10 [0") == (
        printed_lines(b"100%|####| 2/2 [00:00<00:00]\n")[0],
        1,
    )
    assert printed_lines(b"outer\n\x1b[A\router again\n")[1] == 1


def test_other_line_ends_are_no_difference_and_are_counted() -> None:
    left, _ = printed_lines(b"loss 1\r\nloss 2\nloss 3\n10%\r100%  \n")
    right, _ = printed_lines(b"loss 1\nloss 2\nloss 3  \n20%\r100%\n")
    found = compare_lines(left, right, CONTEXTS)
    assert (found.first, found.values, found.line_ends) == (None, [], 2)


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("took 3.2 s\n[12:00:00] begin\n", False),
        ("took 3.2 s\n", False),
        ("", False),
        ("---\n", False),
        ("done\n", True),
        ("loss 0.5 in 3 s\n", True),
        ("epoch took 3 s", False),
        ("took 3 s\nMAE: 3.2 minutes", True),
    ],
)
def test_times_alone_are_no_results(text: str, tells: bool) -> None:
    assert tells_results(printed_lines(text.encode())[0], CONTEXTS[0]) is tells


def test_the_first_difference_is_found_with_its_number() -> None:
    left, right = printed_lines(b"took 1 s\n\nb\nc\n")[0], printed_lines(b"took 2 s\n\nb\nd\n")[0]
    found = compare_lines(left, right, CONTEXTS)
    assert found.first is not None
    assert [line and (line.number, line.text) for line in found.first] == [(4, "c"), (4, "d")]
    assert [(line.number, value.left, value.right) for line, value in found.values] == [(1, "1 s", "2 s")]
    assert compare_lines(left, left[:2], CONTEXTS).first == (left[2], None)


def test_lines_behind_a_part_that_was_not_kept_are_numbered_from_the_end() -> None:
    def console(last: bytes) -> ProcessConsole:
        return ProcessConsole([PrintedPiece(0, "m", b"a\nb\ncut")], [PrintedPiece(0, "m", last)], dropped=9)

    contexts = RunContext(), RunContext()
    for lasts, words in (
        ((b"off\nc 1\nd\n", b"off\nc 2\nd\n"), "line 2 from the end of what was kept is 'c 1'"),
        ((b"off\nc\n\nd 1", b"off\nc\n\nd 2"), "line 1 from the end of what was kept is 'd 1'"),
    ):
        left, right = (_printed_stream(console(last), 0) for last in lasts)
        leaf = _stream_leaf("stdout", (left, right), contexts)
        assert leaf is not None
        assert words in leaf.detail


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (((7, 0), (7, 0)), "not compared are 8 lines: only whole lines"),
        (((7, 0), (9, 0)), "not compared are 8 lines of the left run and 10 lines of the right one: only whole lines"),
        (((7, 0), None), "an unknown number of lines is not compared: only whole lines"),
    ],
)
def test_lines_that_were_not_kept_are_counted(lines: tuple[Any, Any], words: str) -> None:
    def console(dropped_lines: tuple[int, int] | None) -> ProcessConsole:
        first, last = [PrintedPiece(0, "m", b"loss 1\nb\ncut")], [PrintedPiece(0, "m", b"off\nloss 2\nd\n")]
        return ProcessConsole(first, last, dropped=99, dropped_lines=dropped_lines)

    left, right = (_printed_stream(console(counts), 0) for counts in lines)
    leaf = _stream_leaf("stdout", (left, right), (RunContext(), RunContext()))
    assert leaf is not None
    assert leaf.verdict is Verdict.IDENTICAL
    assert leaf.detail.startswith(words)


@pytest.mark.slow
def test_no_line_takes_long() -> None:
    began = time.process_time()
    repeated = ("1", " ", "a_time", "1:", "/tmp/", "\x1b[1", "1d", "loss ", "mae 1 s ", "1, ", "a,", "3 s,", "0x")
    for text in (part * (4096 // len(part)) for part in repeated):
        for end in ("1 s", "2 s"):
            LineComparer(CONTEXTS).compare(text[:4000] + end, text[:4000] + "3 s")
            printed_lines((text + end).encode())
    assert time.process_time() - began < 5


def test_merged_lines_are_compared_as_a_set_where_ranks_are_unknown() -> None:
    left, right = (
        printed_lines(text)[0]
        for text in (
            b"rank 0 loss 0.5\ntook 1.5 s\nrank 1 loss 0.25\n",
            b"rank 1 loss 0.25\nrank 0 loss 0.5\ntook 1.25 s\n",
        )
    )
    same = compare_as_set(left, right, CONTEXTS)
    assert same.first is None
    assert [(value.left, value.right) for _, value in same.values] == [("1.5 s", "1.25 s")]
    again = compare_as_set(left, [*right, right[0]], CONTEXTS)
    assert again.first is not None
    assert again.first[1] == right[0]


def test_what_no_rank_gave_to_its_launcher_is_left() -> None:
    texts = [b"a b\nc\n", b"a b\nd\n"]
    merged = b"a a bb\r\nc\n\r\nd\n"
    assert without_ranks(printed_lines(merged)[0], merged, texts) == []
    merged = b"a b\na b\nc\nd\nmpirun noticed that\n"
    assert [line.text for line in without_ranks(printed_lines(merged)[0], merged, texts)] == ["mpirun noticed that"]
