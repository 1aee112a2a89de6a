"""Finds the elements of the arrays that joblib writes into a pickle, right behind the objects that describe them."""

from __future__ import annotations

import math

from reprokit.artifacts.formats.pickle_machine import Machine
from reprokit.artifacts.formats.pickle_nodes import Array, Global, How, Item, Object
from reprokit.artifacts.formats.pickle_numpy import Wrapper

WRAPPER = "joblib.numpy_pickle.NumpyArrayWrapper"


def after_build(item: Object, machine: Machine) -> Item:
    """The array in place of its description, as joblib's Unpickler does it."""
    if item.how is not How.NEW or not isinstance(item.function, Global) or not str(item.function).endswith(WRAPPER):
        return item
    wrapper = Wrapper.of(item, machine.known)
    if wrapper is None:
        machine.fail("joblib's description of an array is not understood")
    if not wrapper.dtype.elements:
        return nested(item, machine)
    if wrapper.alignment is not None:
        padding = machine.number(1)
        if padding:
            machine.cursor.skip(padding)
    return Array(item, machine.cursor.skip(math.prod(wrapper.shape) * wrapper.dtype.size))


def nested(item: Object, machine: Machine) -> Item:
    """An array of objects, which is a pickle within the pickle."""
    if machine.level >= machine.limits.depth:
        machine.fail(f"pickles within pickles are nested more than {machine.limits.depth} levels deep")
    inner = Machine(machine.cursor, machine.limits, after_build=None, level=machine.level + 1)
    inner.calls = machine.calls
    inner.held = machine.held
    root = inner.run().root
    machine.held = inner.held
    machine.revised |= inner.revised
    return Array(item, None, root)
