"""Saves the model, the optimizer and PyTorch's generator after each epoch, but not what it keeps in variables.

Arguments: which of its variables decides about the steps ("counter", "clipping", ...), or "nothing"; and "optimizer" to
leave that one out, too.
"""

import collections
import dataclasses
import os
import random
import sys
import time

import numpy as np
import torch

KIND, CHECKPOINT, EPOCHS, BATCHES = sys.argv[1], "checkpoint.pt", 8, 8
START = time.time()
RUNS = 0
history = []


@dataclasses.dataclass
class Config:
    """Settings that the training changes."""

    weight: float = 1.0
    phases: list = dataclasses.field(default_factory=list)


class Average:
    """An average of weights that the loss pulls towards."""

    def __init__(self, model):
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def update(self, model):
        for name, parameter in model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * parameter.detach()

    def distance(self, model):
        return sum((self.shadow[name] - parameter).pow(2).sum() for name, parameter in model.named_parameters())


class Trainer:
    """Takes the steps."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.global_step = 0

    def penalty(self):
        return 0.001 * self.global_step * sum(parameter.pow(2).sum() for parameter in self.model.parameters())

    def step(self, loss, clipping):
        self.optimizer.zero_grad()
        loss.backward()
        if clipping is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clipping)
        self.optimizer.step()
        self.global_step += 1


def annealed(temperature):
    """Return a function that lowers its temperature with each call."""

    def anneal():
        nonlocal temperature
        temperature *= 0.95
        return temperature

    return anneal


def main():
    torch.manual_seed(3)
    random.seed(1)
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer, average, config, anneal = Trainer(model, optimizer), Average(model), Config(), annealed(2.0)
    counter = epoch = 0
    best, patience, clipping, running = float("inf"), 0, 1.0, torch.zeros(())
    length, difficulties = 2, [1.0] * BATCHES
    rewards = collections.deque(maxlen=5)
    weights = np.ones(6, "float32")
    generator = np.random.default_rng(5)
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        if "optimizer" not in sys.argv:
            optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["generator"])
        epoch = saved["epoch"]
    while epoch < EPOCHS:
        losses = []
        for batch in torch.utils.data.DataLoader(data, BATCHES):
            inputs, targets = batch
            counter += 1
            if KIND == "curriculum":
                inputs = inputs * (torch.arange(6) < length)
            if KIND == "classes":
                inputs = inputs * torch.from_numpy(weights)
            if KIND == "difficulties":
                inputs = inputs[random.choices(range(len(inputs)), difficulties, k=len(difficulties))]
                targets = inputs.sum(1, keepdim=True)
            if KIND == "generator":
                inputs = inputs + float(generator.standard_normal())
            output = model(inputs)
            loss = torch.nn.functional.mse_loss(output, targets)
            losses.append(loss.item())
            if KIND == "counter":
                loss = loss * counter
            if KIND == "average":
                loss = loss + average.distance(model)
            if KIND == "running":
                running = 0.9 * running + 0.1 * loss.detach()
                loss = loss / (1 + running)
            if KIND == "rewards":
                rewards.append(loss.item())
                loss = loss * (1 + sum(rewards))
            if KIND == "config":
                loss = loss * config.weight
                config.weight *= 0.97
                config.phases.append(counter)
            if KIND == "closure":
                loss = loss * anneal()
            if KIND == "trainer":
                loss = loss + trainer.penalty()
            trainer.step(loss, clipping if KIND == "clipping" else None)
            average.update(model)
            clipping *= 0.9
        mean = sum(losses) / len(losses)
        history.append((time.time() - START, mean))
        patience = 0 if mean < 0.95 * best else patience + 1
        best = min(best, mean)
        length += 1
        weights *= np.linspace(0.8, 1.2, 6, dtype="float32")
        difficulties = [difficulty * (1 + 0.2 * number) for number, difficulty in enumerate(difficulties)]
        epoch += 1
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.get_rng_state()}
        torch.save({**states, "epoch": epoch}, CHECKPOINT)
        if KIND == "patience" and patience == 2:
            break


main()
