"""The two overheads apart, as in the paper: patches alone, record and replay alone; and what cures of x[idx] cost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, compare, in_turn, scratch, show
from reprokit.patches import parse

TRAINING = Path(__file__).with_name("patches_training.py")
ALL = "torch-deterministic,torch-cudnn,cublas-workspace"
OVERHEADS = {"lenet": "LeNet-5, one thread", "mlp": "an MLP, one thread"}
ON_GPU = {
    "convolutions-gpu": "wide convolutions on a GPU",
    "index-gpu": "the backward of x[idx] between layers on a GPU",
}
CURES = {
    "index": ("the backward of x[idx] between layers", "torch-operator=aten::index_put_"),
    "compiled": ("index_add compiled by Inductor", "torch-operator=aten::index_add"),
}

Times = tuple[float, float]


def step_times(kind: str, patches: str, directory: Path, before: Sequence[str] = ()) -> Times:
    """Microseconds a step: on the clock, and of all processors."""
    variables: dict[str, str] = {}
    for chosen in parse([] if patches == "none" else [patches]):
        variables.update({key: text.format(value=chosen.value) for key, text in chosen.patch.variables.items()})
    environment = {**os.environ, **variables, "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    command = [*before, sys.executable, str(TRAINING), kind, patches]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    wall, processor = json.loads(done.stdout)
    return wall, processor


def report(times: dict[str, list[Times]], base: str) -> None:
    """Both clocks, run by run."""
    for part, title in enumerate(("on the clock", "of all processors")):
        results = {name: [pair[part] for pair in values] for name, values in times.items()}
        print(f" {title}")
        show(results, "us a step", base)
        if part == 0:
            for name in results:
                if name != base:
                    compare(f"{name} against {base}", results[name], results[base])


def overheads(kind: str, runs: int) -> None:
    """Patches alone, recording alone, replaying alone, and all together."""
    print(f"{OVERHEADS[kind]}; patches: {ALL}")
    with scratch() as name:
        directory = Path(name)

        def side(patches: str, *before: str) -> Callable[[], Times]:
            return lambda: step_times(kind, patches, directory, before)

        def recorded(patches: str, run: str) -> Callable[[], Times]:
            return side(patches, REPROKIT, "record", "-o", run, "--overwrite", "--")

        recorded("none", "first")()
        replay = (REPROKIT, "replay", "first", "-o", "again", "--overwrite", "--")
        sides = {
            "bare": side("none"),
            "patched": side(ALL),
            "recorded": recorded("none", "run"),
            "replayed": side("none", *replay),
            "patched and recorded": recorded(ALL, "both"),
        }
        report(in_turn(sides, runs), "bare")


def cures(kind: str, runs: int) -> None:
    """The global switch, one operator, and one thread."""
    title, operator = CURES[kind]
    print(f"{title}, two threads")
    names = ("none", "torch-deterministic", "torch-deterministic-fill", operator, "threads=1")
    with scratch() as name:
        directory = Path(name)

        def side(patches: str) -> Callable[[], Times]:
            return lambda: step_times(kind, patches, directory)

        sides = {patches: side(patches) for patches in names}
        report(in_turn(sides, runs), "none")


def on_gpu(kind: str, runs: int) -> None:
    """The switches of determinism, one by one."""
    print(ON_GPU[kind])
    names = ("none", "torch-deterministic", "torch-cudnn", "cublas-workspace", ALL)
    with scratch() as name:
        directory = Path(name)

        def side(patches: str) -> Callable[[], Times]:
            return lambda: step_times(kind, patches, directory)

        report(in_turn({patches: side(patches) for patches in names}, runs), "none")


def main(runs: int) -> None:
    for kind in OVERHEADS:
        overheads(kind, runs)
    for kind in CURES:
        cures(kind, runs)
    for kind in ON_GPU:
        if shutil.which("nvidia-smi") is None:
            print(f"{ON_GPU[kind]}: not measured, as there is no GPU")
        else:
            on_gpu(kind, runs)
