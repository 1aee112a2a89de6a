"""The patches of PyTorch."""

from __future__ import annotations

from reprokit.patches.patch import Patch, Takes

_IN_PROCESS = "in the process too"

PATCHES = (
    Patch(
        id="torch-deterministic",
        title="torch.use_deterministic_algorithms(True, warn_only=True), without filling uninitialised memory",
        framework="torch",
        versions=">=1.11",
        agent=True,
        conflicts=("torch-deterministic-fill",),
        cost="LeNet-5 and an MLP on the CPU: none (0.99 to 1.01 times as long); the backward of x[idx] on two threads "
        "is faster; on a GPU not measured",
        measured=True,
        automatic=True,
        undo=_IN_PROCESS,
    ),
    Patch(
        id="torch-deterministic-fill",
        title="torch-deterministic, and uninitialised memory filled with NaN, of integers with the greatest number",
        framework="torch",
        versions=">=2.2",
        agent=True,
        conflicts=("torch-deterministic",),
        warning="changes numbers of a program that reads memory it has not written: it gets NaN",
        cost="a pass over every tensor that is made empty; LeNet-5 and an MLP on the CPU 1.01 times as long",
        measured=True,
        undo=_IN_PROCESS,
    ),
    Patch(
        id="torch-cudnn",
        title="torch.backends.cudnn: benchmark off, deterministic on, whatever the script sets",
        framework="torch",
        agent=True,
        cost="nothing on the CPU; on a GPU not measured: convolutions may be slower",
        automatic=True,
        undo=_IN_PROCESS,
    ),
    Patch(
        id="torch-operator",
        title="one operator made to repeat, forward, backward and compiled: on the CPU by one thread, elsewhere by "
        "PyTorch's deterministic mode",
        framework="torch",
        versions=">=2.4",
        agent=True,
        takes=Takes.A_VALUE,
        value="NAME",
        pattern=r"[A-Za-z_][A-Za-z0-9_]*::[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)?",
        example="an operator as a profile names it, as in torch-operator=aten::index_put_",
        repeatable=True,
        cost="5 to 8 microseconds a call; the backward of x[idx] (20,000 rows) on two threads 0.4 times as long, as "
        "with torch-deterministic and threads=1, which change all other operators too",
        measured=True,
        undo=_IN_PROCESS,
    ),
    Patch(
        id="torch-inductor",
        title="TORCHINDUCTOR_DETERMINISTIC=1: torch.compile chooses its kernels without timing them",
        framework="torch",
        versions=">=2.10",
        variables={"TORCHINDUCTOR_DETERMINISTIC": "1"},
        cost="kernels are not tuned; it does not cure index_add compiled for the CPU",
    ),
    Patch(
        id="torch-loader",
        title="DataLoader: a generator for each that has none, batches in order, and with =WORKERS so many workers",
        framework="torch",
        agent=True,
        takes=Takes.MAYBE,
        value="WORKERS",
        pattern="[0-9]{1,3}",
        example="a number of workers from 0 to 999, as in torch-loader=2",
        warning="changes the order of shuffled batches; another number of workers changes what they draw at random, "
        "and the samples of an IterableDataset that does not share them out",
        cost="none, but for workers that are fewer",
        undo=_IN_PROCESS,
    ),
)
