"""The tests of CPython, NumPy, mpi4py and gloo's collectives, run bare, recorded and replayed: the same outcomes.

    python -m tests.compatibility [SUITE ...] [--python PYTHON]

A test that fails bare has to fail recorded as well, and one that is skipped to be skipped. A test that
ends in two ways in two bare runs is named and not compared. Exit status: 0 the same, 1 different.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import COMMAND

CPYTHON = (
    "test_os", "test_random", "test_uuid", "test_secrets", "test_tempfile", "test_subprocess", "test_threading",
    "test_fork1", "test_ssl", "test_multiprocessing_fork", "test_multiprocessing_spawn",
)  # fmt: skip
NUMPY = "numpy.random"
MPI4PY = {  # its files by what they test; two ranks of each. Open MPI may hang, bare too, if one process runs them all.
    "mpi4py.collectives": "test_cco_*.py",
    "mpi4py.messages": "test_p2p_*.py",
    "mpi4py.objects": "test_[mot]*.py test_s[!p]*.py",
    "mpi4py.pools": "test_util_p*.py",
    "mpi4py.spawn": "test_spawn.py",
    "mpi4py.tools": "test_ulfm.py test_util_[!p]*.py",
    "mpi4py.windows": "test_r*.py",
}
GLOO = "gloo"  # torch's own tests of collectives, of two processes each
RANKS = Path(__file__).parent.parent / ".venv-mpi"
OF_RANKS = {  # plugins of pytest ask the system in an order of their own; Open MPI refuses root by itself
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    **{f"{system}_ALLOW_RUN_AS_ROOT{word}": "1" for system in ("OMPI", "PRTE") for word in ("", "_CONFIRM")},
}
LIMIT = 3600  # seconds; on a busy machine the longest suite takes a good part of it

# Tests that look at what reprokit has to change: each with the reason why that is right.
EXPECTED: dict[str, str] = {}

Outcomes = dict[str, str]  # test to passed, failed, error or skipped


@dataclass
class Comparison:
    """How one suite went bare, and in what a recording and two replays differed."""

    suite: str
    tests: int = 0
    unsteady: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the suites named, or all; print what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.compatibility", description=__doc__.split("\n")[0])
    known = (*CPYTHON, NUMPY, *MPI4PY, GLOO)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--python", default=sys.executable, help="the interpreter whose tests are run")
    options = parser.parse_args(arguments)
    different = False
    for suite in options.suites or known:
        if not has_suite(options.python, suite):
            print(f"{suite}: not there: this distribution of Python lacks it", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="compatibility-") as directory:
            comparison = compare(options.python, suite, Path(directory))
        report(comparison)
        different = different or bool(comparison.different)
    return int(different)


def has_suite(python: str, suite: str) -> bool:
    """Whether the suite is there: some distributions leave the package out, and make installs what ranks need."""
    if suite in MPI4PY or suite == GLOO:
        return (RANKS / "mpi4py" / "setup.py").exists()
    module = suite if suite == NUMPY else f"test.{suite}"
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def compare(python: str, suite: str, directory: Path) -> Comparison:
    """Run a suite twice bare, recorded, and twice replayed."""
    recording = str(directory / "recorded")
    first, second = (run(python, suite, directory, []) for _ in range(2))
    comparison = Comparison(suite, len(first))
    comparison.unsteady = [test for test in first | second if first.get(test) != second.get(test)]
    ways = {
        "record": ["record", "-o", recording, "--"],
        "replay": ["replay", recording, "-o", str(directory / "replayed"), "--"],
        "replay again": ["replay", recording, "-o", str(directory / "again"), "--"],
    }
    for way, prefix in ways.items():
        note_differences(comparison, way, first, run(python, suite, directory, [COMMAND, *prefix]))
    return comparison


def note_differences(comparison: Comparison, way: str, bare: Outcomes, outcomes: Outcomes) -> None:
    """Sort every test that went otherwise than bare into expected and different."""
    for test in bare | outcomes:
        before, now = bare.get(test, "not run"), outcomes.get(test, "not run")
        if before == now or test in comparison.unsteady:
            continue
        line = f"{test}: {before} bare, {now} under {way}"
        reason = next((reason for name, reason in EXPECTED.items() if test.endswith(name)), None)
        if reason:
            comparison.expected.append(f"{line}: {reason}")
        else:
            comparison.different.append(line)


def run(python: str, suite: str, directory: Path, prefix: list[str]) -> Outcomes:
    """One run of a suite, under the command that stands before it."""
    result = directory / "result.xml"
    for old in directory.glob("result.xml*"):
        old.unlink()
    done = subprocess.run(
        [*prefix, *command(python, suite, result)],
        cwd=directory,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(OF_RANKS if suite in MPI4PY or suite == GLOO else {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    results = sorted(directory.glob("result.xml*"))
    if not results:
        sys.exit(f"{suite} wrote no results (exit status {done.returncode}): {done.stderr.decode(errors='replace')}")
    return read_outcomes(results)


def command(python: str, suite: str, result: Path) -> list[str]:
    """How a suite is started, so that it writes its results in JUnit's format."""
    if suite == NUMPY:
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={result}"]
        return [python, "-m", "pytest", "--pyargs", suite, *options]
    own = str(RANKS / "bin" / "python")
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore"]
    if suite in MPI4PY:
        tests = RANKS / "mpi4py" / "test"
        files = [str(path) for pattern in MPI4PY[suite].split() for path in sorted(tests.glob(pattern))]
        rank = 'result=$1; shift; exec "$0" -m pytest --junitxml="$result.$OMPI_COMM_WORLD_RANK" "$@"'
        ranks = [str(RANKS / "bin" / "mpirun"), "--oversubscribe", "-n", "2"]
        return [*ranks, "sh", "-c", rank, own, str(result), *options, *files]
    if suite == GLOO:
        return [
            own,
            "-m",
            "pytest",
            f"--junitxml={result}",
            *options,
            str(Path(__file__).with_name("gloo_collectives.py")),
        ]
    return [python, "-m", "test", f"--junit-xml={result}", suite]


def read_outcomes(paths: Sequence[Path]) -> Outcomes:
    """The outcome of every test; the worse one where a name occurs twice, as of ranks."""
    order = ("skipped", "passed", "failure", "error")
    outcomes: Outcomes = {}
    for case in (case for path in paths for case in ElementTree.parse(path).iter("testcase")):
        name = f"{case.get('classname', '')} {case.get('name', '')}".strip()
        tags = {child.tag for child in case} & set(order) or {"passed"}
        outcomes[name] = max(*tags, outcomes.get(name, "skipped"), key=order.index)
    return outcomes


def report(comparison: Comparison) -> None:
    """One line, and one for each test that is no plain match."""
    print(f"{comparison.suite}: {comparison.tests} tests, {len(comparison.different)} differences", flush=True)
    for title in ("unsteady", "expected", "different"):
        for line in getattr(comparison, title):
            print(f"  {title}: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
