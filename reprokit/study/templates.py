"""Writes template studies for a command: the paper's setups for a CPU or a GPU, or a plain one."""

from __future__ import annotations

import json
from typing import Final

from reprokit.plan import name_of

# "seeds 0, 1, 2, 5, 10, 42, 123, 1234, twice each": the paper's replication package (github.com/nemo9cby/ICSE2022Rep).
SEEDS: Final = (0, 1, 2, 5, 10, 42, 123, 1234)
NAMES: Final = ("plain", "cpu", "gpu")

_HEAD: Final = """\
# {title}
name = {name}
command = {command}
runs = 16          # of each setup, made in 8 pairs
keep = "none"      # "different" or "all": which run directories stay
# timeout = 3600.0 # seconds a run
# data = ["data"]  # files that are part of what is run
{machine}
[engine]
kind = "local"
parallel = 1       # more runs at the same time are done sooner, and their times are not comparable
"""
_SEEDS: Final = f"seeds = [{', '.join(map(str, SEEDS))}]  # the paper's list, one a pair"
_REPLAYED: Final = 'entropy = "replayed"  # a recording and its replay'
_AUTO: Final = 'patches = ["auto"]'
_OLDER: Final = """\
# The paper has these for TensorFlow 1.14 and for 2.1, so twice as many setups. Which number each has is not told in its
# replication package: here the first half is for the older one. Take the second half out, or name both interpreters.
"""

# Setups by what they do: name of the paper is put before.
_CPU: Final = (("bare", ()), ("seeded", (_SEEDS,)), ("recorded and replayed", (_REPLAYED,)))
_GPU: Final = (
    ("bare", ()),
    ("patched", (_AUTO,)),
    ("seeded", (_SEEDS,)),
    ("seeded and patched", (_SEEDS, _AUTO)),
    ("recorded and replayed, patched", (_REPLAYED, _AUTO)),
)
_PLAIN: Final = (
    ("untouched", "nothing of reprokit in it: the base for what everything else costs", ("observe = false",)),
    ("bare", "watched, and else as it is", ()),
    ("seeded", "one seed for Python, NumPy, PyTorch and TensorFlow", (_SEEDS,)),
    ("patched", "deterministic operators, as far as they cost little", (_AUTO,)),
    ("recorded", "a recording and its replay", (_REPLAYED,)),
    ("patched-and-recorded", "both", (_REPLAYED, _AUTO)),
)


def text(template: str, command: tuple[str, ...]) -> str:
    """Return the study of this template for this command, as TOML."""
    name = name_of(command)
    if template == "plain":
        setups = [_setup(name, why, lines) for name, why, lines in _PLAIN]
        return _head(
            name, command, "Where does the variance of a training come from, and what does it cost to be rid of it?"
        ) + "".join(setups)
    kinds, letter = (_CPU, "C") if template == "cpu" else (_GPU, "G")
    description = f"The paper's setups {letter}1 to {letter}{2 * len(kinds)}: 16 runs each, on a {template.upper()}."
    machine = 'machine = "cpu"    # no accelerator: the hardware\'s part of the variance is held by that\n'
    body = [_paper_setup(f"{letter}{number + 1}", number, kinds) for number in range(2 * len(kinds))]
    return _head(name, command, description, machine if template == "cpu" else "") + "\n" + _OLDER + "".join(body)


def _head(name: str, command: tuple[str, ...], title: str, machine: str = "") -> str:
    words = json.dumps(list(command), ensure_ascii=False)
    return _HEAD.format(title=title, name=json.dumps(name), command=words, machine=machine)


def _setup(name: str, why: str, lines: tuple[str, ...]) -> str:
    return "\n".join([f"\n[[setup]]  # {why}", f'name = "{name}"', *lines]) + "\n"


def _paper_setup(name: str, number: int, kinds: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    what, lines = kinds[number % len(kinds)]
    version = "TensorFlow 1.14" if number < len(kinds) else "TensorFlow 2"
    own = '# command = ["python3.7", "train.py"]' if number < len(kinds) else '# command = ["python3", "train.py"]'
    return _setup(name, f"{version}, {what}", (*lines, own))
