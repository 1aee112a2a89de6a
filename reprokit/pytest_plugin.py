"""pytest plugin: a test marked ``reproducible`` is run under record and under replay, and must come to the same bits.

It runs in two processes of its own, each a pytest of this one test. What it logs (`reprokit.log`), trains and writes is
compared; a golden, where there is one for the machine, is replayed and compared too. Loaded by pytest in every project
that has reprokit installed, so that nothing heavy is imported before a marked test runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.unittest import TestCaseFunction

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from reprokit.gate.results import TrainingResult

INNER = "REPROKIT_PYTEST_INNER"  # set in the processes that run the test itself
PROPERTY = "reprokit"
OUTCOMES = ("identical", "different", "not checked")
SHOWN = 10  # differences of one test


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in a group of their own."""
    group = parser.getgroup("reprokit", "tests that train something and must repeat bit by bit")
    group.addoption("--reprokit-update", action="store_true", help="Make today's recordings the goldens.")
    group.addoption("--reprokit-skip", action="store_true", help="Run marked tests once, as if they were not marked.")
    group.addoption("--reprokit-keep", metavar="DIR", help="Keep the runs of marked tests in DIR.")
    parser.addini("reprokit_goldens", "directory of goldens, from the root of the project; none if empty", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker, and refuse options that have no effect."""
    if config.getoption("reprokit_update") and not config.getini("reprokit_goldens"):
        raise pytest.UsageError("--reprokit-update needs reprokit_goldens = DIR in the ini file")
    config.addinivalue_line(
        "markers",
        "reproducible(pairs=1, fidelity=False, patch=(), vary=(), allow_state=False): record and replay the test; its"
        " digests must be equal",
    )


@pytest.fixture
def reprokit(request: pytest.FixtureRequest) -> Script:
    """Return what a test can tell of what it trained: log, log_predictions."""
    return Script(request.node.nodeid)


class Script:
    """The functions of reprokit that a script can call."""

    def __init__(self, nodeid: str) -> None:
        from reprokit import log, log_predictions

        self.nodeid = nodeid
        self.log, self.log_predictions = log, log_predictions

    @property
    def watched(self) -> bool:
        """Whether this process is one of the runs that are compared."""
        return INNER in os.environ


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave the test's fixtures to the processes that run it."""
    if not _is_outer(item):
        return
    if not isinstance(item, pytest.Function) or isinstance(item, TestCaseFunction):
        pytest.fail(
            "reprokit: 'reproducible' is for test functions and methods, not for those of unittest", pytrace=False
        )
    item.fixturenames.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Judge a marked test in place of calling it."""
    if not _is_outer(pyfuncitem):
        return None
    _judge(pyfuncitem)
    return True


def _is_outer(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("reproducible") is not None
    return marked and INNER not in os.environ and not item.config.getoption("reprokit_skip")


def _judge(item: pytest.Function) -> None:
    """Record, replay and compare the test; fail with the differences, skip it if there is nothing to compare."""
    from reprokit.core.errors import ReprokitError
    from reprokit.core.printable import bounded
    from reprokit.gate.results import FAILED, NOTHING_COMPARED

    outcome = OUTCOMES[2]
    try:
        judged = _checked(item)
        unpassed = judged.unpassed
        if not unpassed:
            outcome = OUTCOMES[0]
            return
        if all(case.name == NOTHING_COMPARED for case in unpassed):
            pytest.skip(f"reprokit: {unpassed[0].message}")
        outcome = OUTCOMES[1] if all(case.outcome == FAILED for case in unpassed) else OUTCOMES[2]
        lines = bounded((f"{case.suite}: {case.words}" for case in unpassed), SHOWN)
        runs = [f"run: {run}" for run in judged.runs]
        pytest.fail("\n".join(["the test is not reproducible", *lines, *runs]), pytrace=False)
    except ReprokitError as error:
        pytest.fail(f"reprokit: {error}", pytrace=False)
    finally:
        item.user_properties.append((PROPERTY, outcome))


def _checked(item: pytest.Function) -> TrainingResult:
    """Return what the gate finds out about a pytest of this one test."""
    import shutil
    import tempfile

    from reprokit.gate.check import Check, GateWork
    from reprokit.gate.results import NOT_CHECKED, PASSED
    from reprokit.run.interruption import Interruption
    from reprokit.run_files.user_config import find
    from reprokit.verify.ignores import configured

    marker = item.get_closest_marker("reproducible")
    assert marker is not None
    asked = _asked(marker)
    root, config = item.config.rootpath, item.config
    goldens, keep = config.getini("reprokit_goldens"), config.getoption("reprokit_keep")
    if keep is not None:
        os.makedirs(keep, exist_ok=True)
    runs = Path(tempfile.mkdtemp(prefix="reprokit-pytest-", dir=keep)).absolute()
    training = _training(item, asked)
    work = GateWork(
        base=root,
        runs=runs,
        golden=root / goldens if goldens else None,
        update=bool(config.getoption("reprokit_update")),
        ignores=configured(find(root)),
    )
    os.environ[INNER] = "1"
    try:
        with Interruption(waits=True) as interruption:
            judged = Check(training, work, interruption, patches=asked.patch).judge()
    finally:
        del os.environ[INNER]
    if keep is None and judged.outcome() in (PASSED, NOT_CHECKED):
        shutil.rmtree(runs, ignore_errors=True)
    if judged.is_cut_short:
        pytest.exit(f"reprokit: {judged.cases[-1].message}", returncode=128 + interruption.asked)
    return judged


def _asked(marker: pytest.Mark) -> MarkerRequest:
    """Return what the marker says; a word that it does not know would be a promise that nobody keeps."""
    from reprokit.core.errors import UsageError
    from reprokit.gate.start_conditions import require_known

    try:
        asked = MarkerRequest(*marker.args, **{name: _listed(value) for name, value in marker.kwargs.items()})
    except TypeError as error:
        raise UsageError(f"the marker reproducible: {str(error).partition('() ')[2] or error}") from None
    require_known(asked.vary, "the marker reproducible: vary")
    return asked


def _listed(value: Any) -> Any:
    """Return a single name as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class MarkerRequest:
    """The arguments of a marker."""

    pairs: int = 1
    fidelity: bool = False
    patch: tuple[str, ...] = ()
    vary: tuple[Any, ...] = ()  # of the gate's names
    allow_state: bool = False


def _training(item: pytest.Function, asked: MarkerRequest) -> Any:
    from reprokit.gate.trainings import GateTraining, Requirements

    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-q"]
    if item.config.pluginmanager.get_name(sys.modules[__name__]) == __name__:
        options += ["-p", __name__]  # it was not the installed reprokit that brought it
    if item.config.inipath is not None:
        options += ["-c", os.path.relpath(item.config.inipath, item.config.rootpath)]
    command = (sys.executable, "-m", "pytest", *options, "--rootdir=.", item.nodeid)
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", item.nodeid).strip("-._")[-50:].lstrip("-._")
    name = f"{words}-{hashlib.sha256(item.nodeid.encode()).hexdigest()[:8]}"  # goldens of two tests never meet
    require = Requirements(fidelity=asked.fidelity)
    return GateTraining(
        name=name,
        command=command,
        pairs=asked.pairs,
        vary=asked.vary,
        allow_state=asked.allow_state,
        console=False,  # it is pytest that prints
        require=require,
    )


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print once more how many tests were reproducible."""
    every = (report for reports in terminalreporter.stats.values() for report in reports)
    called = (report for report in every if getattr(report, "when", "") == "call")
    counts = Counter(value for report in called for name, value in report.user_properties if name == PROPERTY)
    if counts:
        terminalreporter.section("reprokit")
        summary = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        terminalreporter.write_line(f"tests that must repeat bit by bit: {summary}")
