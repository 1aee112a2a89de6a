"""Tells whether compiled operators repeat, and agree with those that are not compiled."""

import json

import torch

torch.set_num_threads(2)
rows, values = torch.randint(0, 300, (20000,)), torch.randn(20000, 16)


def add_up(rows, values):
    return torch.zeros(300, 16).index_add(0, rows, values)


def look_up(rows, table):
    return torch.nn.functional.embedding(rows, table) * 1


def gradient(function):
    table = torch.zeros(300, 16, requires_grad=True)
    (function(rows, table) * values).sum().backward()
    return table.grad


def results(call, repeats):
    return {call().numpy().tobytes() for _ in range(repeats)}


added, looked_up = torch.compile(add_up), torch.compile(look_up)
same_sums = results(lambda: added(rows, values), 20) == results(lambda: add_up(rows, values), 1)
same_gradients = results(lambda: gradient(looked_up), 20) == results(lambda: gradient(look_up), 1)
print(json.dumps([same_sums, same_gradients]))
