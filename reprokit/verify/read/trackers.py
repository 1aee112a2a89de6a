"""What experiment trackers leave beside a training's own files: which of it holds metrics, and which is never compared.

Weights & Biases and MLflow write times and run ids into names and contents of files. Such files differ in any two runs
and say nothing about a training; the values in them that do are read apart (logged.py).
"""

from __future__ import annotations

import re

from reprokit.artifacts.tracker_files import MLFLOW, WANDB_SUMMARY, kind_of
from reprokit.difference import Exclusion

_WANDB = r"(?:.*/)?wandb/(?:offline-)?run-[^/]+/"
_MLFLOW = r"(?:.*/)?"
_OWN = (
    (re.compile(rf"{_WANDB}(?:logs/.+|tmp/.+)|(?:.*/)?wandb/debug[^/]*\.log"), "Weights & Biases"),
    (re.compile(rf"{_WANDB}files/(?:wandb-metadata\.json|config\.yaml|output\.log)"), "Weights & Biases"),
    (re.compile(r"(?:.*/)?\.config/(?:wandb|mlflow)/.+"), "the tracker's settings"),
    (re.compile(rf"{_MLFLOW}(?:mlruns/[^/]+|RUN)/meta\.yaml|{_MLFLOW}RUN/tags/mlflow\..+"), "MLflow"),
    (re.compile(r"(?:.*/)?(?:RUN|m-ID)/(?:.+/)?(?:MLmodel|registered_model_meta)|(?:.*/)?m-ID/meta\.yaml"), "MLflow"),
    (re.compile(r"(?:.*/)?mlflow\.db(?:-wal|-shm|-journal)?"), "MLflow"),
)
_METRICS = (MLFLOW, WANDB_SUMMARY)  # files of which nothing but the values is compared


def excluded(path: str, normalised: str) -> tuple[Exclusion, str] | None:
    """Why a file is no output to compare, as data and in words; None for those that are."""
    for pattern, name in _OWN:
        if pattern.fullmatch(normalised):
            words = f"not compared: of an experiment tracker; {name} writes times, run ids and the like into it"
            return Exclusion.VOLATILE, words
    kind = kind_of(path)
    return (Exclusion.METRICS, f"its values are compared as metrics in files of {kind}") if kind in _METRICS else None
