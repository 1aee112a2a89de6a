"""Fixtures: the shim, and the tiny programs that it is tried on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.harness import SOURCES, Shim
from tests.native_sources import NATIVE


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    return Shim(tmp_path / "runs")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Compile one of the sources beside this file, once a session."""
    directory = tmp_path_factory.mktemp("programs")

    def compile_source(name: str, *options: str, output: str | None = None) -> str:
        program = directory / (output or name.replace(".", "-"))
        if not program.exists():
            compiler = "g++" if name.endswith(".cpp") else "gcc"
            command = [
                compiler,
                "-D_GNU_SOURCE",
                "-O1",
                "-Wall",
                f"-I{NATIVE}",
                str(SOURCES / name),
                "-o",
                str(program),
            ]
            subprocess.run([*command, "-lpthread", *options], check=True)
        return str(program)

    return compile_source
