"""Trains by torchdata's StatefulDataLoader until it is killed in the midst of an epoch, or goes on from its checkpoint.

Arguments: which part, the kind of loader, and a seed. Prints the samples of each step.
"""

import os
import signal
import sys

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

CHECKPOINT, KILLED, BATCH, SIZE = 6, 8, 16, 160
part, kind, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Streamed(torch.utils.data.IterableDataset):
    """Each worker gives its own samples, and knows where it is."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return map(torch.tensor, range(first, SIZE, step))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    if kind == "streamed":
        loader = StatefulDataLoader(Streamed(), BATCH, num_workers=2)
    else:
        workers = {"num_workers": 2, "persistent_workers": kind == "persistent"} if kind != "plain" else {}
        loader = StatefulDataLoader(list(range(SIZE)), BATCH, shuffle=True, **workers)
    step = 0
    if part == "resumed":
        state = torch.load("checkpoint.pt", weights_only=False)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
        step = state["steps"]
    for rows in loader:
        model(rows.float()[:, None]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(*rows.tolist(), flush=True)
        if step == CHECKPOINT and part == "first":
            state = {"model": model.state_dict(), "loader": loader.state_dict(), "steps": step}
            torch.save(state, "checkpoint.pt")
        if step == KILLED and part == "first":
            os.kill(os.getpid(), signal.SIGKILL)
