"""Finds the first wrongly predicted samples of a training, with pictures if the saved inputs are images."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from reprokit.core.errors import ReprokitError, TensorUnavailable
from reprokit.evidence.report.facts import WrongPrediction
from reprokit.evidence.report.section import ReportedRuns
from reprokit.evidence.report.sections.confusion import judged_steps
from reprokit.rules.data import channels_last
from reprokit.rules.observations import labeled, predicted
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import TensorTrial, TrialTensor

SHOWN = 12
LONGEST = 96  # pixels per side; larger pictures are subsampled


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the first wrong predictions of the first run."""
    return {"wrong_predictions": wrong_predictions_of(runs.first.directory)}


def wrong_predictions_of(run: RunDirectory) -> tuple[WrongPrediction, ...]:
    """Return the first wrong predictions in the steps that the report counts."""
    if not run.has(rundir.TENSORS):
        return ()
    predictions: list[WrongPrediction] = []
    try:
        trial = TensorTrial(run.path)
        steps, mode, _ = judged_steps(trial)
        for step in steps:
            predictions += islice(_wrong(trial, step, mode), SHOWN - len(predictions))
    except ReprokitError:  # damaged, or without NumPy: omitted from the report
        return ()
    return tuple(predictions)


def _wrong(trial: TensorTrial, step: int, mode: str) -> Iterator[WrongPrediction]:
    """Yield the wrong predictions of a step; none if several losses make the images of the labels ambiguous."""
    batches = [
        (name, labels, predicted(scores)) for name, labels, scores in labeled(trial, step, mode) if scores is not None
    ]
    if len({name for name, _, _ in batches}) != 1:
        return
    inputs = _image_inputs(trial, step, mode, len(batches))
    for batch, (_, labels, classes) in enumerate(batches):
        images = _images(inputs, step, mode, batch, len(labels))
        for sample in (labels != classes).nonzero()[0][:SHOWN].tolist():
            yield WrongPrediction(
                step=step,
                batch=batch,
                sample=sample,
                label=int(labels[sample]),
                prediction=int(classes[sample]),
                picture="" if images is None else base64.b64encode(_png(images[sample])).decode("ascii"),
            )


def _image_inputs(trial: TensorTrial, step: int, mode: str, batches: int) -> TrialTensor | None:
    """Return the inputs of a module that may be images, as many as there are batches of labels."""
    tensors = map(trial.tensor, trial.tensor_names(step=step, mode=mode, collection="inputs"))
    return next(
        (tensor for tensor in tensors if len(tensor.shape(step, mode)) == 4 and tensor.calls(step, mode) == batches),
        None,
    )


def _images(inputs: TrialTensor | None, step: int, mode: str, batch: int, samples: int) -> Any:
    """Return the images of a batch; None if there are none."""
    if inputs is None:
        return None
    try:
        images = channels_last(inputs.value(step, mode, call=batch))
    except TensorUnavailable:
        return None
    return images if images is not None and images.dtype.kind in "biuf" and len(images) == samples else None


def _png(image: Any) -> bytes:
    """Return rows of pixels as PNG, from the darkest value to the brightest."""
    numpy = shards.numpy()
    apart = max(1, -(-max(image.shape[:2]) // LONGEST))
    image = image[::apart, ::apart, : 3 if image.shape[2] > 2 else 1].astype("float64")
    finite = numpy.nan_to_num(image, nan=0.0, posinf=0.0, neginf=0.0)
    low, span = finite.min(), numpy.ptp(finite) or 1.0
    pixels = ((finite - low) / span * 255).astype("uint8")
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
