"""Trains and evaluates by Hugging Face's Trainer, and writes down what each step was given."""

import json

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

steps, pending = [], []


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x, labels=None):
        if self.training:
            pending.extend(x.flatten().int().tolist())
        outputs = self.layer(x)
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


class Steps(TrainerCallback):
    def on_step_end(self, *arguments, **keywords):
        steps.append(list(pending))
        pending.clear()


data = [{"x": torch.tensor([float(number)]), "labels": torch.tensor([1.0])} for number in range(44)]
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    learning_rate=1e-5,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[Steps()]).train()
with open("seen.json", "w") as file:
    json.dump({"steps": steps}, file)
