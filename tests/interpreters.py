"""The Pythons of this machine that the agent must work in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

VERSIONS = ("3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
ROOT = Path(__file__).resolve().parent.parent


@cache
def interpreter(version: str) -> str | None:
    """A CPython of this version that starts: of pyenv, or python3.X of the PATH."""
    candidates = sorted(_pyenv_versions().glob(f"{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    for candidate in [*map(str, candidates), *([on_path] if on_path else [])]:
        command = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.stdout.strip() == version:
            return candidate
    return None


def available() -> dict[str, str]:
    """Every version from 3.7 on that this machine has, the running one included."""
    running = "{}.{}".format(*sys.version_info)
    found = {version: sys.executable if version == running else interpreter(version) for version in VERSIONS}
    return {version: path for version, path in found.items() if path}


def tf114_python() -> str | None:
    """The Python 3.7 that has TensorFlow 1.14."""
    named = os.environ.get("REPROKIT_TF114_PYTHON")
    beside = ROOT / ".venv-tf114" / "bin" / "python"
    return named or (str(beside) if beside.exists() else None)


def lacking(python: str, names: list[str]) -> set[str]:
    """Which of these private names the frameworks of this Python lack."""
    script = ROOT / "tests" / "trainings" / "private_names.py"
    done = subprocess.run([python, script], input=json.dumps(names), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def _pyenv_versions() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
