"""Actors of Ray with seeds that the driver drew, and tasks that are taken as they are done; prints what came out."""

import random
import time

import numpy as np
import ray

RANKS, STEPS, TASKS = 3, 5, 12


@ray.remote
class Worker:
    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def gradient(self, weight):
        return weight - self.generator.random()


@ray.remote
def task(number):
    time.sleep(time.perf_counter_ns() // 1000 % 5 / 100)
    return number


def main():
    ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=False)
    random.seed(0)  # Ray has drawn ports from it until one was free
    workers = [Worker.remote(seed) for seed in np.random.SeedSequence().spawn(RANKS)]
    weight = 0.5
    for _ in range(STEPS):
        weight -= 0.1 * sum(ray.get([worker.gradient.remote(weight) for worker in workers]))
    left, order = [task.remote(number) for number in range(TASKS)], []
    while left:
        done, left = ray.wait(left)
        order += ray.get(done)
    print(weight, order)


if __name__ == "__main__":
    main()
