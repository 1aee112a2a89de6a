"""What every test may use: the installed command, and which tests a machine can run at all."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.object_store import ObjectStore, serving
from tests.slurm import Slurm, one_node
from tests.support import PLAIN_IMPORTS, SERVER, Reprokit

sys.dont_write_bytecode = False  # the second worker, and make test-all, need not rewrite all assertions again
importlib.import_module("tests.plain_imports.sitecustomize")  # frameworks start in half the time here too
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment] # jsonschema would build 38 grammars, for 3 seconds

# The same examples each time, and as long as a busy machine needs; tests/fuzz looks for others.
settings.register_profile("tests", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What reprokit keeps for later runs is kept out of the user's own cache, and shared by all workers."""
    os.environ["PYTHONPATH"] = PLAIN_IMPORTS
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin take the other worker's processor
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:  # of a background job, or of nohup; programs would inherit it
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.getbasetemp().parent / "reprokit-cache")
    SERVER.prepare(os.environ)


@pytest.fixture
def reprokit(tmp_path: Path) -> Reprokit:
    """The installed command, run in a directory of the test's own."""
    return Reprokit(tmp_path)


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """A store that speaks S3, a process on this machine."""
    with serving() as store:
        yield store


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of this machine alone."""
    with one_node(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for garbage neither while thousands of tests are collected, nor later among them, and seldom in each."""
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip only what this machine cannot have: a GPU, an interpreter of 2018."""
    missing = {}
    if not os.environ.get("REPROKIT_TF114_PYTHON"):
        missing["tf114"] = "REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14; make test-all makes one"
    if shutil.which("nvidia-smi") is None:
        missing["gpu"] = "this machine has no NVIDIA GPU"
    for item in items:
        for name, reason in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))
