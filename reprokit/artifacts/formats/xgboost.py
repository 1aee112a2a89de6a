"""XGBoost's models, JSON and UBJSON: trees are in lists of numbers, each of which is a tensor."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.formats import xgboost_json, xgboost_ubjson
from reprokit.artifacts.parts import Limits, Part, Source


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """The parts of a model."""
    head = source.read(0, 64).lstrip()
    if head[1:2] in xgboost_ubjson.FIRST_IN_OBJECT:
        return xgboost_ubjson.read(source, limits)
    return xgboost_json.read(source, limits)
