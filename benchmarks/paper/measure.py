"""Runs the studies one after the other, going on where they stopped, and writes the tables of results.md."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from benchmarks.measure import REPROKIT, machine
from benchmarks.paper import tables

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGE = HERE / "results.md"
OLD = ROOT / ".venv-tf114" / "bin" / "python"
PYTHONS = (OLD, ROOT / ".venv" / "bin" / "python")
DATA = ROOT / ".reprokit" / "paper"
STUDIES = ROOT / ".reprokit" / "studies"
MODELS = {"LeNet-1": "lenet-1", "LeNet-4": "lenet-4", "LeNet-5": "lenet-5", "LSTM": "lstm"}


def study(name: str, directory: Path, quick: bool) -> None:
    """Run a study or the rest of it; one with a failed run is told of in its tables."""
    command = [REPROKIT, "study", "run", str(HERE / f"{name}.toml"), "-o", str(directory / name)]
    done = subprocess.run([*command, "--runs", "2"] if quick else command, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"the study {name} ended with {done.returncode}; the same command goes on with it")


def prepare() -> None:
    """Look for both Pythons, and let the older write the data."""
    for python in PYTHONS:
        if not python.exists():
            raise SystemExit(f"{python} is missing: 'make test-all' makes both environments")
    subprocess.run([OLD, HERE / "data.py", DATA], check=True)


def write(directory: Path, page: Path | None) -> None:
    """Print the tables of all studies that were begun, and put them into the page."""
    from reprokit.study.analysis import analyze

    begun = {model: directory / name for model, name in MODELS.items() if (directory / name / "study.json").exists()}
    text = tables.tables({model: analyze(study) for model, study in begun.items()})
    print(f"\n{text}")
    if page is not None:
        where = f"Taken on {time.strftime('%Y-%m-%d', time.gmtime())}: {machine()}."
        tables.fill(page, f"{where}\n\n{text}")
        print(f"written to {page}")


def main(quick: bool, only_tables: bool) -> None:
    """All studies, then their tables; quick: one pair of each setup, which leaves the page as it is."""
    directory = STUDIES / "paper-quick" if quick else STUDIES
    if not only_tables:
        prepare()
        for model, name in MODELS.items():
            print(f"\n-- {model}", flush=True)
            study(name, directory, quick)
    write(directory, None if quick else PAGE)
