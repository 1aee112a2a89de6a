"""Prunes a residual network round by round, by gradient times activation, and trains it on after each round.

    python examples/asked/pruning.py [ROUNDS]

A convolution without bias is linear in its weights. So the sum of weight times gradient over a filter is the sum of
activation times gradient over that filter's outputs (Molchanov et al., 2017), and weights and gradients are enough.
"""

import re
import subprocess
import sys
from pathlib import Path

import numpy
import torch

import reprokit

TRAINING = str(Path(__file__).parent / "residual_digits.py")
PRUNED = 0.25  # of the inner channels, in each round
BLOCK = r"^(\d+)\.inner\.weight$"


def trained(name, widths, *weights):
    """Record a training with its weights and gradients from step 20 on, and return what it printed."""
    command = [sys.executable, TRAINING, ",".join(map(str, widths)), *weights]
    record = [sys.executable, "-m", "reprokit", "record", "-q", "-o", name, "--tensors", "weights,gradients 20-"]
    return subprocess.run([*record, "--", *command], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def importance(trial, name):
    """Return how much each filter of a convolution changes the loss, by the steps that were saved."""
    weight, gradient = trial.tensor(name), trial.tensor(f"gradient/{name}")
    steps = [step for step in gradient.steps() if step in weight.steps()]
    products = [(weight.value(step) * gradient.value(step)).sum(axis=(1, 2, 3)) for step in steps]
    return numpy.mean(numpy.abs(products), axis=0)


def pruned(state, scores):
    """Return the state of the network without the least important channels, and its widths."""
    widths = []
    for block, score in scores.items():
        kept = numpy.sort(numpy.argsort(score)[int(PRUNED * len(score)) :])
        state[f"{block}.inner.weight"] = state[f"{block}.inner.weight"][kept]
        state[f"{block}.outer.weight"] = state[f"{block}.outer.weight"][:, kept]
        for part in ("weight", "bias", "running_mean", "running_var"):
            state[f"{block}.norm.{part}"] = state[f"{block}.norm.{part}"][kept]
        widths.append(len(kept))
    return state, widths


def main():
    """Print parameters against accuracy for each round."""
    widths, weights = [24, 24], []
    for number in range(int(sys.argv[1]) if sys.argv[1:] else 4):
        name = f"round{number}"
        print(f"round {number}: widths {widths} {trained(name, widths, *weights)}", flush=True)
        trial = reprokit.trial(name)
        names = trial.tensor_names(regex=BLOCK)
        scores = {re.match(BLOCK, name)[1]: importance(trial, name) for name in names}
        state, widths = pruned(torch.load("residual.pt", weights_only=True), scores)
        torch.save(state, "pruned.pt")
        weights = ["pruned.pt"]


if __name__ == "__main__":
    main()
