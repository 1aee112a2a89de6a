"""LeNet-5 bare, recorded and replayed in turn, with the paper's tests; and what a run takes on disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.measure import Sides, compare, in_turn, scratch, show

LENET = Path(__file__).parent.parent / "examples" / "lenet_pytorch.py"


def sizes(directory: Path) -> None:
    """The random profile against the model, and the whole run directory."""
    profile = json.loads((directory / "first" / "run.json").read_text())["profile"]
    outputs = json.loads((directory / "first" / "outputs.json").read_text())["files"]
    model = sum(file["size"] for file in outputs)
    total = sum(path.stat().st_size for path in (directory / "first").rglob("*") if path.is_file())
    print(f"  random profile: {profile['entropy']} bytes of entropy in {profile['size']} bytes on disk")
    print(f"  the model: {model} bytes; profile / model = {profile['size'] / model:.3f}")
    print(f"  the whole run directory: {total} bytes")


def main(runs: int) -> None:
    with scratch() as name:
        directory = Path(name)
        results = in_turn(Sides([sys.executable, str(LENET)], directory).all(), max(runs, 16))
        print("LeNet-5 on scikit-learn's digits, PyTorch")
        show(results, "s", "bare")
        compare("recorded against bare", results["recorded"], results["bare"])
        compare("replayed against bare", results["replayed"], results["bare"])
        sizes(directory)
