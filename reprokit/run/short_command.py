"""Runs a command that ends soon, to see whether a program works here."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


def tried(
    arguments: list[str], limit: float, *, env: Mapping[str, str] | None = None, directory: str | None = None
) -> tuple[str, str]:
    """Run a command; return its output, and the last line of its error output, empty on success."""
    process = subprocess.run(
        arguments,
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        check=False,
    )
    lines = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
    return process.stdout.strip(), "" if process.returncode == 0 else lines[-1]
