"""Looks at all that a program may see of the standard library's generators."""

import copy
import inspect
import pickle
import random
import types

calls = []


def told(value):
    return repr(value).partition(" at 0x")[0]


class Own(random.Random):
    def seed(self, *arguments, **keywords):
        calls.append((arguments, keywords))
        return super().seed(*arguments, **keywords)


instance = random.Random(5)
print(type(instance) is random.Random, type(random.Random), isinstance(random.Random.seed, types.FunctionType))
print(told(random.seed), told(random.Random.seed), told(random.Random), random.seed == random._inst.seed)
print([inspect.signature(function) for function in (random.seed, random.Random, random.Random.seed)])
print(inspect.ismethod(random.seed), random.seed.__self__ is random._inst, random.seed.__doc__)
for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    again = pickle.loads(pickle.dumps(instance, protocol))
    print(type(again) is random.Random, again.getstate() == instance.getstate(), len(pickle.dumps(instance, protocol)))
print(
    copy.deepcopy(instance).random() == copy.copy(instance).random(),
    pickle.loads(pickle.dumps(random.Random.seed)) is random.Random.seed,
)
print(pickle.loads(pickle.dumps(random.Random)) is random.Random, vars(instance), sorted(vars(random)), dir(instance))
own = Own(3)
print(own.random(), calls, own.seed(4), own.random(), random.SystemRandom().seed(1))
for wrong in (lambda: random.seed(1, 2, 3), lambda: random.Random(1, 2), lambda: random.seed(b=1)):
    try:
        wrong()
    except TypeError as error:
        print("TypeError", error)
random.seed(a=1, version=2)
print(random.random(), random.Random(1.5).random(), random.Random(False).random())
random.seed("text", 1)
print(random.random())
