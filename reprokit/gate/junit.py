"""Writes a verdict as JUnit XML: a suite per training and kind of check, a case per artifact and metric.

It follows the strictest reader, Jenkins' xUnit plugin (junit-10.xsd), and Ant's older schema: properties come first,
times have three decimals, time stamps no zone.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Sequence

from reprokit.core.printable import printable
from reprokit.gate.results import FAILED, PASSED, Case, GateVerdict, TrainingResult

LONGEST = 4000  # characters of one text


def text(verdict: GateVerdict) -> str:
    """Return the file's content."""
    root = ET.Element("testsuites", name="reprokit gate")
    for training in verdict.trainings:
        suites: dict[str, list[Case]] = defaultdict(list)
        for case in training.cases:
            suites[case.suite].append(case)
        seconds = training.seconds  # of all runs together: the first suite bears them
        for name, cases in suites.items():
            root.append(_suite(verdict, training, name, cases, seconds))
            seconds = 0.0
    every = [case for training in verdict.trainings for case in training.cases]
    root.attrib.update(_counts(every), time=_seconds(sum(training.seconds for training in verdict.trainings)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(
    verdict: GateVerdict, training: TrainingResult, name: str, cases: Sequence[Case], seconds: float
) -> ET.Element:
    suite = ET.Element("testsuite", name=f"{training.name}: {name}")
    suite.attrib.update(
        _counts(cases),
        skipped="0",
        time=_seconds(seconds),
        timestamp=verdict.started.rstrip("Z"),
        hostname=os.uname().nodename,
    )
    properties = ET.SubElement(suite, "properties")
    for key, value in _facts(verdict, training):
        ET.SubElement(properties, "property", name=key, value=printable(value, LONGEST))
    for case in cases:
        suite.append(_case(training, case, seconds))
        seconds = 0.0
    return suite


def _facts(verdict: GateVerdict, training: TrainingResult) -> Iterator[tuple[str, str]]:
    yield "reprokit", verdict.reprokit
    yield "directory", training.directory
    yield from (("note", note) for note in training.notes)
    yield from (("ignored", str(use)) for use in training.ignores)


def _case(training: TrainingResult, case: Case, seconds: float) -> ET.Element:
    name, group = printable(case.name, LONGEST), f"{training.name}.{case.suite}"
    element = ET.Element("testcase", name=name, classname=group, time=_seconds(seconds))
    if case.outcome != PASSED:
        kind = "failure" if case.outcome == FAILED else "error"  # what is not checked is never green
        result = ET.SubElement(element, kind, type=case.outcome, message=printable(case.message, LONGEST))
        result.text = printable(f"first: {case.left}\nsecond: {case.right}".replace("\n", "; "), LONGEST)
    return element


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    failed = sum(case.outcome == FAILED for case in cases)
    errors = sum(case.outcome not in (FAILED, PASSED) for case in cases)
    return {"tests": str(len(cases)), "failures": str(failed), "errors": str(errors)}


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"
