"""Shows what a transformer looked at, class by class, and how that changed while it trained.

reprokit record -o run -- python examples/asked/attention_digits.py
reprokit ask run 'attention_output_1,labels' --steps 0-112:28
python examples/asked/attention.py run
"""

import sys

import numpy

import reprokit

WEIGHTS = "attention_output_1"  # the second output of nn.MultiheadAttention: batch, queries, keys


def looked_at(trial, step):
    """Return for each class the average weight that the deciding token gave each row of the image."""
    weights = trial.tensor(WEIGHTS).value(step)[:, 0, 1:]
    (labels,) = trial.labels(step).values()
    return {number: weights[labels == number].mean(axis=0) for number in numpy.unique(labels)}


def main():
    """Print how sharp attention was at each saved step, and for each class the row that got most of it at the last."""
    trial = reprokit.trial(sys.argv[1])
    steps = trial.tensor(WEIGHTS).steps()
    for step in steps:
        weights = trial.tensor(WEIGHTS).value(step)
        entropy = -(weights * numpy.log(weights + 1e-12)).sum(-1).mean()
        print(f"step {step}: entropy {entropy:.2f} of at most {numpy.log(weights.shape[-1]):.2f}")
    for number, rows in looked_at(trial, steps[-1]).items():
        print(f"class {number}: row {rows.argmax()} most; {' '.join(f'{row:.2f}' for row in rows)}")


if __name__ == "__main__":
    main()
