"""What may differ in two printed lines without being a difference, and what may never be left out."""

from __future__ import annotations

import time

import pytest

from reprokit.console import PrintedPiece, ProcessConsole
from reprokit.verify.compare.console import _stream_leaf
from reprokit.verify.compare.printed_lines import (
    LineContext,
    compare_lines,
    printed_lines,
    tells_results,
    varying,
)

CONTEXTS = (
    LineContext(frozenset([4711, 57]), 1_795_542_900.0, "/home/a/work"),
    LineContext(frozenset([4712, 61]), 1_795_546_500.0, "/home/b/work"),
)

SAME_BUT_FOR = [
    ("took 3.2 s", "took 12.25 s", "times"),
    ("took 900ms", "took 1.1s", "times"),
    ("epoch 3 loss 0.51 (2m 3s)", "epoch 3 loss 0.51 (2m 14s)", "times"),
    ("2026-11-24 17:55:37,871 INFO loss 0.5", "2026-11-24 17:55:39,002 INFO loss 0.5", "times"),
    ("saved 2026-11-24T17:55:37.1Z", "saved 2026-11-25T01:00:00Z", "times"),
    ("Tue Nov 24 17:55:39 2026 start", "Wed Nov  4 07:05:09 2026 start", "times"),
    ("[17:55:39] begin", "[17:55:40] begin", "times"),
    ("Fri 27 Nov 2026 11:05:24 AM UTC: begin", "Fri 27 Nov 2026 01:05:24 PM UTC: begin", "times"),
    ("finished in 3 min 2 s", "finished in 4 min 10 s", "times"),
    ("took 1 hour and 3 minutes", "took 2 hours and 10 minutes", "times"),
    ("elapsed 0:00:12.345678", "elapsed 1:02:03", "times"),
    ("{'train_runtime': 1.25, 'loss': 0.5}", "{'train_runtime': 11.5, 'loss': 0.5}", "times"),
    ("step_time=0.125 loss=0.5", "step_time=0.5 loss=0.5", "times"),
    ("now 1795542938.25", "now 1795546538.75", "times"),
    ("run_20261124-175537 begins", "run_20261124-185537 begins", "times"),
    ("123.4 it/s", "  9.8 it/s", "rates"),
    ("12.5 images/s, 3 MB/s", "13 images/s, 4 MB/s", "rates"),
    ("12.3 samples/sec, loss 0.5", "9.8 samples/sec, loss 0.5", "rates"),
    ("'train_samples_per_second': 3.2", "'train_samples_per_second': 4.5", "rates"),
    ("1.20s/it", "3.5it/s", "rates"),
    ("throughput: 1200 GB", "throughput: 800 GB", "rates"),
    ("10/10 ━━━━ 0s 3ms/step - loss: 0.5", "10/10 ━━━━ 1s 31ms/step - loss: 0.5", "rates and times"),
    ("100%|████| 5/5 [00:01<00:00,  4.20it/s, loss=0.5]", "100%|█| 5/5 [01:01<00:00, 3.9s/it, loss=0.5]", None),
    ("<object object at 0x7f3a12345678>", "<object object at 0x7f3a87654321>", "addresses"),
    ("wrote /tmp/tmpab12cd34/model.pt", "wrote /tmp/tmpzz99yy88/model.pt", "temporary names"),
    ("\x1b[1m9s\x1b[0m \x1b[32mloss 0.5", "\x1b[1m14s\x1b[0m \x1b[32mloss 0.5", "times"),
    ("worker pid=57 ready", "worker pid=61 ready", "process ids"),
    ("4711 INFO loss 0.5", "4712 INFO loss 0.5", "process ids"),
    ("elapsed 3.2 minutes", "elapsed 4.1 minutes", "times"),
    ("loss 0.5 eta 3.2 s", "loss 0.5 eta 4 s", "times"),
    ("3.2 s/it, loss 0.5", "4.1 s/it, loss 0.5", "rates"),
    ("step time 12 ms", "step time 9 ms", "times"),
    ("loss time: 12 ms", "loss time: 9 ms", "times"),
    ("'score_time': 0.5 s", "'score_time': 0.75 s", "times"),
    ("loss 0.5 3.2s", "loss 0.5 12s", "times"),
    ("reward 200 (3.2s)", "reward 200 (4.1s)", "times"),
    ("val_loss: 0.5 - 3s", "val_loss: 0.5 - 4s", "times"),
    ("computing accuracy took 3.2 s", "computing accuracy took 4 s", "times"),
    ("computing scores ... 3.2 s", "computing scores ... 4 s", "times"),
    ("best score after 3.2 s", "best score after 4.1 s", "times"),
    ("ERROR 2026-11-24 17:55:37 lost", "ERROR 2026-11-25 07:55:39 lost", "times"),
    ("best score: 2026-11-24", "best score: 2026-11-25", "times"),
    ("ERROR 24 Nov 2026 17:55:37", "ERROR 25 Nov 2026 17:55:37", "times"),
    ("[ERROR] 17:55:37 lost", "[ERROR] 18:55:37 lost", "times"),
    ("below /home/a/work/out", "below /home/b/work/out", "the working directory"),
    ("below /home/a/work/out at 12:00:00", "below /home/b/work/out at 12:00:01", "times"),
]

