"""Trains by MosaicML's streaming until it is killed in the midst of an epoch, or goes on from its checkpoint.

Arguments: which part: first, resumed or whole. Prints the samples of each step.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

CHECKPOINT, KILLED, BATCH, SIZE, EPOCHS = 6, 8, 8, 80, 2
part, shards, checkpoint = sys.argv[1], Path("shards"), Path("checkpoint.json")
if not shards.exists():
    with MDSWriter(out=str(shards), columns={"number": "int"}, size_limit=1000) as out:
        for number in range(SIZE):
            out.write({"number": number})
torch.set_num_threads(1)
torch.manual_seed(0)
dataset = StreamingDataset(local=str(shards), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
loader = StreamingDataLoader(dataset, batch_size=BATCH)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
steps = 0
if part == "resumed":
    state = json.loads(checkpoint.read_text())
    with torch.no_grad():
        model.weight.fill_(state["weight"])
        model.bias.fill_(state["bias"])
    loader.load_state_dict(state["loader"])
for _ in range(EPOCHS):
    for batch in loader:
        print(*batch["number"].tolist(), flush=True)
        model(batch["number"].float()[:, None]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if part == "first" and steps == CHECKPOINT:
            state = {"weight": model.weight.item(), "bias": model.bias.item(), "loader": loader.state_dict()}
            checkpoint.write_text(json.dumps(state))
        if part == "first" and steps == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
