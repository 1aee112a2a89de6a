"""Trains beside captures whose steps are followed, or not, and does at one step what no step before it did: KIND...

Of each kind there are two snapshots, which must be the same: in DIRECTORY/KIND/usual and DIRECTORY/KIND/followed.
Beside each stand the parameters afterwards, and how many steps were not followed before.
"""

import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import reprokit.capture

SAMPLES, BATCH, AT = 160, 4, 30  # steps of an epoch: 40
# A norm is computed for this condition at each step, so that all of it is followed.
FOLLOWED = ["gradient-jump>1e30"]


class Training:
    def __init__(self):
        torch.manual_seed(1)
        random.seed(1)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        x = torch.randn(SAMPLES, 6)
        x[:, 0] = 0  # so that these weights never get a gradient
        self.loader = DataLoader(TensorDataset(x, torch.randint(0, 2, (SAMPLES,))), BATCH, True)
        self.bad = None  # what becomes not finite in this step
        self.model[0].weight.register_hook(lambda gradient: gradient / 0 if self.bad == "gradient" else gradient)

    def loss(self, x, y):
        random.random()
        loss = nn.functional.cross_entropy(self.model(x), y)
        return loss * float("nan") if self.bad == "loss" else loss

    def step(self, x, y):
        self.optimizer.zero_grad()
        self.loss(x, y).backward()
        self.optimizer.step()


def evaluated(training, x):
    with torch.no_grad():
        training.model(x)


def gradient(training, x, y):
    training.bad = "gradient"
    training.step(x, y)
    training.bad = None


def loss(training, x, y):
    training.bad = "loss"
    training.step(x, y)


def parameters(training, x, y):
    training.optimizer.param_groups[0]["eps"] = 0  # 0 / 0
    training.step(x, y)


def after_an_evaluation(training, x, y):
    evaluated(training, x)
    gradient(training, x, y)


def in_which_is_evaluated(training, x, y):
    training.bad = "gradient"
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    evaluated(training, x)
    training.optimizer.step()


def of_two_batches(training, x, y):
    training.bad = "gradient"
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    training.loss(*next(iter(training.loader))).backward()
    training.optimizer.step()


def with_a_closure(training, x, y):
    training.bad = "gradient"

    def closure():
        training.optimizer.zero_grad()
        loss = training.loss(x, y)
        loss.backward()
        return loss

    training.optimizer.step(closure)


def without_a_batch(training, x, y):
    training.step(x, y)
    gradient(training, x, y)


def after_an_error(training, x, y):
    hook = training.optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    try:
        training.step(x, y)
    except ZeroDivisionError:
        hook.remove()
    training.bad = "gradient"
    training.optimizer.step()
    gradient(training, x, y)


def after_a_failed_backward_pass(training, x, y):
    training.optimizer.zero_grad()
    hook = training.model[3].weight.register_hook(lambda _: 1 / 0)
    try:
        training.loss(x, y).backward()
    except ZeroDivisionError:
        hook.remove()
    gradient(training, x, y)


def with_a_batch_that_changed(training, x, y):
    x.mul_(2)
    gradient(training, x, y)


def of_two_optimizers(training, x, y):
    other = torch.optim.SGD(training.model.parameters(), lr=0.1)
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    other.step()
    gradient(training, x, y)


def of_the_next_epoch(training, x, y):
    training.step(x, y)
    for number, (x, y) in enumerate(training.loader):
        gradient(training, x, y) if number == 5 else training.step(x, y)


KINDS = {each.__name__: each for each in (
    gradient, loss, parameters, after_an_evaluation, in_which_is_evaluated, of_two_batches, with_a_closure,
    without_a_batch, after_an_error, after_a_failed_backward_pass, with_a_batch_that_changed, of_two_optimizers,
    of_the_next_epoch,
)}  # fmt: skip


def main(directory, kinds):
    for kind in kinds:
        for name, conditions in (("usual", []), ("followed", FOLLOWED)):
            training, settings = Training(), {"on_nan": "skip", "capture_when": conditions}
            place = Path(directory, kind, name)
            place.mkdir(parents=True)
            with reprokit.capture.guard(training.model, training.optimizer, directory=str(place), **settings) as guard:
                for number, (x, y) in enumerate(training.loader):
                    if number == AT:
                        (place / "count").write_text(str(guard._training.threads.usual.count))
                        KINDS[kind](training, x, y)
                        break
                    training.step(x, y)
            torch.save(training.model.state_dict(), place / "after.pt")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(KINDS))
