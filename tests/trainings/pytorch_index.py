"""Learns a table that is read by x[idx], on two threads, which race in the backward pass for the order of additions.

Arguments: eager or compiled; whether the table is read by a row (index) or added to (add).
"""

import hashlib
import sys

import numpy as np
import torch
from torch import nn

ROWS, WIDTH, BATCH = 500, 16, 20000


def read(table, rows):
    """What a batch asks of the table."""
    return table[rows]


def add_up(table, rows):
    """The same numbers summed again by index_add, which only Inductor lets threads race for."""
    return torch.zeros_like(table).index_add(0, rows, table.index_select(0, rows))


def main(how, what):
    torch.set_num_threads(2)
    table = nn.Parameter(torch.randn(ROWS, WIDTH))
    optimizer = torch.optim.SGD([table], lr=0.05)
    function = {"index": read, "add": add_up}[what]
    if how == "compiled":
        function = torch.compile(function)
    for _ in range(40):
        rows = torch.randint(0, ROWS, (BATCH,))
        found = function(table, rows)
        loss = (found - torch.rand(found.shape)).square().sum() / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = table.detach().numpy()
    np.save("table.npy", weights)
    print(hashlib.sha256(weights.tobytes()).hexdigest())


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["eager", "index"]))
