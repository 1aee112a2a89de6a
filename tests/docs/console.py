"""Runs the ```console blocks of a page as its reader would, and compares what they print.

A line `$ COMMAND` is run by bash in one directory, with both outputs together. The lines below it must be what it
prints: `...` within a line stands for anything, a line of it for any lines. Without such lines it must exit with 0.
A block with a title, as ```python title="train.py", is a file of that name.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.support import COMMAND, LIMIT

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def run_page(name: str, directory: Path) -> int:
    """Run a page of docs; returns how many commands it has."""
    count = 0
    for block in BLOCK.finditer((DOCS / name).read_text()):
        if block["title"]:
            path = directory / block["title"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"])
        elif block["kind"] == "console":
            for command, _, printed in (part.partition("\n") for part in re.split(r"^\$ ", block["text"], flags=re.M)):
                if command:
                    run_command(command, printed, directory)
                    count += 1
    return count


def run_command(command: str, printed: str, directory: Path) -> None:
    """Run one command, and compare its exit status or what it prints."""
    environment = {**os.environ, "COLUMNS": "100", "PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=4 * LIMIT,
    )
    text = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
    if printed:
        assert re.fullmatch(pattern(printed), text), f"$ {command}\nthe page has:\n{printed}\nit prints:\n{text}"
    else:
        assert done.returncode == 0, f"$ {command}\n{text}"


def pattern(printed: str) -> str:
    """Return what the output must match."""
    lines = printed.splitlines()
    return "".join(
        r"(?:.*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.split("..."))) + r"\n" for line in lines
    )
