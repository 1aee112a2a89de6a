"""An analysis as a JSON document, which reprokit/schemas/study-1.schema.json describes."""

from __future__ import annotations

from typing import Any

import msgspec

from reprokit.study.facts import FORMAT, Analysis


def document(analysis: Analysis) -> dict[str, Any]:
    """An analysis as plain data, ready for JSON."""
    content: dict[str, Any] = msgspec.to_builtins(analysis)
    return content


def schema() -> dict[str, Any]:
    """The JSON schema of an analysis; reprokit/schemas/study-1.schema.json is this."""
    made = msgspec.json.schema(Analysis)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:reprokit:study:{FORMAT}"}
    return {**head, "title": "What the runs of a study say, as reprokit study show --json prints it", **made}
