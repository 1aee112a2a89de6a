"""Ranks that are stages of a pipeline: staged_ranks.py pipelining|by-hand|copies [STEP RANK].

With copies there are two ranks of each stage, whose gradients DDP reduces. Before that step a parameter changes on that
rank. Stages have equal names, shapes and first values.
"""

import atexit
import os
import subprocess
import sys
from pathlib import Path

KIND = sys.argv[1]
RANKS = 4 if KIND == "copies" else 2
if "RANK" not in os.environ:
    command, size = [sys.executable, __file__, *sys.argv[1:]], str(RANKS)
    environments = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": size} for rank in range(RANKS)]
    processes = [subprocess.Popen(command, env=environment) for environment in environments]
    codes = [process.wait() for process in processes]
    Path("store").unlink(missing_ok=True)
    sys.exit(max(codes))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

RANK = int(os.environ["RANK"])
STAGE = RANK % 2
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=RANK, world_size=RANKS)
torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
groups = [dist.new_group([0, 2]), dist.new_group([1, 3])] if KIND == "copies" else []
model = DistributedDataParallel(layers, process_group=groups[STAGE]) if groups else layers
optimizer = torch.optim.SGD(model.parameters(), 0.5)
data = torch.arange(12 * 4 * 6.0).reshape(12, 4, 6).sin()


def loss_of(output, target):
    return (output - target).square().mean()


def by_schedule(batch):
    """Make a step by a schedule of PyTorch."""
    if STAGE == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch)


def by_hand(batch):
    """Make a step by messages."""
    if STAGE == 0:
        output = model(batch)
        dist.send(output.detach(), RANK + 1)
        gradient = torch.empty_like(output)
        dist.recv(gradient, RANK + 1)
        output.backward(gradient)
    else:
        received = torch.empty(4, 6)
        dist.recv(received, RANK - 1)
        received.requires_grad_()
        loss_of(model(received), batch).backward()
        dist.send(received.grad, RANK - 1)


if KIND == "pipelining":
    schedule = ScheduleGPipe(PipelineStage(model, STAGE, 2, torch.device("cpu")), 2, loss_fn=loss_of)
make_step = by_schedule if KIND == "pipelining" else by_hand
for step, batch in enumerate(data):
    if sys.argv[2:4] == [str(step), str(RANK)]:
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1e-3
    optimizer.zero_grad()
    make_step(batch)
    optimizer.step()
dist.destroy_process_group()
atexit._run_exitfuncs()  # what is recorded is written there
os._exit(0)  # as gloo's threads may abort a process while it is taken down
