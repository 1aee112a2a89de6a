"""Validates a forest whose seed is of the clock."""

import time

from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score

rows, classes = [[number] for number in range(50)], [0, 1] * 25
print(list(cross_val_score(RandomForestClassifier(3, random_state=time.time_ns() % 2**32), rows, classes, cv=2)))
