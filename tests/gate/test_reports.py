"""What CI systems read: each report by the rules of those that refuse others."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from reprokit.gate import findings_reports, junit
from reprokit.gate.results import FAILED, NOT_CHECKED, PASSED, TROUBLE, Case, GateVerdict, TrainingResult
from reprokit.run_files.findings import Finding

BAD = "a \x00\x1b]\ud800\uffff<&> name"
CASES = (
    Case(suite="paired", name="outputs: a", outcome=PASSED),
    Case(suite="paired", name=BAD, outcome=FAILED, message=BAD, left="1", right="2"),
    Case(suite="golden", name="golden", outcome=TROUBLE, message="there is none"),
    Case(suite="varied 2", name="cores", outcome=FAILED),
    Case(suite="required", name="overhead", outcome=FAILED),
    Case(suite="required", name="finding f", outcome=FAILED, finding="f"),
    Case(suite="paired 2", name="the training", outcome=NOT_CHECKED),
)
JUDGED = TrainingResult(
    name="a",
    command=("/usr/bin/python3", "my train.py"),
    directory="/x",
    cases=CASES,
    seconds=1234.56789,
    findings=(Finding(id="f", kind="operator", subject="x", verdict="guilty"),),
)
VERDICT = GateVerdict(
    reprokit="1", started="2026-01-01T00:00:00Z", machine="", trainings=(JUDGED, JUDGED), interrupted=15
)

COUNTS = {"name", "tests", "failures", "errors", "time"}
ATTRIBUTES = {  # of junit-10.xsd of Jenkins' xUnit plugin: those that there must be, and may be
    "testsuites": (set(), COUNTS),
    "testsuite": ({"name", "tests", "failures", "errors"}, {*COUNTS, "skipped", "timestamp", "hostname"}),
    "testcase": ({"name"}, {"name", "time", "classname"}),
    "property": ({"name", "value"}, {"name", "value"}),
    "properties": (set(), set()),
    "failure": (set(), {"type", "message"}),
    "error": (set(), {"type", "message"}),
}
CHILDREN = {"testsuites": r"(testsuite )*", "testsuite": r"properties (testcase )*", "properties": r"(property )*"}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?")  # SUREFIRE_TIME


def test_junit_is_valid_for_jenkins() -> None:
    text = junit.text(VERDICT)
    root = ET.fromstring(text)
    for element in root.iter():
        required, allowed = ATTRIBUTES[element.tag]
        assert required <= set(element.keys()) <= allowed, element.tag
        tags = "".join(f"{child.tag} " for child in element)
        assert re.fullmatch(CHILDREN.get(element.tag, r"(failure |error )?"), tags), tags
        assert TIME.fullmatch(element.get("time", "0"))
    for suite in root:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
        assert suite.get("hostname")
        for kind in ("failure", "error"):
            assert suite.get(f"{kind}s") == str(len(suite.findall(f"testcase/{kind}")))
        assert suite.get("tests") == str(len(suite.findall("testcase")))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("14", "8", "4")
    assert sum(float(suite.get("time", "")) for suite in root) == float(root.get("time", ""))


def test_sarif_holds_a_result_for_every_failure() -> None:
    (run,) = findings_reports.sarif(VERDICT)["runs"]
    assert len(run["results"]) == 2 * 6
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} == rules
    assert {name.partition("/")[2] for name in rules} == {"paired", "golden", "varied", "required", "x"}
    for result in run["results"]:
        (location,) = result["locations"]  # without one GitHub refuses the file
        assert re.fullmatch(r"[A-Za-z0-9._/%-]+", location["physicalLocation"]["artifactLocation"]["uri"])
        assert len(result["message"]["text"]) > 3
    assert run["invocations"] == [
        {"executionSuccessful": False, "exitCode": 143, "exitSignalNumber": 15, "exitSignalName": "SIGTERM"}
    ]
