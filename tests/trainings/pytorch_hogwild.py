"""Two processes update the same weights, each when it comes to it."""

import torch
from torch import multiprocessing


def train(model, rank):
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(50):
        optimizer.zero_grad()
        model(torch.rand(8, 4)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model.share_memory()
    processes = [multiprocessing.Process(target=train, args=(model, rank)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
