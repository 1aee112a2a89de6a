"""A verdict as JUnit XML: a suite for each training and kind of check, a case for each artifact and metric."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from reprokit.errors import ExtraMissing
from reprokit.gate.results import FAILED, TROUBLE, Case, Verdict
from reprokit.printable import printable

LONGEST = 4000  # characters of one text


def write(verdict: Verdict, path: Path) -> None:
    """Write the file."""
    try:
        import junitparser
    except ImportError:
        raise ExtraMissing("JUnit XML needs junitparser: pip install 'reprokit-harness[gate]'") from None
    document = junitparser.JUnitXml("reprokit gate")
    for training in verdict.trainings:
        suites: dict[str, list[Case]] = defaultdict(list)
        for case in training.cases:
            suites[case.suite].append(case)
        seconds = training.seconds  # of all runs together: the first case bears them
        for name, cases in suites.items():
            suite = junitparser.TestSuite(f"{training.name}: {name}")
            suite.timestamp = verdict.started
            for case in cases:
                made = junitparser.TestCase(printable(case.name, LONGEST), classname=f"{training.name}.{name}")
                made.time, seconds = seconds, 0.0
                made.result = [_result(junitparser, case)] if case.outcome in (FAILED, TROUBLE) else []
                suite.add_testcase(made)
            document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    document.write(str(path), pretty=True)


def _result(library, case: Case):  # type: ignore[no-untyped-def]  # of junitparser
    kind = library.Failure if case.outcome == FAILED else library.Error
    result = kind(printable(case.message, LONGEST), case.outcome)
    result.text = printable(f"first: {case.left}\nsecond: {case.right}".replace("\n", "; "), LONGEST)
    return result
