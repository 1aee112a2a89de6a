"""Trainings of all kinds; a test takes one case, and saves what the agent must have seen."""

import copy
import gc
import inspect
import pickle
import threading
import weakref

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

CASE = "epochs"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 1)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


x, y = torch.randn(32, 4), torch.randn(32, 1)


def step(model, optimizer, closure_only=False):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return closure if closure_only else (closure(), optimizer.step())[0]


def epochs():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train, valid = (DataLoader(TensorDataset(x, y), 8, shuffle=True) for _ in range(2))
    losses = []
    for epoch in range(3):
        for a, b in train:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == 6:  # validation in the middle of an epoch
                [model(a) for a, _ in valid]
        for a, _ in valid:
            model(a)
        scheduler.step()
        torch.save(model.state_dict(), f"epoch{epoch}.pt")
    torch.save((losses, model.state_dict(), optimizer.state_dict()), "end.pt")
    print("done")


def backwards():
    w = torch.ones(3, requires_grad=True)
    (w**3).sum().backward(create_graph=True)
    w.grad.sum().backward()
    assert w.grad.tolist() == [9.0, 9.0, 9.0]
    checkpoint(lambda t: (t * t).sin(), w, use_reentrant=True).sum().backward()
    torch.autograd.backward([w.sum(), (w * 2).sum()])
    w.grad = None
    (w * 2).backward(torch.ones(3))
    assert w.grad.tolist() == [2.0, 2.0, 2.0]
    torch.autograd.grad(w.sum(), w)
    print(torch.func.grad(lambda t: (t**2).sum())(x).shape)
    try:
        torch.ones(1).backward()
    except RuntimeError:
        print("refused")


def compiled():
    model = Net()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    for _ in range(3):
        step(compiled, optimizer)
    torch.save(model.state_dict(), "model.pt")

    whole = Net()
    adam = torch.optim.Adam(whole.parameters())

    @torch.compile(backend="eager")
    def train():
        return step(whole, adam)

    for _ in range(3):
        train()
    torch.save(whole.state_dict(), "whole.pt")

    alone = Net()
    other = torch.optim.Adam(alone.parameters())

    @torch.compile(backend="eager")
    def compiled_step():
        other.step()

    for _ in range(3):
        other.zero_grad()
        alone(x).sum().backward()
        compiled_step()
    torch.save(alone.state_dict(), "alone.pt")
    torch.manual_seed(3)

    import reprokit

    @torch.compile(backend="eager")
    def logged():
        total = (x * 2).sum()
        reprokit.log(total=total)
        return total + 1

    logged()
    print("done")
    return locals()


def kinds():
    closures = []
    lbfgs_model = Net()
    lbfgs = torch.optim.LBFGS(lbfgs_model.parameters(), max_iter=3)
    closure = step(lbfgs_model, lbfgs, closure_only=True)
    lbfgs.step(lambda: closures.append(1) or closure())

    copied = copy.deepcopy(Net())
    step(copied, torch.optim.AdamW([{"params": copied.first.parameters()}, {"params": copied.second.parameters()}]))

    free = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    sgd = torch.optim.SGD([free], lr=0.1)
    free.float().sum().backward()
    sgd.step()

    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    tied_sgd = torch.optim.SGD(tied.parameters(), lr=0.1)
    tied(x).sum().backward()
    tied_sgd.step()

    parallel = nn.DataParallel(Net())
    parallel_sgd = torch.optim.SGD(parallel.parameters(), lr=0.1)
    step(parallel, parallel_sgd)

    scripted = torch.jit.script(Net())
    scripted_sgd = torch.optim.SGD(scripted.parameters(), lr=0.1)
    step(scripted, scripted_sgd)

    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(nn.functional.mse_loss(parallel(x), y)).backward()
    scaler.step(parallel_sgd)
    scaler.update()

    empty = nn.Module()
    empty.weight = nn.Parameter(torch.ones(2, 0, 3))
    empty.complex = nn.Parameter(torch.ones(2, 3, dtype=torch.complex64).t().conj())
    empty.register_buffer("sparse", torch.eye(3).to_sparse())
    empty.register_buffer("quantized", torch.quantize_per_tensor(torch.ones(3), 0.1, 2, torch.quint8))
    empty.register_buffer("small", torch.ones(2).to(torch.float8_e5m2))
    empty.register_buffer("flag", torch.tensor(True))
    empty_sgd = torch.optim.SGD(empty.parameters(), lr=0.1)
    empty_sgd.step()

    torch.save([dict(tied.state_dict()), len(closures), free.detach().view(torch.int16)], "end.pt")
    print("done")
    return locals()


def scoped():
    def train():
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        step(model, optimizer)
        return [weakref.ref(thing) for thing in (model, optimizer, model.first.weight, model.norm.running_mean)]

    references = train()
    gc.collect()
    print([reference() for reference in references])


def loaders_anew():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for a, b in DataLoader(TensorDataset(x, y), 8):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
        torch.save(model.state_dict(), f"epoch{epoch}.pt")
        for a, _ in DataLoader(TensorDataset(x, y), 8):
            model(a)
    return model, optimizer


def loaders_in_turn(*norm):
    model = nn.Sequential(*norm, nn.Linear(4, 1)) if norm else nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaders = [DataLoader(TensorDataset(x, y), 8) for _ in range(3)]
    for number, loader in enumerate(loaders):
        for a, _ in loader:
            optimizer.zero_grad()
            model(a).square().mean().backward()
            optimizer.step()
        torch.save(model.state_dict(), f"loader{number}.pt")
    return model, optimizer, loaders


def normed_loaders_in_turn():
    return loaders_in_turn(nn.BatchNorm1d(4))


def workers(method="fork"):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, y), 8, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
    print("done")


def spawned_workers():
    workers("spawn")


def endless():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        step(model, optimizer)


def one_step():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    print("done")
    return model, optimizer


def broken_at_the_end():
    torch.Tensor.data_ptr = torch.random.get_rng_state = torch.cuda.is_initialized = None
    return one_step()


def broken_at_every_step():
    torch._C.DisableTorchFunction = torch.optim.Optimizer.__hash__ = None
    return one_step()


def signatures():
    for function in (
        torch.autograd.backward,
        torch.Tensor.backward,
        torch.optim.Optimizer.__init__,
        DataLoader.__iter__,
        torch.manual_seed,
    ):
        print(function.__module__, function.__qualname__, inspect.signature(function))
    assert pickle.loads(pickle.dumps(torch.autograd.backward)) is torch.autograd.backward


def threads():
    def work(count):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), 8)
        for _ in range(count):
            for a, b in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(a), b).backward()
                optimizer.step()
        torch.save(model.state_dict(), f"{count}.pt")

    threads = [threading.Thread(target=work, args=(count,), name=f"worker {count}") for count in (1, 2, 3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


if __name__ == "__main__":
    kept = globals()[CASE]()  # what a case returns lives until the process ends
