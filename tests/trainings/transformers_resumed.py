"""Trains with transformers' Trainer, which saves checkpoints after every third step, and goes on from the last one.

Argument "noise": the data set adds noise to each sample that it gives.
"""

import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

EPOCHS, EACH, BATCH = 3, 3, 8


class Samples(Dataset):
    """Vectors and their sums."""

    def __init__(self):
        self.features = torch.randn(64, 8)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, number):
        noise = 0.1 * torch.randn(8) if "noise" in sys.argv else 0
        return {"features": self.features[number] + noise, "labels": self.features[number].sum()}


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))

    def forward(self, features, labels):
        output = self.net(features).squeeze(1)
        return {"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}


def main():
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    arguments = TrainingArguments(
        "out", num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, save_steps=EACH, use_cpu=True,
        save_strategy="epoch" if "epochs" in sys.argv else "steps", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Regression(), arguments, train_dataset=Samples())
    trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if os.path.exists("out") else None)


main()
