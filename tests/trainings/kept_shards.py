"""Two ranks share out a model's parameters (FSDP2); with "kept", nobody zeroes the gradients."""

import atexit
import os
import subprocess
import sys

import torch
from torch import nn
from torch.distributed import destroy_process_group, fsdp, init_process_group

if "RANK" not in os.environ:
    command, ranks = [sys.executable, __file__, *sys.argv[1:]], ("0", "1")
    processes = [subprocess.Popen(command, env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"}) for rank in ranks]
    sys.exit(max(process.wait() for process in processes))

torch.set_num_threads(1)
init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=int(os.environ["RANK"]), world_size=2)
torch.manual_seed(0)
model = fsdp.fully_shard(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for _ in range(8):
    if "kept" not in sys.argv:
        optimizer.zero_grad(set_to_none=False)
    model(torch.randn(16, 6)).square().mean().backward()
    optimizer.step()
destroy_process_group()
atexit._run_exitfuncs()  # what is saved is written there
os._exit(0)  # as gloo's threads may abort a process while it is taken down
