"""Makes the pictures of docs/images from real runs: `python -m tests.pictures DIRECTORY`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.browser import browser, opened
from tests.support import COMMAND

TRAINING = Path(__file__).parents[1] / "examples" / "pytorch_digits.py"
WIDTH = 118  # columns
LINES = 14


def printed(directory: Path, *arguments: str) -> str:
    """Run reprokit, and return what it prints."""
    environment = {**os.environ, "COLUMNS": str(WIDTH)}
    done = subprocess.run([COMMAND, *arguments], cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
    return done.stdout.replace(sys.base_prefix, "/usr")  # where this machine has Python is nobody's concern


def screen(commands: dict[str, str], path: Path) -> None:
    """Draw commands and what they print as a terminal shows it, cut at its right end."""
    with open(os.devnull, "w") as nothing:
        console = Console(record=True, width=WIDTH, file=nothing)
        for command, output in commands.items():
            console.print(Text(f"$ {command}", style="bold"))
            for line in output.splitlines()[:LINES]:
                console.print(Text(line), no_wrap=True, overflow="ellipsis")
        drawn = console.export_svg(title="reprokit verify", unique_id="verify")
        path.write_text(
            re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
        )  # fonts from elsewhere are not fetched


def main(images: Path) -> None:
    """Record, replay and record again, and make a picture of what verify and report say of it."""
    images.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "train.py").write_text(TRAINING.read_text())
        printed(directory, "record", "-o", "run1", "--", "python", "train.py")
        printed(directory, "replay", "run1", "-o", "run2")
        printed(directory, "record", "-o", "run3", "--", "python", "train.py")
        pairs = [f"verify run1 {other}" for other in ("run2", "run3")]
        screen({f"reprokit {pair}": printed(directory, *pair.split()) for pair in pairs}, images / "verify.svg")
        printed(directory, "report", "run1", "run3", "-o", "report.html")
        with browser() as chromium, opened(chromium, directory / "report.html", "light", 1280) as page:
            page.screenshot(path=str(images / "report-top.png"))
            curves = page.locator("section[aria-labelledby=curves] figure").first
            curves.screenshot(path=str(images / "report-loss.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
