"""Trainings by PyTorch, each of which meets what is not finite at a step of its own.

python pytorch_steps.py MODE[,MODE...] DIRECTORY [NAME...]

bare: stop each before that step's forward pass, and write its state; without: leave that step out, and write the state
at the end; whole: train to the end, and write the state then. The files are DIRECTORY/MODE/NAME.pt.
"""

import gc
import math
import random
import sys
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

MODE, DIRECTORY = "", Path(sys.argv[2])
STEPS = 3  # after the bad one
TRAININGS = {}
REPEATED = ("foreach", "together", "lbfgs", "late", "clipped", "parts", "ascent")  # draw no random numbers in a step


class Stop(Exception):
    """The bad step would come now."""


class Training:
    """What is written of a training."""

    def __init__(self, name, bad, models, optimizers, **others):
        self.name, self.bad, self.models, self.optimizers, self.others = name, bad, models, optimizers, others

    def at(self, step, *batches):
        """Called before the forward pass of a step; whether this one is to be left out."""
        if step == self.bad and MODE == "bare":
            self.write(batches=batches)
            raise Stop
        return step == self.bad and MODE == "without"

    def write(self, batches=()):
        state = {
            "models": [{name: t.clone() for name, t in tensors(m)} for m in self.models],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "others": {name: other.state_dict() for name, other in self.others.items()},
            "batches": batches,
            "python": random.getstate(),
            "numpy": numpy.random.get_state(),
            "torch": torch.get_rng_state(),
        }
        torch.save(state, DIRECTORY / MODE / f"{self.name}.pt")


def tensors(model):
    yield from model.named_parameters()
    yield from model.named_buffers()


def training(function):
    TRAININGS[function.__name__] = function
    return function


def network(*layers):
    return nn.Sequential(*(layers or (nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))))


def batches(bad, value=math.inf, size=8, number=None):
    """Enough for the steps, shuffled by nobody; the bad one has a row of something else."""
    count = (bad + 1 + STEPS) if number is None else number
    data, labels = torch.randn(count * size, 6), torch.randint(0, 3, (count * size,))
    data[bad * size + 3] = value
    return DataLoader(TensorDataset(data, labels), size)


def draw():
    random.random()
    numpy.random.standard_normal()  # an odd number of them: the generator has a second one ready


@training
def plain(bad=3):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
    run = Training("plain", bad, [model], [optimizer])
    for step, (x, y) in enumerate(batches(bad)):
        draw()
        if run.at(step, (x, y)):
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return run


class Root(nn.Module):
    """Its loss is finite at zero, and its gradient is not."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3, bias=False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.sqrt((self.inner(x) * self.scale) ** 2)


@training
def foreach(bad=4):
    model = Root()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, foreach=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    run = Training("foreach", bad, [model], [optimizer], schedule=schedule)
    for step, (x, y) in enumerate(batches(bad, 0.0)):
        if run.at(step, (x, y)):
            schedule.step()
            continue
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    return run


@training
def fused(bad=5):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
    run = Training("fused", bad, [model], [optimizer])
    for step, batch in enumerate(batches(bad, math.nan)):
        x, y = batch
        if run.at(step, (x.clone(), y)):
            continue
        x.mul_(2)  # in place
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return run


@training
def together(bad=6):
    """Two optimizers apply gradients of one backward pass, and only the second's are bad."""
    encoder, decoder = nn.Linear(6, 4), Root()
    decoder.inner = nn.Linear(4, 3, bias=False)
    optimizers = [torch.optim.Adam(encoder.parameters(), 0.01), torch.optim.SGD(decoder.parameters(), 0.01)]
    run = Training("together", bad, [encoder, decoder], optimizers)
    for step, (x, y) in enumerate(batches(bad, 0.5)):
        if run.at(step, (x, y)):
            continue
        for optimizer in optimizers:
            optimizer.zero_grad()
        hidden = encoder(x)
        if step == bad:
            hidden = hidden.detach() * 0 + hidden[:1].detach() * 0
        (nn.functional.cross_entropy(decoder(hidden), y) + encoder(x).mean()).backward()
        for optimizer in optimizers:
            optimizer.step()
    return run


