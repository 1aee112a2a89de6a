"""Four threads, each training a small model on draws of an unseeded generator of its own."""

import hashlib
import threading

import numpy as np
import torch
from torch import nn


def train(results, index):
    generator = torch.Generator()
    generator.seed()
    numpy_generator = np.random.default_rng()
    weight = torch.randn(8, 3, generator=generator, requires_grad=True)
    for _ in range(20):
        batch = torch.from_numpy(numpy_generator.normal(size=(16, 8)).astype("float32"))
        loss = nn.functional.cross_entropy(batch @ weight, torch.randint(0, 3, (16,), generator=generator))
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight -= 0.1 * gradient
    results[index] = weight.detach().numpy().tobytes()


def main():
    torch.set_num_threads(1)
    results = [b""] * 4
    threads = [threading.Thread(target=train, args=(results, index)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 4
    for index, result in enumerate(results):
        np.save(f"weight{index}.npy", np.frombuffer(result, "float32"))
        print(index, hashlib.sha256(result).hexdigest())


if __name__ == "__main__":
    main()
