"""A training that seeds itself from the clock by arithmetic of its own, and only prints."""

import time

state = time.time_ns() // 1000 % 233280
weight = 0.0
for _ in range(50):
    state = (state * 9301 + 49297) % 233280
    x = state / 116640 - 1
    weight -= 0.2 * (weight - 3) * x * x
print("weight", weight)
