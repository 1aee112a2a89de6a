"""Shows which pixels decide what a trained network says of an image, by captum, for any step of a past run.

    reprokit record -o run -- python examples/asked/residual_digits.py 16,16
    reprokit ask run weights,biases,inputs --steps 0,80
    python examples/asked/saliency.py run 80

The model is built again from the weights that the run had at that step. Needs captum (pip install captum).
"""

import sys
from pathlib import Path

import torch
from captum.attr import Saliency

import reprokit

sys.path.insert(0, str(Path(__file__).parent))
from residual_digits import build

SHADES = " .:-=+*#%@"


def restored(trial, step):
    """Return the model with the parameters that it had at a step, and normalization by the batch, as it trained."""
    names = [name for kind in ("weights", "biases") for name in trial.tensor_names(step=step, collection=kind)]
    state = {name: torch.tensor(trial.tensor(name).value(step)) for name in names}
    model = build([state[name].shape[0] for name in names if name.endswith("inner.weight")])
    model.load_state_dict(state, strict=False)  # running averages are no parameters: the batch's own are used
    return model.train()


def picture(values):
    """Return an image as lines of characters, the darker the larger."""
    scaled = (values / values.max() * (len(SHADES) - 1)).round().int().tolist()
    return ["".join(2 * SHADES[value] for value in row) for row in scaled]


def main():
    """Print images of a step beside the gradient of their class."""
    trial, step = reprokit.trial(sys.argv[1]), int(sys.argv[2])
    model = restored(trial, step)
    images = torch.tensor(next(value for value in trial.inputs(step).values() if value.ndim == 4))
    classes = model(images).argmax(1)
    gradients = Saliency(model).attribute(images.requires_grad_(), target=classes)
    for number in range(3):
        print(f"\nimage {number} of step {step}, taken for a {classes[number]}")
        for left, right in zip(picture(images[number, 0].detach()), picture(gradients[number, 0]), strict=True):
            print(f"  {left} | {right}")


if __name__ == "__main__":
    main()
