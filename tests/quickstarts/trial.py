"""Tries a quick start: bare twice, recorded, replayed and compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.quickstarts.table import QuickStart
from tests.support import COMMAND

ENVIRONMENT = Path(os.environ.get("REPROKIT_QUICKSTARTS") or Path(__file__).parents[2] / ".venv-quickstarts")
LIMIT = 600  # seconds for one command on a busy machine
_RESULT = re.compile(r"RESULT (.*)")


class Outcome(Enum):
    """What came of a quick start."""

    IDENTICAL = "identical"
    ADVISED = "identical, as advised"
    VARIES = "its training does not repeat, and verify says so"
    WRONG = "wrong"  # verify and the results contradict each other, or a command failed


@dataclass(frozen=True)
class Trial:
    """The outcome of a quick start, and what was seen of it."""

    start: QuickStart
    outcome: Outcome
    varies_bare: bool  # whether two bare executions had different results
    text: str  # verify's words, or what failed


def try_out(start: QuickStart, directory: Path) -> Trial:
    """Execute a quick start in directories of its own below `directory`."""
    results = [_bare(start, directory / name) for name in ("bare-1", "bare-2")]
    varies = results[0] != results[1]
    trial = _compared(start, directory / "default", ())
    if trial[0] is Outcome.WRONG and start.advised and all(option in trial[1] for option in start.advised):
        outcome, text = _compared(start, directory / "advised", start.advised)
        trial = (Outcome.ADVISED if outcome is Outcome.IDENTICAL else outcome), text
    return Trial(start, trial[0], varies, trial[1])


def _compared(start: QuickStart, place: Path, options: tuple[str, ...]) -> tuple[Outcome, str]:
    """Record, replay and verify; return the outcome with verify's output."""
    runs = place.with_name(f"{place.name}-runs")
    runs.mkdir(parents=True)
    first, again = str(runs / "first"), str(runs / "again")
    recorded = _execute(start, place, (COMMAND, "record", *options, "-o", first, "--", *start.command))
    recorded_result = _result(start, recorded, place)
    replayed = _command(place, (COMMAND, "replay", first, "-o", again))
    verified = _command(place, (COMMAND, "verify", first, again))
    text = verified.stdout + verified.stderr
    results = recorded_result, _result(start, replayed, place)
    if recorded.returncode or replayed.returncode or not all(results):
        return (
            Outcome.WRONG,
            f"status {recorded.returncode} and {replayed.returncode}\n{recorded.stderr}{replayed.stderr}{text}",
        )
    if results[0] != results[1]:
        outcome = Outcome.VARIES if verified.returncode == 1 else Outcome.WRONG
        return outcome, f"{results[0]!r} and {results[1]!r}\n{text}"
    return Outcome.IDENTICAL if verified.returncode == 0 else Outcome.WRONG, text


def _execute(start: QuickStart, place: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    place.mkdir(parents=True)
    for file in start.files:
        shutil.copy(file, place)
    for preparation in start.prepared_by:
        subprocess.run(preparation, cwd=place, env=_environment(place), check=True, capture_output=True, timeout=LIMIT)
    return _command(place, command)


def _command(place: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=place, env=_environment(place), capture_output=True, text=True, errors="replace", timeout=LIMIT
    )


def _environment(place: Path) -> dict[str, str]:
    """Return variables with a home directory of this trial's own, and no word to a server."""
    home = place.parent / "home"
    home.mkdir(exist_ok=True)
    return {
        **os.environ,
        "PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "USER": "tester",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "DVC_NO_ANALYTICS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _bare(start: QuickStart, place: Path) -> str:
    return _result(start, _execute(start, place, start.command), place)


def _result(start: QuickStart, done: subprocess.CompletedProcess[str], place: Path) -> str:
    """Return what the quick start printed as its result; an empty text if it did not."""
    texts = [done.stdout, done.stderr]
    with suppress(OSError):
        texts.append((place / start.result_in).read_text() if start.result_in else "")
    return next((match[1] for match in map(_RESULT.search, texts) if match), "")
