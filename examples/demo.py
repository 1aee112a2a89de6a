"""The demonstration behind ``make demo``: an unseeded training, bare twice, then recorded, replayed and verified.

It drives the command ``reprokit`` as a user would, in .demo/<framework>-runs.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent.resolve()
REPROKIT = str(Path(sys.executable).with_name("reprokit"))
RESULT = re.compile(r"^loss (?P<loss>\S+) correct (?P<correct>\S+) weights (?P<weights>[0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """What one training came to."""

    name: str
    weights: str
    loss: str
    correct: str
    fidelity: str = ""


def main() -> int:
    framework = sys.argv[1]
    script = HERE / f"{framework}_digits.py"
    place = HERE.parent / ".demo" / f"{framework}-runs"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    training = [sys.executable, str(script)]
    shown = f"python examples/{script.name}"

    rows = [
        train("bare, once", shown, training, place),
        train("bare, again", shown, training, place),
        train("recorded", f"reprokit record -o recorded -- {shown}", [*record(), *training], place),
        train("replayed", "reprokit replay recorded -o replayed", replay(), place, "replayed"),
    ]
    print("\n$ reprokit verify recorded replayed", flush=True)
    verified = subprocess.run([REPROKIT, "verify", "recorded", "replayed"], cwd=place, check=False).returncode
    print()
    show(rows)
    return conclude(rows, verified)


def record() -> list[str]:
    return [REPROKIT, "record", "-o", "recorded", "--"]


def replay() -> list[str]:
    return [REPROKIT, "replay", "recorded", "-o", "replayed"]


def train(name: str, shown: str, command: list[str], place: Path, run: str = "") -> Row:
    """Run one training and read what it prints at its end."""
    print(f"\n$ {shown}", flush=True)
    done = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    result = RESULT.search(done.stdout)
    if done.returncode != 0 or result is None:
        sys.exit(f"the training ended with status {done.returncode}")
    fidelity = fidelity_of(place / run) if run else ""
    return Row(name, result["weights"], result["loss"], result["correct"], fidelity)


def fidelity_of(run: Path) -> str:
    """Replay fidelity in a few words, as the run directory has it."""
    counts = json.loads((run / "run.json").read_text())["fidelity"]
    return ", ".join(f"{counts[kind]} {kind}" for kind in ("exact", "moved", "derived", "live"))


def show(rows: list[Row]) -> None:
    """The table: same digest and same loss means the same model, to the last bit."""
    print(f"{'training':12} {'weights (SHA-256)':18} {'last loss':22} {'correct':8} replay fidelity (requests)")
    for row in rows:
        print(f"{row.name:12} {row.weights[:16]:18} {row.loss:22} {row.correct:8} {row.fidelity}")


def conclude(rows: list[Row], verified: int) -> int:
    """Say what the table shows; 0 if it shows what reprokit promises."""
    first, second, recorded, replayed = (row.weights for row in rows)
    print()
    print("Without reprokit, two trainings: " + ("the same model (!)" if first == second else "two different models."))
    same = recorded == replayed and verified == 0
    print("Recorded and replayed: " + ("the same model, bit for bit." if same else "NOT the same model."))
    return 0 if same and first != second else 1


if __name__ == "__main__":
    sys.exit(main())
