"""The newest release of each framework and the two before it, each tried in an environment of its own.

    python -m tests.versions [torch|others ...] [--place DIRECTORY] [--python PYTHON]

First what each release lacks of the private names that reprokit uses, then recordings and replays of whole trainings.
Prints a table. Exit status: 0 all of them pass, 1 some do not.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parent.parent
RELEASES = 3  # the newest patch of so many minor versions
GROUPS = {"torch": ("torch",), "others": ("tensorflow", "keras", "jax", "xgboost-cpu")}
TOOLS = ("setuptools>=77", "cffi>=1.15", "wheel")
NEEDED = ("pytest>=8", "pytest-xdist", "hypothesis", "jsonschema", "numpy", "scikit-learn", "h5py", "torchmetrics")
TESTS = {
    "torch": ("tests/agent/test_pytorch_private_api.py", "tests/test_trainings.py", "tests/agent/test_trail.py"),
    "others": ("tests/agent/test_tensorflow_private_api.py", "tests/test_trainings.py"),
}
SELECTED = {
    "torch": "pytorch or private_api or trail",
    "others": "not pytorch",
}
MARKS = "not (slow or extended or gpu or tf114)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the groups named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="all by default")
    parser.add_argument("--place", type=Path, default=ROOT / ".venv-versions", help="where environments are made")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args(arguments)
    results = [
        (packages, outcome)
        for group in options.groups or GROUPS
        for packages, outcome in tried(group, options.python, options.place / group)
    ]
    for packages, outcome in results:
        print(f"{' '.join(packages):<70} {outcome}")
    return int(any("passed" not in outcome or "failed" in outcome for _, outcome in results))


def tried(group: str, python: str, place: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the packages of each environment, and what came of the tests in it."""
    available = {package: releases(python, package) for package in GROUPS[group]}
    for number in range(RELEASES):
        packages = [f"{package}=={found[number]}" for package, found in available.items() if number < len(found)]
        if packages:
            yield packages, in_environment(group, packages, python, place)


def releases(python: str, package: str) -> list[Version]:
    """Return the newest patch of each of the last minor versions, the newest first."""
    listed = subprocess.run([python, "-m", "pip", "index", "versions", package], capture_output=True, text=True)
    found = re.search(r"^Available versions: (.*)$", listed.stdout, re.M)
    versions = [Version(text) for text in found[1].split(", ")] if found else []
    newest: dict[tuple[int, ...], Version] = {}
    for version in versions:
        if not version.is_prerelease and version.local is None:
            newest.setdefault(version.release[:2], version)
    return sorted(newest.values(), reverse=True)[:RELEASES]


def in_environment(group: str, packages: list[str], python: str, place: Path) -> str:
    """Make an environment with these packages, test in it and remove it, as it takes gigabytes."""
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([python, "-m", "venv", place], check=True)
    own = str(place / "bin/python")
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        for wanted in (TOOLS, (*packages, *NEEDED), ("--no-build-isolation", "-e", str(ROOT))):
            done = subprocess.run([*install, *wanted], capture_output=True, text=True)
            if done.returncode:
                return f"cannot be installed: {last_error(done.stderr)}"
        options = ["-q", "-n", "2", "-p", "no:cacheprovider", "-m", MARKS, "-k", SELECTED[group]]
        done = subprocess.run([own, "-m", "pytest", *options, *TESTS[group]], cwd=ROOT, capture_output=True, text=True)
        sys.stdout.writelines(f"{line}\n" for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
        return done.stdout.strip().splitlines()[-1].strip("= ")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def last_error(text: str) -> str:
    """Return the reason that pip gives."""
    lines = [line for line in text.splitlines() if line.startswith("ERROR")]
    return (lines or ["no reason given"])[-1][:200]


if __name__ == "__main__":
    sys.exit(main())
