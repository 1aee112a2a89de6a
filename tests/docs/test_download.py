"""What an installation is about to download is said, and CUDA is no surprise."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "download.py"


def report(directory: Path, **sizes: int) -> Path:
    """Return pip's report about files of these sizes."""
    packages: list[dict[str, object]] = []
    for name, size in sizes.items():
        file = directory / f"{name}.whl"
        with open(file, "wb") as wheel:
            wheel.truncate(size)
        metadata = {"name": name.replace("_", "-"), "version": "1.0"}
        packages.append({"metadata": metadata, "download_info": {"url": file.as_uri()}})
    checkout: dict[str, object] = {"url": directory.as_uri(), "dir_info": {"editable": True}}
    packages.append({"metadata": {"name": "reprokit-harness", "version": "0.1.0"}, "download_info": checkout})
    path = directory / "report.json"
    path.write_text(json.dumps({"version": "1", "install": packages}))
    return path


def run(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(path), *options]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_names_and_sizes_are_said_the_largest_first(tmp_path: Path) -> None:
    done = run(report(tmp_path, numpy=20_000_000, torch=1_300_000_000))
    assert (done.returncode, done.stdout) == (0, "to download, 1.3 GB: torch 1.0, numpy 1.0\n")
    missing = report(tmp_path, numpy=20_000_000, gone=1)
    (tmp_path / "gone.whl").unlink()
    assert run(missing).stdout == "to download, at least 20 MB: numpy 1.0, gone 1.0\n"
    assert run(report(tmp_path)).stdout == ""


def test_cuda_is_asked_for_or_ends_in_one_line(tmp_path: Path) -> None:
    path = report(tmp_path, torch=500_000_000, nvidia_cublas=2_500_000_000)
    done = run(path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "CUDA=1 takes them, FRAMEWORK=numpy needs none" in done.stderr
    assert done.stdout.startswith("to download, 3.0 GB: nvidia-cublas 1.0, torch 1.0")
    assert run(path, "--cuda").returncode == 0


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("\n", 2)])
def test_on_a_terminal_it_is_asked(tmp_path: Path, answer: str, status: int) -> None:
    path = report(tmp_path, nvidia_cublas=1)
    own, terminal = pty.openpty()
    os.write(own, answer.encode())
    done = subprocess.run([sys.executable, str(PROGRAM), str(path)], stdin=terminal, capture_output=True, text=True)
    assert done.returncode == status
    assert "Go on? [y/N]" in done.stdout
    os.close(own)
    os.close(terminal)
