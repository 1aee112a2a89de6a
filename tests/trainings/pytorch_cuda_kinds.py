"""An unseeded training on a GPU of the KIND that is asked for: mixed, compiled, graphed, ddp or fsdp."""

import hashlib
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

STEPS = 30


def batches():
    """Give each step its own inputs and labels."""
    for _ in range(STEPS):
        yield torch.randn(64, 64, device="cuda"), torch.randint(0, 10, (64,), device="cuda")


def train(model, step, optimizer):
    """Make one update for each batch."""
    for x, y in batches():
        optimizer.zero_grad()
        step(model, x, y).backward()
        optimizer.step()


def loss_of(model, x, y):
    """The loss of a batch."""
    return nn.functional.cross_entropy(model(x), y)


def mixed(model):
    """Half precision, with a scaler that also skips a step."""
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**17)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(model, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.save({"scaler": scaler.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")


def compiled(model):
    """Model and loss compiled together."""
    train(model, torch.compile(loss_of), torch.optim.Adam(model.parameters()))


def graphed(model):
    """Three steps, then a CUDA graph of one."""
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x, y = next(batches())

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, x, y).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for a, b in batches():
        x.copy_(a)
        y.copy_(b)
        graph.replay()


def one_rank():
    """A group of one process, whose collectives are NCCL's."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True)
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)


def ddp(model):
    """Gradients reduced by NCCL."""
    one_rank()
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    train(wrapped, loss_of, torch.optim.Adam(wrapped.parameters()))
    torch.distributed.destroy_process_group()


def fsdp(model):
    """Parameters gathered and gradients scattered by NCCL."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    one_rank()
    fully_shard(model)
    train(model, loss_of, torch.optim.Adam(model.parameters()))
    for name, value in model.state_dict().items():
        assert isinstance(value, DTensor), name
    state = {name: value.full_tensor() for name, value in model.state_dict().items()}
    torch.distributed.destroy_process_group()
    return state


def main():
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, 10)).cuda()
    state = {kind.__name__: kind for kind in (mixed, compiled, graphed, ddp, fsdp)}[sys.argv[1]](model)
    state = state or model.state_dict()
    torch.save(state, "model.pt")
    print(hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in state.values())).hexdigest())


if __name__ == "__main__":
    main()
