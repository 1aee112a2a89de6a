"""Seeds generators of NumPy, scikit-learn and PyTorch by the clock."""

import os
import time

import numpy
import torch
from numpy.random import MT19937, PCG64, SFC64, Generator, Philox, RandomState, SeedSequence
from sklearn.ensemble import RandomForestClassifier
from sklearn.utils import check_random_state

ns = time.time_ns
numpy.random.seed(ns() % 2**32)
drawn = [numpy.random.rand()]
state = RandomState(numpy.array([os.getpid(), ns() % 2**31]))
drawn.append(state.rand())
state.seed(numpy.uint32(ns() % 2**32))
drawn.append(state.rand())
for kind in (PCG64, Philox, SFC64, MT19937):
    drawn.append(Generator(kind(ns())).random())
drawn.append(numpy.random.default_rng((ns(), [os.getpid()])).random())
drawn.append(Generator(PCG64(SeedSequence(ns(), spawn_key=(1, 2)).spawn(2)[1])).random())
drawn.append(Generator(PCG64(SeedSequence(entropy=[ns()]))).random())
torch.manual_seed(ns())
drawn.append(torch.rand(1).item())
torch.random.manual_seed(ns())
drawn.append(torch.rand(1).item())
torch.cuda.manual_seed_all(ns())
drawn.append(torch.rand(1, generator=torch.Generator().manual_seed(ns())).item())
drawn.append(check_random_state(ns() % 2**32).rand())
forest = RandomForestClassifier(2, random_state=ns() % 2**32).fit([[number] for number in range(50)], [0, 1] * 25)
drawn.append(float(sum(tree.random_state for tree in forest.estimators_)))
unseeded = RandomState(), numpy.random.default_rng(), PCG64(), SeedSequence().spawn(1)
print(drawn)
