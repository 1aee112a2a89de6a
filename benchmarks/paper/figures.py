"""The paper's own figures: recomputed from the result files of its replication package, and copied from its Time.xlsx.

github.com/nemo9cby/ICSE2022Rep at commit aa0b5137: "experimental results"/lenet*/cpu, for variance the 16 files each
that were neither seeded nor recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

PREDICTIONS = 2500  # of each file


@dataclass(frozen=True)
class Varied:
    """How far 16 bare runs lie apart; accuracies and their differences in percent."""

    mean: float
    largest: float
    deviation: float
    class_largest: float
    class_deviation: float
    inconsistent_largest: int
    inconsistent_mean: float


VARIED = {
    ("LeNet-1", "1.14"): Varied(97.76, 0.88, 0.24, 4.17, 1.15, 52, 36.8),
    ("LeNet-1", "2.1"): Varied(97.88, 0.00, 0.00, 0.00, 0.00, 0, 0.0),
    ("LeNet-4", "1.14"): Varied(98.62, 0.56, 0.15, 1.72, 0.56, 28, 20.2),
    ("LeNet-4", "2.1"): Varied(98.60, 0.56, 0.16, 2.42, 0.67, 30, 19.1),
    ("LeNet-5", "1.14"): Varied(98.96, 0.52, 0.14, 2.35, 0.63, 26, 18.9),
    ("LeNet-5", "2.1"): Varied(99.02, 0.44, 0.10, 1.72, 0.49, 31, 17.6),
}

# Of 8 seeded pairs and of 8 recordings with their replays, those with equal losses of all 50 epochs, equal accuracies
# of all classes and equal predictions: all of them, for each model and version.
EQUAL_PAIRS = (8, 8)

# p of record-and-replay against without (Time.xlsx: Wilcoxon's rank-sum test).
RECORDING_P = {"LeNet-1": 0.23, "LeNet-4": 0.18, "LeNet-5": 0.74}
