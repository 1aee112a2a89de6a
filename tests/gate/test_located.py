"""A gate names the operator by which a pair parts."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.support import Reprokit

TRAINING = Path(__file__).parents[1] / "trainings/pytorch_racing_gather.py"


@pytest.mark.extended
def test_the_first_divergent_operator_is_a_case_in_all_reports(tmp_path: Path) -> None:
    reports = ("--junit", "junit.xml", "--sarif", "gate.sarif", "--summary", "summary.md")
    done = Reprokit(tmp_path).run("gate", "--locate", *reports, "--", sys.executable, str(TRAINING), "60")
    assert done.returncode == 1, done.stdout + done.stderr
    words = "first divergent operator: aten::index_put, backward of "
    assert words in done.stdout
    cases = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    failed = [case.find("failure") for case in cases if case.get("name") == "first divergent operator"]
    assert [words in (one.get("message") or "") for one in failed if one is not None] == [True]
    results = json.loads((tmp_path / "gate.sarif").read_text())["runs"][0]["results"]
    assert any(words in result["message"]["text"] for result in results)
    assert r"aten::index\_put" in (tmp_path / "summary.md").read_text()
