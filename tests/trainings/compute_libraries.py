"""Uses libraries whose threads the agent tells, one in each case."""

import sys

CASE = "torch_threads"


def torch_threads():
    import torch

    torch.ones(10, 10) @ torch.ones(10, 10)
    print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.backends.cpu.get_cpu_capability())


def torch_loaders():
    from torch.utils.data import DataLoader

    for _ in DataLoader(range(4), num_workers=2):
        pass
    for _ in DataLoader(range(4)):
        pass


def imports():
    """What is imported to tell the facts of NumPy, beside the agent's own."""
    import numpy  # noqa: F401

    before = set(sys.modules)
    import _reprokit_agent

    _reprokit_agent.running.finish()
    print(sorted(name for name in set(sys.modules) - before if not name.startswith("_reprokit_agent")))


globals()[CASE]()
