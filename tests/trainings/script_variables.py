"""Keeps values in variables of many kinds, changes them, and has the agent set them to what they were.

Argument: reprokit's directory. It prints the names that differed, those that still differ, and what its code sees then.
"""

import array
import collections
import hashlib
import json
import random
import sys
import types

sys.path.insert(0, sys.argv[1])
from agent.capture import trees
from agent.state.script_variables import VariableReader, VariableSetter


class NoTensors:
    """Stands for the access to tensors where no framework is loaded."""

    def leaf(self, value):
        return None

    def restore(self, node, own):
        return trees.unpack(node, None)


class LazyModule(types.ModuleType):
    """Loads what it stands for once something of it is asked for."""

    def __getattr__(self, name):
        asked.append(name)
        raise AttributeError(name)


class Proxy:
    """Refuses to be what it stands for."""

    @property
    def __class__(self):
        raise RuntimeError("not loaded")

    def __getattr__(self, name):
        raise RuntimeError("not loaded")


class Slotted:
    __slots__ = ("number",)


class Settings:
    rate = 0.1


class Trainer:
    def __init__(self):
        self.steps, self.best, self.slotted = 0, float("inf"), Slotted()
        self.slotted.number = 1

    def step(self):
        self.steps += 1


def counting(count=0):
    def step():
        nonlocal count
        count += 1
        return count

    return step


def generated():
    number = 0
    while True:
        number += 1
        yield number


trainer, trainer_too, callback, numbers = Trainer(), [], Trainer().step, generated()
closure, generator = counting(), random.Random(4)
history, window, chosen, table = [1.0], collections.deque([1], 3), {1, 2}, collections.Counter(a=1)
curve = array.array("d", [0.5])
nested = {"phases": [("warmup", 1), ["long"] * 2], (1, 2): None}
Pair = collections.namedtuple("Pair", "left right")
pair, flag, missing, asked, proxy = Pair(1, 2.5), False, None, [], Proxy()


def change(factor):
    """Change all, by as much as the factor says."""
    global pair, flag, missing
    trainer.step()
    trainer.best, trainer.slotted.number, Settings.rate = 1 / (factor + 2), factor, 0.1 * factor
    callback()
    closure()
    next(numbers)
    generator.random()
    history.append(float(factor))
    window.append(factor)
    curve.append(factor / 2)
    chosen.add(factor)
    table["b"] += factor
    nested["phases"][1].append(str(factor))
    pair, flag, missing = pair._replace(left=factor), factor > 10, {"best": [factor]}


def texts(frame):
    return VariableReader(NoTensors(), []).texts(frame, lambda text: hashlib.sha256(text.encode()).hexdigest())


def main():
    local = 1
    whole = texts(sys._getframe())
    saved = json.loads(json.dumps(VariableReader(NoTensors(), []).read(sys._getframe())))
    change(20)
    local += 1
    here = texts(sys._getframe())
    differing = sorted(name for name in whole if whole[name] != here.get(name))
    wanted = [name for name in differing if "local" not in name] if sys.argv[2:] else differing
    VariableSetter(NoTensors(), frozenset(wanted)).restore(saved, sys._getframe())
    now = texts(sys._getframe())
    still = sorted(name for name in whole if whole[name] != now.get(name) and name in differing)
    seen = [local, closure(), next(numbers), generator.random(), history, list(window), window.maxlen, sorted(chosen)]
    print(
        json.dumps(
            {
                "differing": differing,
                "still": still,
                "seen": [*seen, dict(table), nested["phases"], pair, asked, [curve.typecode, *curve]],
            }
        )
    )


sys.modules["lazy"] = LazyModule("lazy")
change(3)
main()
