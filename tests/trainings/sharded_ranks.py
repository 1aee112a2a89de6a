"""Ranks that share out a model's parameters as DTensors.

    sharded_ranks.py fsdp|hsdp|norm|tensor|both STEPS [STEP RANK NAME]

Before that step one element of the tensor's local part changes on that rank. Each rank's parts are in rankN.npz.
Of "norm", each rank of HSDP has the norm whole, and reduces its gradients by itself.
"""

import atexit
import os
import subprocess
import sys

RANKS = {"fsdp": 2, "hsdp": 4, "norm": 4, "tensor": 2, "both": 4}[sys.argv[1]]
if "RANK" not in os.environ:
    command, size = [sys.executable, __file__, *sys.argv[1:]], str(RANKS)
    environments = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": size} for rank in range(RANKS)]
    processes = [subprocess.Popen(command, env=environment) for environment in environments]
    codes = [process.wait() for process in processes]
    os.remove("store")
    sys.exit(max(codes))

import numpy  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import all_reduce, destroy_process_group, fsdp, init_process_group  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402


def sharded(kind):
    """Return a model whose layers are shared out, and for which part of the data this rank is there."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.LayerNorm(6))
    if kind in ("fsdp", "hsdp", "norm"):
        shape, names = ((2,), ("shard",)) if kind == "fsdp" else ((2, 2), ("copy", "shard"))
        ignored = set(model[3].parameters()) if kind == "norm" else set()
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        return fsdp.fully_shard(model, mesh=mesh, ignored_params=ignored), RANK
    shape, names = ((2,), ("tensor",)) if kind == "tensor" else ((2, 2), ("shard", "tensor"))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return (model, 0) if kind == "tensor" else (fsdp.fully_shard(model, mesh=mesh["shard"]), RANK // 2)


def part_of(tensor):
    """Return what this rank has of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


RANK = int(os.environ["RANK"])
torch.set_num_threads(1)
init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=RANK, world_size=RANKS)
torch.manual_seed(0)
model, part = sharded(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters(), 0.05)
STEPS = int(sys.argv[2])
data = torch.arange(4 * STEPS * 16 * 6.0).reshape(4, STEPS, 16, 6)[part].sin()
for step, batch in enumerate(data):
    if sys.argv[3:5] == [str(step), str(RANK)]:
        part_of(dict(model.named_parameters())[sys.argv[5]].detach()).view(-1)[0] += 1e-3
    optimizer.zero_grad()
    (model(batch) - batch).square().mean().backward()
    for parameter in model[3].parameters() if sys.argv[1] == "norm" else ():
        all_reduce(parameter.grad)
    optimizer.step()
numpy.savez(f"rank{RANK}.npz", **{name: part_of(tensor.detach()) for name, tensor in model.named_parameters()})
destroy_process_group()
atexit._run_exitfuncs()  # what is recorded is written there
os._exit(0)  # as gloo's threads may abort a process while it is taken down
