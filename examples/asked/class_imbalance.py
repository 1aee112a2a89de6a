"""Finds classes that a training saw too rarely, and what that did to it.

reprokit record -o run -- python examples/asked/imbalanced_digits.py
reprokit ask run labels,predictions --mode train,eval
python examples/asked/class_imbalance.py run
"""

import sys

import numpy

import reprokit


def classes(trial, mode):
    """Return the labels of all saved steps of a mode, and the classes that the model gave them."""
    found = {"labels": [], "predictions": []}
    for collection, values in found.items():
        (name,) = trial.tensor_names(collection=collection, mode=mode)
        tensor = trial.tensor(name)
        for step in tensor.steps(mode):  # an evaluation has many batches in one step: the calls of the loss
            values += [tensor.value(step, mode, call=call) for call in range(tensor.calls(step, mode))]
    return numpy.concatenate(found["labels"]), numpy.concatenate(found["predictions"]).argmax(-1)


def main():
    """Print how often each class was seen in training, and how much of it an evaluation finds."""
    trial = reprokit.trial(sys.argv[1])
    seen, _ = classes(trial, "train")
    truth, given = classes(trial, "eval")
    counts = numpy.bincount(seen)
    print("class  seen  share of it that is found")
    for number, count in enumerate(counts):
        found = (given[truth == number] == number).mean()
        rare = "  rare" if count < 0.3 * numpy.median(counts) else ""
        print(f"{number:>5} {count:>5}  {found:.2f}{rare}")


if __name__ == "__main__":
    main()
