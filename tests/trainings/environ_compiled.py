"""Reads variables of the environment in a function that is compiled whole."""

import os

import torch


@torch.compile(backend="eager", fullgraph=True)
def scaled(values):
    if os.environ.get("SCALE") == "2" and "SCALE" in os.environ and "UNSET" not in os.environ:
        return values * float(os.environ["SCALE"])
    return values


print(scaled(torch.ones(1)).item())