DIFFERENT = [
    ("loss: 0.5", "loss: 0.25"),
    ("epoch 1 loss 0.5 time 1.2s", "epoch 1 loss 0.4 time 1.2s"),
    ("epoch 1 loss 0.5 time 1.2s", "epoch 1 loss 0.4 time 1.3s"),
    ("step 57 loss 0.5", "step 61 loss 0.5"),
    ("step 4711", "step 4713"),
    ("loss nan", "loss 0.1"),
    ("\x1b[31mloss 0.5 in 3 s", "\x1b[32mloss 0.5 in 4 s"),
    ("accuracy 12 s=0.3", "accuracy 13 s=0.3"),
    ("0.3 min 0.1 max", "0.4 min 0.1 max"),
    ("checksum 0xdeadbeef", "checksum 0xdeadbeee"),
    ("lr 1e-05", "lr 2e-05"),
    ("5 steps", "6 steps"),
    ("took 5 steps", "took 6 steps"),
    ("timestep: 5", "timestep: 6"),
    ("eta: 0.1", "eta: 0.3"),
    ("learning rate: 0.1", "learning rate: 0.2"),
    ("memory 12 MB", "memory 13 MB"),
    ("saved /tmp/model_loss_0.51.pt", "saved /tmp/model_loss_0.42.pt"),
    ("took 3 s", "took 3 steps/s"),
    ("a  b", "a b"),
    ("loss 0.5  acc", "loss 0.5 acc"),
    ("MAE: 3.2 minutes", "MAE: 4.1 minutes"),
    ("error 4.1 s", "error 3.2 s"),
    ("val_loss=0.31 hours", "val_loss=0.32 hours"),
    ("RMSE (days): 2.4", "RMSE (days): 2.5"),
    ("RMSE (days): 2.4 days", "RMSE (days): 2.5 days"),
    ("rmse: 3.2 m/s", "rmse: 3.3 m/s"),
    ("L1Loss/train 12ms", "L1Loss/train 13ms"),
    ("took 3 s, test_mae=1.5s", "took 4 s, test_mae=1.25s"),
    ("The mean absolute error on the test set is 3.2 minutes", "The mean absolute error on the test set is 3 minutes"),
    ("MAE after epoch 3: 0.5 s", "MAE after epoch 3: 0.25 s"),
    ("| MAE | 3.2 s |", "| MAE | 3.3 s |"),
    ('{"mae": "3.2 minutes"}', '{"mae": "3.3 minutes"}'),
    ("MAE = 3.2 +/- 0.1 min", "MAE = 3.2 +/- 0.2 min"),
    ("MAE = 3.2 s (± 0.1 s)", "MAE = 3.2 s (± 0.2 s)"),
    ("MAE: 0:03:12", "MAE: 0:03:13"),
    ("MAE: 1 days 00:03:12", "MAE: 2 days 00:03:12"),
    ("mae 2m 14s", "mae 2m 15s"),
    ("score: 1.5 points/s", "score: 2.5 points/s"),
    ("prediction: 5 days", "prediction: 6 days"),
    ("y_pred = 3.2 hours", "y_pred = 3.4 hours"),
    ("predicted: 12:00:05", "predicted: 12:00:06"),
    ("forecast for fold 2: 3.2 minutes", "forecast for fold 2: 3.1 minutes"),
    ("target 3.2 s", "target 3.3 s"),
    ("velocity 3.2 km/h", "velocity 3.3 km/h"),
    ("wind 4 m/s at 12:00:00", "wind 5 m/s at 12:00:01"),
    ("height 4711.0", "height 4712.0"),
    ("worker 57.5", "worker 61.5"),
    ("x" * 5000 + " 1 s", "x" * 5000 + " 2 s"),
]


