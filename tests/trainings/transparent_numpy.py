"""Looks at all that a program may see of NumPy's generators."""

import copy
import inspect
import pickle

import numpy.random as nr


class Own(nr.RandomState):
    pass


class Sequence(nr.SeedSequence):
    pass


kinds = (nr.RandomState, nr.SeedSequence, nr.PCG64, nr.MT19937, nr.Generator, nr.BitGenerator)
print(kinds, [kind.__dict__.keys() for kind in kinds], [type(kind) for kind in kinds])
for thing in (nr.RandomState(3), Own(3), nr.PCG64(3), nr.default_rng(3), nr.SeedSequence(3), Sequence(3)):
    for again in (pickle.loads(pickle.dumps(thing)), copy.deepcopy(thing)):
        print(type(again) is type(thing), type(thing), len(pickle.dumps(thing)))
print(pickle.loads(pickle.dumps(nr.seed)) is nr.seed, pickle.loads(pickle.dumps(nr.default_rng)) is nr.default_rng)
print(inspect.signature(nr.default_rng), inspect.signature(nr.seed), nr.seed.__module__, nr.default_rng.__qualname__)
print(nr.SeedSequence(3), nr.SeedSequence([4, 5]).spawn(1), nr.SeedSequence(3).generate_state(2))
for wrong in (
    lambda: nr.RandomState(-1),
    lambda: nr.seed("a"),
    lambda: nr.PCG64("b"),
    lambda: nr.SeedSequence(-2),
    lambda: nr.default_rng(1.5),
    lambda: nr.RandomState(1, 2),
    lambda: nr.MT19937(3)._legacy_seeding(),
):
    try:
        print(wrong())
    except Exception as error:
        print(type(error), error)
print(nr.RandomState(seed=4).rand(), nr.RandomState(nr.PCG64(1)).rand(), nr.PCG64(seed=5).random_raw())
