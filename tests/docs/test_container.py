"""The Containerfile is built and run where a container tool works; elsewhere its steps are, in a fresh environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).parents[2]
INSTRUCTION = re.compile(r"^([A-Z]+)\s+(.*)$", re.MULTILINE)
KEPT = re.compile(r"PIP_|SSL_|(?:https?|no)_proxy$", re.IGNORECASE)  # of the environment: how packages are had here
LIMIT = 1200  # seconds of one step


def instructions() -> list[tuple[str, str]]:
    return INSTRUCTION.findall(ROOT.joinpath("Containerfile").read_text().replace("\\\n", " "))


def working_tool(base: str) -> str | None:
    """Return the container tool that can have the base image; None if there is none."""
    for tool in filter(shutil.which, ("podman", "docker")):
        try:
            if subprocess.run([tool, "pull", base], capture_output=True, timeout=LIMIT, check=False).returncode == 0:
                return tool
        except subprocess.TimeoutExpired:
            continue
    return None


def ignored(directory: str, names: list[str]) -> set[str]:
    """Return which names .dockerignore keeps out of the build."""
    place = PurePath(os.path.relpath(directory, ROOT))
    patterns = ROOT.joinpath(".dockerignore").read_text().split()
    return {
        name
        for name in names
        if any(fnmatchcase(name if p[:3] == "**/" else str(place / name), p.removeprefix("**/")) for p in patterns)
    }


def packages_exist(command: str) -> None:
    """Ask apt for the packages of a step, and install none."""
    found = re.match(r"apt-get update && apt-get install ([^&]+) && rm -rf /var/lib/apt/lists/\*$", command)
    assert found, f"not a step that this test knows: {command}"
    if shutil.which("apt-get") and any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        simulated = ["apt-get", "install", "--simulate", *shlex.split(found[1])]
        done = subprocess.run(simulated, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def by_its_steps(tmp_path: Path) -> str:
    """Run each step in a copy with an environment of its own; return what the last one printed."""
    base = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    environment = {name: value for name, value in os.environ.items() if KEPT.match(name)}
    environment |= {"PATH": base, "HOME": str(tmp_path)}
    place, printed = tmp_path, ""
    for instruction, rest in instructions():
        if instruction == "WORKDIR":
            place = tmp_path / rest.lstrip("/")
        elif instruction == "COPY":
            assert rest == ". ."
            shutil.copytree(ROOT, place, ignore=ignored, symlinks=True)
        elif rest.startswith("apt-get"):
            packages_exist(rest)
        elif instruction in ("RUN", "CMD"):
            command = (
                ["/bin/sh", "-c", rest] if instruction == "RUN" else shlex.split(rest.strip("[]").replace(",", ""))
            )
            done = subprocess.run(
                command, cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            printed = done.stdout
        else:
            assert instruction == "FROM", f"not an instruction that this test knows: {instruction}"
    return printed


@pytest.mark.slow
def test_the_container_runs_the_demo(tmp_path: Path) -> None:
    steps = instructions()
    assert [name for name, _ in steps if name in ("FROM", "CMD")] == ["FROM", "CMD"]
    tool = working_tool(steps[0][1])
    if tool is None:
        printed = by_its_steps(tmp_path)
    else:
        subprocess.run([tool, "build", "-t", "reprokit-test", "."], cwd=ROOT, timeout=LIMIT, check=True)
        command = [tool, "run", "--rm", "reprokit-test"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    assert "Recorded and replayed: the same model, bit for bit." in printed
