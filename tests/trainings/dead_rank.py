"""Two ranks of data-parallel training, started by this script; rank 1 kills itself after step 3, and nobody minds."""

import os
import socket
import subprocess
import sys

if "RANK" not in os.environ:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [subprocess.Popen([sys.executable, __file__], env={**variables, "RANK": str(rank)}) for rank in range(2)]
    for rank in ranks:
        rank.wait()
    sys.exit(0)

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    try:
        model(torch.randn(16, 8)).square().mean().backward()
    except RuntimeError:  # the other rank is gone
        break
    optimizer.step()
    if dist.get_rank() == 1 and step == 3:
        os.kill(os.getpid(), 9)
