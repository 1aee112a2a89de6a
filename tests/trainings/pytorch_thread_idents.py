"""Threads of which the later gets the ident of an ended one ("apart"), or which are together."""

import sys
import threading

import torch


def double(rows: torch.Tensor) -> None:
    (rows * 2).sum()


torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = torch.randn(2, 4)
    threads = [threading.Thread(target=double, args=(rows,)) for _ in range(2)]
    for thread in threads:
        thread.start()
        if sys.argv[1] == "apart":  # the second thread then gets the ident of the first
            thread.join()
    for thread in threads:
        thread.join()
    if sys.argv[1] == "together" and step == 4:
        rows.numpy()[0] += 1
    model(rows).sum().backward()
    optimizer.step()