@pytest.mark.parametrize(("left", "right", "kinds"), SAME_BUT_FOR)
def test_times_and_the_like_may_differ(left: str, right: str, kinds: str | None) -> None:
    found = varying(left, right, CONTEXTS)
    assert found
    assert kinds is None or " and ".join(sorted(found)) == kinds


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_nothing_else_may(left: str, right: str) -> None:
    assert varying(left, right, CONTEXTS) is None
    assert varying(left, left, CONTEXTS) == frozenset()


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
    assert (found.first, dict(found.varied)) == (None, {"blanks or carriage returns at the end": 2})


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("took 3.2 s\n12:00:00\n", False),
        ("", False),
        ("---\n", False),
        ("done\n", True),
        ("loss 0.5 in 3 s\n", True),
        ("epoch took 3 s", False),
        ("took 3 s\nMAE: 3.2 minutes", True),
    ],
)
def test_times_alone_are_no_results(text: str, tells: bool) -> None:
    assert tells_results(printed_lines(text.encode())[0]) is tells


def test_the_first_difference_is_found_with_its_number() -> None:
    left, right = printed_lines(b"a 1 s\n\nb\nc\n")[0], printed_lines(b"a 2 s\n\nb\nd\n")[0]
    found = compare_lines(left, right, CONTEXTS)
    assert found.first is not None
    assert [line and (line.number, line.text) for line in found.first] == [(4, "c"), (4, "d")]
    assert dict(found.varied) == {"times": 1}
    assert compare_lines(left, left[:2], CONTEXTS).first == (left[2], None)


def test_lines_behind_a_part_that_was_not_kept_are_numbered_from_the_end() -> None:
    def console(last: bytes) -> ProcessConsole:
        return ProcessConsole([PrintedPiece(0, "m", b"a\nb\ncut")], [PrintedPiece(0, "m", last)], dropped=9)

    contexts = LineContext(), LineContext()
    for lasts, words in (
        ((b"off\nc 1\nd\n", b"off\nc 2\nd\n"), "line 2 from the end of what was kept is 'c 1'"),
        ((b"off\nc\n\nd 1", b"off\nc\n\nd 2"), "line 1 from the end of what was kept is 'd 1'"),
    ):
        leaf = _stream_leaf("stdout", 0, console(lasts[0]), console(lasts[1]), contexts)
        assert leaf is not None
        assert words in leaf.detail


def test_no_line_takes_long() -> None:
    began = time.process_time()
    repeated = ("1", " ", "a_time", "1:", "/tmp/", "\x1b[1", "1d", "loss ", "mae 1 s ")
    for text in (part * (4096 // len(part)) for part in repeated):
        for end in ("1 s", "2 s"):
            varying(text[:4000] + end, text[:4000] + "3 s", CONTEXTS)
            printed_lines((text + end).encode())
    assert time.process_time() - began < 5
