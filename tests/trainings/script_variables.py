"""Keeps values in variables of many kinds, changes them, and has the agent set them to what they were.

Argument: reprokit's directory. It prints the names that differed, those that still differ, and what its code sees then.
"""

import array
import collections
import contextvars
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import itertools
import json
import multiprocessing
import queue
import random
import sys
import threading
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


class Phase(enum.Enum):
    WARMUP = 1
    LONG = 2


def remembering(seen=[]):  # noqa: B006
    seen.append(len(seen))
    return len(seen)


phase, price, share, day, packed = Phase.WARMUP, decimal.Decimal("1.5"), fractions.Fraction(1, 3), None, bytearray(2)
waited, context, own = datetime.timedelta(1), contextvars.ContextVar("context"), threading.local()
context.set([1])
own.rate = 1.0
applied, shared, cell = functools.partial(max, [1], default=0), multiprocessing.Value("d", 1.0), ctypes.c_double(1)
layered, waiting = collections.ChainMap({"a": 1}), queue.Queue()


def begun():
    """Return iterators at their beginning, as a resumed script has them."""
    mapped, paired = map(abs, range(9)), zip("abcdef", range(9))  # noqa: B905
    return [mapped, paired, iter("abcdef"), iter({1: 2, 3: 4}), enumerate("abcdef"), itertools.cycle("abc")]


iterators = begun()


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
    global phase, price, share, day, waited
    phase, price, share = Phase(1 + (factor == 3)), price * factor, share * factor
    day, waited = datetime.datetime(2026, 1, factor), waited * factor
    packed[0], own.rate, shared.get_obj().value, cell.value, layered["a"] = factor, factor / 2, factor, factor, factor
    context.get().append(factor)
    waiting.put(factor)
    applied.args[0].append(factor)
    remembering()
    iterators[:] = begun()
    for iterator in iterators if factor == 3 else ():
        next(iterator)
    pair, flag, missing = pair._replace(left=factor), factor > 10, {"best": [factor]}


def texts(frame):
    return VariableReader(NoTensors(), []).texts(frame, lambda text: hashlib.sha256(text.encode()).hexdigest())


def main():
    local = 1
    holder = threading.Thread(target=shared.get_lock().acquire)  # and never releases it: whoever waits for it hangs
    holder.start()
    holder.join()
    whole = texts(sys._getframe())
    saved = json.loads(json.dumps(VariableReader(NoTensors(), []).differing(sys._getframe(), str, {})))
    kept = [head for head, _, _ in VariableReader(NoTensors(), []).read(sys._getframe()) if head.endswith(": waiting")]
    change(20)
    local += 1
    here = texts(sys._getframe())
    differing = sorted(name for name in whole if whole[name] != here.get(name))
    wanted = [name for name in differing if "local" not in name] if sys.argv[2:] else differing
    VariableSetter(NoTensors(), frozenset(wanted)).restore(saved, sys._getframe())
    now = texts(sys._getframe())
    still = sorted(name for name in whole if whole[name] != now.get(name) and name in differing)
    of_library = [phase.name, f"{price} {share} {day} {waited}", packed.hex(), own.rate, shared.get_obj().value]
    of_library += [cell.value, list(waiting.queue)]
    of_library += [layered["a"], context.get(), applied(), remembering()]
    of_library += [next(iterator) for iterator in iterators]
    seen = [local, closure(), next(numbers), generator.random(), history, list(window), window.maxlen, sorted(chosen)]
    print(
        json.dumps(
            {
                "differing": differing,
                "still": still,
                "of_library": of_library,
                "kept_queues": kept,
                "seen": [*seen, dict(table), nested["phases"], pair, asked, [curve.typecode, *curve]],
            }
        )
    )


sys.modules["lazy"] = LazyModule("lazy")
change(3)
main()
