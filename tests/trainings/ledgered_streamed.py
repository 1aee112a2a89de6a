"""Streams files by Hugging Face's datasets until it is killed in the midst of an epoch, or goes on from its checkpoint.

Arguments: which part, the records that shuffle has in its buffer, and the loader. Prints the samples of each step.
"""

import json
import os
import signal
import sys
from pathlib import Path

import datasets
import torch

CHECKPOINT, KILLED, BATCH, FILES, RECORDS = 6, 8, 8, 4, 25
part, buffer, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
torch.manual_seed(1)
if part != "resumed":
    for file in range(FILES):
        numbers = range(file * RECORDS, (file + 1) * RECORDS)
        Path(f"{file}.jsonl").write_text("".join(json.dumps({"number": number}) + "\n" for number in numbers))

files = [f"{file}.jsonl" for file in range(FILES)]
dataset = datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir="cache")
dataset = dataset.shuffle(seed=1, buffer_size=buffer)
if kind == "stateful":
    from torchdata.stateful_dataloader import StatefulDataLoader as Loader
else:
    from torch.utils.data import DataLoader as Loader

loader = Loader(dataset, BATCH)
position = loader if kind == "stateful" else dataset
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
step = 0
if part == "resumed":
    state = torch.load("checkpoint.pt", weights_only=False)
    model.load_state_dict(state["model"])
    position.load_state_dict(state["position"])
    step = CHECKPOINT
for batch in loader:
    optimizer.zero_grad()
    model(batch["number"].float()[:, None]).square().mean().backward()
    optimizer.step()
    step += 1
    print(*batch["number"].tolist(), flush=True)
    if step == CHECKPOINT and part == "first":
        torch.save({"model": model.state_dict(), "position": position.state_dict()}, "checkpoint.pt")
    if step == KILLED and part == "first":
        os.kill(os.getpid(), signal.SIGKILL)
