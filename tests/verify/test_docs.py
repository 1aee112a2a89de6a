"""The pages about verify, show and the format say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from reprokit.core.difference import Verdict
from reprokit.model.environment import EnvironmentFile
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.model.run import Fidelity, ProfileFacts, Proof, ReplayOf, RunFile, SealedFile
from reprokit.verify.read import metric_lines

DOCS = Path(__file__).parents[2] / "docs"
FORMAT = (DOCS / "format.md").read_text()


@pytest.mark.parametrize(
    "kind",
    [
        RunFile,
        ProfileFacts,
        Fidelity,
        ReplayOf,
        Proof,
        SealedFile,
        OutputFile,
        OutputsFile,
        EnvironmentFile,
    ],
)
def test_every_key_of_the_json_files_is_described(kind: type[msgspec.Struct]) -> None:
    derived = {"moved_bytes", "derived_bytes", "live_bytes"}
    missing = [field for field in kind.__struct_fields__ if field not in derived and f"`{field}`" not in FORMAT]
    assert missing == []


@pytest.mark.parametrize("kind", sorted(metric_lines.KINDS))
def test_every_kind_of_line_is_described_with_its_keys(kind: str) -> None:
    row = re.search(rf"^\| `{kind}` \|.*$", FORMAT, re.MULTILINE)
    assert row is not None
    common = metric_lines.MetricLine.__struct_fields__
    own = [name for name in metric_lines.KINDS[kind].__struct_fields__ if name not in common]
    assert [name for name in own if f"`{name}`" not in row[0]] == []


def test_every_verdict_is_explained() -> None:
    page = (DOCS / "commands" / "verify.md").read_text()
    for verdict in Verdict:
        assert f"| `{verdict.value}` |" in page
