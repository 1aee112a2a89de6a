"""What reports say of saved tensors: classes that were confused, and the first wrong predictions with their images."""

from __future__ import annotations

import base64
import json
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import reprokit as package
from tests.support import Reprokit

TRAINING = Path(__file__).parents[2] / "trainings" / "pytorch_digits_evaluated.py"


@pytest.mark.slow
@pytest.mark.torch
def test_wrong_predictions_of_the_last_evaluation_are_shown_with_their_images(reprokit: Reprokit) -> None:
    saved = ("--tensors", "predictions,labels,inputs mode=eval")
    assert reprokit.run("record", "-q", "-o", "run", *saved, "--", sys.executable, str(TRAINING)).returncode == 0
    report = json.loads(reprokit.run("report", "run", "--format", "json").stdout)
    (matrix,) = report["confusion"]
    assert matrix["title"].endswith("the evaluation at step 20")
    assert sum(map(sum, matrix["counts"])) == 150
    trial = package.trial(reprokit.directory / "run")
    wrong = []
    for batch in range(3):
        scores, labels = (trial.tensor(f"CrossEntropyLoss_input_{n}").value(20, "eval", call=batch) for n in range(2))
        images = trial.tensor("Sequential_input_0").value(20, "eval", call=batch)
        wrong += [
            (batch, int(sample), int(labels[sample]), int(scores[sample].argmax()), images[sample])
            for sample in np.flatnonzero(scores.argmax(axis=1) != labels)
        ]
    shown = report["wrong_predictions"]
    assert len(shown) == min(12, len(wrong)) > 3
    assert [(one["batch"], one["sample"], one["label"], one["prediction"]) for one in shown] == [
        one[:4] for one in wrong[:12]
    ]
    for one, (*_, image) in zip(shown, wrong, strict=False):
        png = base64.b64decode(one["picture"])
        assert png.startswith(b"\x89PNG\r\n\x1a\n")
        data = png[png.index(b"IDAT") + 4 :]
        rows = np.frombuffer(zlib.decompress(data), dtype="uint8").reshape(8, 9)[:, 1:]
        assert np.array_equal(rows, (image[0] / image[0].max() * 255).astype("uint8"))
    assert reprokit.run("report", "run", "-o", "report.html").returncode == 0
    page = (reprokit.directory / "report.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == len(shown)
