"""A training that gets over interrupts in the midst of steps, errors in forward passes, and a step that is captured."""

import gc
import math
import signal
import weakref

import torch

STEPS, SIZE = 60, 3000


class Interrupt(BaseException):
    """As KeyboardInterrupt, after which notebooks go on."""


class Enough(Exception):
    """As a bound on time raises it."""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x, fails=False):
        h = self.layer(x)
        seen.append(weakref.ref(h))
        if fails:
            raise RuntimeError("out of memory")
        return h


seen = []
torch.manual_seed(0)
torch.set_num_threads(1)


def interrupted_in_steps():
    """The handler raises where an optimizer step has just been told of, and the script drops its gradients then."""
    hits = []

    def handle(_number, frame):
        if not hits and frame.f_code.co_name in ("_write", "_record_step", "_update_done"):
            hits.append(frame.f_lineno)
            raise Interrupt

    signal.signal(signal.SIGALRM, handle)
    layers = torch.nn.ModuleList([torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(3)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)
    for step in range(STEPS):
        x = torch.ones(1, SIZE)
        for layer in layers:
            x = layer(x)
        try:
            x.mean().backward()
            if step > 16 and not hits:  # before, steps are digested at once
                signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00005)
            optimizer.step()
        except Interrupt:
            torch.set_grad_enabled(True)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for parameter in layers.parameters():
            parameter.grad = None
        if hits:
            break
    return bool(hits)


def lost():
    """How many of what handlers raised did not arrive."""
    state = {"allowed": False, "raised": 0, "caught": 0}

    def handle(*_):
        if state["allowed"]:
            state["allowed"] = False
            state["raised"] += 1
            raise Enough

    signal.signal(signal.SIGALRM, handle)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    for _ in range(100):
        try:
            state["allowed"] = True
            for (x,) in data:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
            state["allowed"] = False
        except Enough:
            state["caught"] += 1
            torch.set_grad_enabled(True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return state["raised"] - state["caught"]


def kept_after_errors():
    """How many tensors of failed forward passes are alive, before anybody collects them."""
    seen.clear()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        try:
            optimizer.zero_grad()
            model(torch.ones(3, 4), fails=step % 2 == 1).sum().backward()
            optimizer.step()
        except RuntimeError:
            pass
    return sum(reference() is not None for reference in seen)


def kept_after_a_capture():
    """Whether what the step had computed is alive after it was dropped."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.randn(8, 4)
        if step == 2:
            x[0] = math.nan
        optimizer.zero_grad()
        output = model(x)
        output.pow(2).mean().backward()
        optimizer.step()
        if step == 2:
            reference = weakref.ref(output)
        del output
    return reference() is not None


print("interrupted in a step:", interrupted_in_steps())
print("lost:", lost())
gc.disable()
print("kept after errors:", kept_after_errors())
print("kept after a capture:", kept_after_a_capture())
