"""Holds a snapshot's header against its schema."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema

from reprokit.capture import Snapshot


def check_schema(snapshot: Snapshot) -> None:
    """Raise where the header is not as the schema says."""
    schema = json.loads((files("reprokit") / "schemas" / "snapshot.schema.json").read_text())
    jsonschema.validate(snapshot.header, schema)
