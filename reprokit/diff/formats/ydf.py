"""The headers of models of Yggdrasil and TensorFlow Decision Forests, whose maps have no fixed order.

The trees are in a file of their own. Fields that are not in the schema are compared as raw values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reprokit.diff.elements import Limits, Part, Source
from reprokit.diff.formats.messages import MessageWalker, schema

SCHEMA = schema(Path(__file__).with_suffix(".schema").read_text(encoding="utf-8"))


def model(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of header.pb: the kind of model, importances of variables, when it was created."""
    yield from MessageWalker(source, limits, SCHEMA, {}, {}).message("", "AbstractModel")


def forest(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of random_forest_header.pb."""
    yield from MessageWalker(source, limits, SCHEMA, {}, {}).message("", "Header")


def data(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of data_spec.pb: the columns."""
    yield from MessageWalker(source, limits, SCHEMA, {}, {}).message("", "DataSpecification")