@training
def adversaries(bad=7):
    """A GAN: two optimizers in turn, and what the first is given is bad."""
    maker, judge = network(nn.Linear(2, 6), nn.BatchNorm1d(6)), network(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizers = [torch.optim.Adam(judge.parameters(), 0.01), torch.optim.Adam(maker.parameters(), 0.01)]
    run = Training("adversaries", bad, [maker, judge], optimizers)
    for step, (x, y) in enumerate(batches(bad)):
        if run.at(step, (x, y)):
            continue
        optimizers[0].zero_grad()
        made = maker(torch.ones(8, 2))
        (judge(x).mean() - judge(made.detach()).mean()).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        judge(maker(torch.ones(8, 2))).mean().backward()
        optimizers[1].step()
    return run


@training
def accumulated(bad=8):
    """Three batches a step; the second of the bad step's is bad. Between steps the model is evaluated."""
    model = network()
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01)
    run = Training("accumulated", bad, [model], [optimizer])
    given, size = [], 4
    check = batches(0, 1.0, number=2)
    data = batches(3 * bad + 1, math.nan, size=size, number=3 * (bad + 1 + STEPS))
    for number, (x, y) in enumerate(data):
        if number // 3 == bad:
            given.append((x, y))
        if MODE == "without" and number // 3 == bad:
            continue
        if number == 3 * bad and MODE == "bare":
            # The rest of the step's batches, which the loader would give.
            given += [(data.dataset[i * size : (i + 1) * size]) for i in (number + 1, number + 2)]
            run.at(bad, *given)
        (nn.functional.cross_entropy(model(x), y) / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            for a, _ in check:
                with torch.no_grad():
                    model(a)
            model.train()
    return run


def closure_of(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return closure


@training
def lbfgs(bad=9):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    run = Training("lbfgs", bad, [model], [optimizer])
    for step, (x, _) in enumerate(batches(bad, math.nan)):
        if run.at(step, (x, _)):
            continue
        optimizer.step(closure_of(model, optimizer, x, torch.ones(8, 1)))
    return run


def spoilt(closure, model, which):
    """The gradient of one of the calls is infinite."""
    calls = []

    def counted():
        loss = closure()
        calls.append(loss)
        if len(calls) == which:
            model.weight.grad.fill_(math.inf)
        return loss

    return counted


@training
def late(bad=10):
    """An evaluation of a closure comes to nothing after others have moved the parameters."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    run = Training("late", bad, [model], [optimizer])
    for step, (x, y) in enumerate(batches(bad, 1.0)):
        if run.at(step, (x, y)):
            continue
        closure = closure_of(model, optimizer, x, torch.ones(8, 1))
        optimizer.step(spoilt(closure, model, 3) if step == bad else closure)
    return run


def scaled(name, bad, **options):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3)
    run = Training(name, bad, [model], [optimizer], scaler=scaler)
    step = 0
    for number, (x, y) in enumerate(batches(bad + 20, math.inf)):
        overflows = number < 20  # at which nothing must happen
        step = number - 20
        if step >= 0 and run.at(step, (x, y)):
            continue
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaled = scaler.scale(loss)
        (scaled * math.inf if overflows else scaled).backward()
        scaler.step(optimizer)
        scaler.update()
    return run


@training
def scaler(bad=11):
    return scaled("scaler", bad)


@training
def scaler_fused(bad=32):  # its steps are calls, also those that it skips by itself
    return scaled("scaler_fused", bad - 20, fused=True)


@training
def clipped(bad=13):
    """Clipping would spread what is not finite to all gradients."""
    model = network(nn.Linear(6, 4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    run = Training("clipped", bad, [model], [optimizer])
    for step, (x, y) in enumerate(batches(bad, 1.0)):
        if run.at(step, (x, y)):
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if step == bad:
            model[1].bias.grad[1] = math.inf
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return run


@training
def without_loader(bad=14):
    model = network()
    optimizer = torch.optim.Adagrad(model.parameters(), 0.01)
    run = Training("without_loader", bad, [model], [optimizer])
    for step, (x, y) in enumerate(list(batches(bad))):
        noisy = x + torch.randn(8, 6)
        if run.at(step, (noisy, y)):
            continue
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(noisy), y).backward()
        optimizer.step()
    return run


@training
def without_modules(bad=15):
    weight = torch.randn(6, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01)
    holder = nn.Module()
    run = Training("without_modules", bad, [holder], [optimizer])
    for step, (x, y) in enumerate(batches(bad)):
        if run.at(step, (x, y)):
            continue
        optimizer.zero_grad()
        kept = (torch.rand(6, 3) > 0.2).float()
        nn.functional.cross_entropy(x @ (weight * kept), y).backward()
        optimizer.step()
    return run


class Nested(Dataset):
    """Dictionaries of tensors, arrays and texts."""

    def __init__(self, bad):
        self.x = torch.randn(32 * 4, 6)
        self.x[bad * 4] = math.nan

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"inputs": (self.x[index], self.x[index] + 1), "name": f"n{index}", "weight": numpy.float32(index)}


@training
def nested(bad=16):
    model = nn.Sequential(nn.Linear(6, 1), nn.Dropout(0.5))
    optimizer = torch.optim.NAdam(model.parameters(), 0.01)
    run = Training("nested", bad, [model], [optimizer])
    for step, batch in enumerate(DataLoader(Nested(bad), 4, num_workers=0)):
        if run.at(step, batch):
            continue
        optimizer.zero_grad()
        a, b = batch["inputs"]
        ((model(a) + model(b)).squeeze() * batch["weight"]).mean().backward()
        optimizer.step()
        if step == bad + STEPS:
            break
    return run


@training
def compiled(bad=17):
    """The model is compiled, and so is the optimizer's step."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    fast, step_fast = torch.compile(model, backend="eager"), torch.compile(optimizer.step, backend="eager")
    run = Training("compiled", bad, [model], [optimizer])
    for step, (x, y) in enumerate(batches(bad)):
        draw()
        if run.at(step, (x, y)):
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(fast(x), y).backward()
        step_fast()
    return run


@training
def compiled_whole(bad=18):
    """A function that does all but the forward pass is compiled."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    run = Training("compiled_whole", bad, [model], [optimizer])
    model.compile(backend="eager")

    @torch.compile(backend="eager")
    def apply():
        optimizer.step()

    for step, (x, y) in enumerate(batches(bad)):
        if run.at(step, (x, y)):
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        apply()
    return run


class Sharpness(torch.optim.Optimizer):
    """SAM: goes up by the gradients, and applies those that it finds there to where it was."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.base = torch.optim.SGD(self.param_groups, 0.1, momentum=0.9)
        self.param_groups = self.base.param_groups

    def first_step(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["old"] = parameter.detach().clone()
            parameter.data.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    def second_step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data = self.state[parameter]["old"]
        self.base.step()
        self.zero_grad()

    def step(self, closure):
        self.first_step()
        loss = closure()
        self.second_step()
        return loss


@training
def parts(bad=19):
    """The loss is bad where the optimizer went up to."""
    model = nn.Linear(6, 3)
    optimizer = Sharpness(model.parameters())
    run = Training("parts", bad, [model], [optimizer, optimizer.base])
    for step, (x, y) in enumerate(batches(bad, 1.0)):
        if run.at(step, (x, y)):
            continue
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.first_step()
        (nn.functional.cross_entropy(model(x), y) * (math.inf if step == bad else 1)).backward()
        optimizer.second_step()
    return run


@training
def ascent(bad=20):
    """The gradients with which the optimizer would go up are bad."""
    model = Root()
    optimizer = Sharpness(model.parameters())
    run = Training("ascent", bad, [model], [optimizer, optimizer.base])
    for step, (x, y) in enumerate(batches(bad, 0.0)):
        if run.at(step, (x, y)):
            continue
        closure = closure_of(model, optimizer, x, nn.functional.one_hot(y, 3).float())
        closure()
        optimizer.step(closure)
    return run


def train(name):
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(7)
    try:
        TRAININGS[name]().write()
    except Stop:
        pass
    gc.collect()  # what is left of a training would be taken for a part of the next


def main():
    global MODE
    torch.set_num_threads(1)
    for MODE in sys.argv[1].split(","):
        (DIRECTORY / MODE).mkdir()
        for name in sys.argv[3:] or TRAININGS:
            if MODE != "without" or name in REPEATED:
                train(name)
    print("done")


main()
