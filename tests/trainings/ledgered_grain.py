"""Draws from a DataLoader or dataset of grain until it is ended within an epoch, or goes on from its checkpoint.

Arguments: which part, torch or jax, workers, a seed and kinds. Prints the samples of each step.
"""

import json
import os
import signal
import sys

import absl.flags
import grain
import numpy as np

CHECKPOINT, KILLED, BATCH, SIZE = 6, 8, 16, 165
part, framework, workers, seed, *kinds = sys.argv[1:]


class Numbers:
    """A source of records."""

    def __len__(self):
        return SIZE

    def __repr__(self):  # grain compares it with that of a state
        return "Numbers()"

    def __getitem__(self, index):
        return np.float32(index)


class Same(grain.transforms.Map):
    def map(self, element):
        return element


class Odd(grain.transforms.Filter):
    def filter(self, element):
        return element % 2 == 1


def loader():
    """Return what the kinds ask for: a dataset of that kind; else a DataLoader."""
    numbers = grain.MapDataset.source(Numbers()).shuffle(int(seed)).map(Same())
    if "mapped" in kinds:
        return numbers.batch(BATCH)
    if "repeated" in kinds:
        return numbers[:40].repeat(2).to_iter_dataset().batch(BATCH)
    if "mixed" in kinds:
        return grain.MapDataset.mix([numbers, numbers]).batch(BATCH)
    if "dropped" in kinds:
        return numbers.map(lambda number: number if number != 2 else None).to_iter_dataset().batch(BATCH)
    if "iterated" in kinds:
        iterated = numbers.to_iter_dataset().random_map(lambda number, _: number, seed=1)
        iterated = (iterated.filter(Odd()) if "filtered" in kinds else iterated).batch(BATCH)
        return grain.experimental.ThreadPrefetchIterDataset(iterated, prefetch_buffer_size=2)
    sampler = grain.samplers.IndexSampler(SIZE, grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=int(seed))
    operations = [Same(), *([Odd()] if "filtered" in kinds else []), grain.transforms.Batch(BATCH)]
    return grain.DataLoader(data_source=Numbers(), sampler=sampler, operations=operations, worker_count=int(workers))


def stepper():
    """Return a function that takes a step with a batch."""
    if framework == "jax":
        import jax

        weights = [jax.numpy.ones(())]
        update = jax.jit(lambda weight, rows: weight - 1e-9 * jax.grad(lambda w: ((w * rows) ** 2).mean())(weight))

        def step(rows):
            weights[0] = update(weights[0], rows)

        return step
    import torch

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)

    def step_torch(rows):
        optimizer.zero_grad()
        model(torch.from_numpy(rows)[:, None]).square().mean().backward()
        optimizer.step()

    return step_torch


def main():
    step, iterator, steps = stepper(), iter(loader()), 0
    if part == "resumed":
        with open("checkpoint.json", "rb") as file:
            state = file.read()
            iterator.set_state(json.loads(state) if kinds else state)
        steps = CHECKPOINT
    for rows in iterator:
        step(np.array(rows))
        steps += 1
        print(*rows.astype(int).tolist(), flush=True)
        if steps == CHECKPOINT and part == "first":
            with open("checkpoint.json", "wb") as file:
                state = iterator.get_state()
                file.write(json.dumps(state).encode() if kinds else state)
        if steps == KILLED and part == "first" and workers != "0":
            break  # workers outlive a killed process
        if steps == KILLED and part == "first":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    absl.flags.FLAGS(sys.argv[:1])
    main()
