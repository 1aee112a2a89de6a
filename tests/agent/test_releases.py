"""The newest release of each framework and the two before it, each tried in an environment of its own.

First what a release lacks of the private names that the agent uses, then trainings: each is recorded, and its replay is
equal to it. tests/test_trainings.py shows that they vary by themselves.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.version import Version

from reprokit.agent.operators.jax import log as jax_calls
from tests.agent import test_pytorch_private_api as pytorch
from tests.agent import test_tensorflow_private_api as tensorflow
from tests.interpreters import ROOT, lacking
from tests.support import Done, Reprokit
from tests.test_trainings import TENSORFLOW, Training, recorded_and_replayed, script

RELEASES = 3
UNUSED = "triton\nnvidia-cusolver\n"  # large, and PyTorch never loads them on a CPU


@dataclass(frozen=True)
class Frameworks:
    """What is tried together: packages, private names, and trainings with what verify must compare of each."""

    packages: tuple[str, ...]
    names: list[str]
    either: tuple[str, ...]  # of which each release has one
    trainings: dict[str, tuple[Training, set[str]]]


TRIED = {
    "torch": Frameworks(
        ("torch",),
        pytorch.NEWEST,
        (),
        {"pytorch": (script("pytorch_workers.py", "2", "fork"), {"samples", "trail", "process metrics", "weights"})},
    ),
    "others": Frameworks(
        ("tensorflow", "keras", "jax", "xgboost-cpu" if platform.machine() == "x86_64" else "xgboost"),
        [*tensorflow.NEWEST, *jax_calls.PRIVATE_NAMES],
        jax_calls.EITHER,
        {
            "keras": (script("keras_cnn.py", **TENSORFLOW), {"trail", "process metrics", "weights"}),
            "tf-function": (script("tensorflow_function.py", **TENSORFLOW), {"trail", "weights"}),
            "jax": (script("jax_dropout.py"), {"seeds"}),
            "xgboost": (script("xgboost_digits.py"), {"seeds", "trail", "outputs"}),
        },
    ),
}


def uv(place: Path, *arguments: str | Path, stdin: str = "") -> Done:
    environment = {**os.environ, "UV_CACHE_DIR": str(place / "cache")}
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    return subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)


def newest(place: Path, wanted: list[str]) -> Done:
    """Ask for the newest release of each package."""
    options = ("--quiet", "--no-deps", "--no-header", "--no-annotate", "--python", sys.executable)
    return uv(place, "pip", "compile", *options, "-", stdin="\n".join(wanted))


def releases(place: Path, packages: tuple[str, ...], before: int) -> dict[str, Version]:
    """The newest patch of each, of so many minor versions before the newest."""
    wanted, found = list(packages), {}
    for _ in range(before + 1):
        done = newest(place, wanted)
        if done.returncode and wanted == list(packages):
            assert newest(place, []).returncode == 0, done.stderr  # which asks no index
            pytest.skip(f"no index has {packages} (UV_DEFAULT_INDEX would name another): {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        found = {name: Version(text) for name, text in re.findall(r"^(\S+)==(\S+)$", done.stdout, re.M)}
        wanted = [f"{name}<{release.major}.{release.minor}" for name, release in found.items()]
    return found


def is_installed(name: str, release: Version) -> bool:
    """Whether the tests beside this one run with it."""
    try:
        return Version(version(name)).public == release.public
    except PackageNotFoundError:
        return False


def environment(place: Path, wanted: dict[str, Version]) -> str:
    """Return a Python that has these packages: this one, or one in an environment of its own."""
    if all(is_installed(name, release) for name, release in wanted.items()):
        return sys.executable
    (place / "unused.txt").write_text(UNUSED)
    python = place / "bin" / "python"
    packages = [f"{name}=={release}" for name, release in wanted.items()]
    made = uv(place, "venv", "--quiet", "--allow-existing", "--python", sys.executable, place)
    assert made.returncode == 0, made.stderr
    options = ("--quiet", "--python", python, "--excludes", place / "unused.txt")
    installed = uv(place, "pip", "install", *options, *packages, "scikit-learn")
    assert installed.returncode == 0, installed.stderr
    return str(python)


@pytest.fixture(scope="session")
def removals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Removals beside the next tests: a minute of waiting each, on a disk that discards blocks at once."""
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for removal in begun:
        assert removal.wait() == 0


@pytest.fixture
def place(request: pytest.FixtureRequest, removals: list[subprocess.Popen[bytes]]) -> Iterator[Path]:
    """A directory for an environment of gigabytes."""
    path = ROOT / ".venv-versions" / request.node.callspec.id
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    removals.append(subprocess.Popen(["rm", "-rf", path]))


@pytest.mark.slow
@pytest.mark.parametrize("group", [pytest.param("torch", marks=pytest.mark.extended), "others"])
@pytest.mark.parametrize("before", [0, *(pytest.param(n, marks=pytest.mark.extended) for n in range(1, RELEASES))])
def test_release(group: str, before: int, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # what is compiled once need not be again
    monkeypatch.delenv("PYTHONPATH")  # of this environment
    frameworks = TRIED[group]
    wanted = releases(place, frameworks.packages, before)
    print(wanted)  # where it fails
    python = environment(place, wanted)
    assert lacking(python, frameworks.names) == set()
    assert len(lacking(python, list(frameworks.either))) == max(0, len(frameworks.either) - 1)
    if python == sys.executable:
        return  # in which all the other tests train
    for name, (training, compared) in frameworks.trainings.items():
        (tmp_path / name).mkdir()
        reprokit = Reprokit(tmp_path / name)
        of_release = replace(training, command=[python, *training.command[1:]])
        _, verdicts = recorded_and_replayed(of_release, reprokit)
        assert {category: verdicts[category] for category in compared} == dict.fromkeys(compared, "identical")
        assert reprokit.facts("recorded")["warnings"] == []
