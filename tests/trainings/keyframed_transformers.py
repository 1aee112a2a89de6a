"""Trains with transformers' Trainer: a GPT-2 of two layers, evaluations, checkpoints, accumulated gradients."""

import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS = int(sys.argv[1])


class Tokens(Dataset):
    """Sequences of tokens."""

    def __init__(self):
        self.tokens = torch.randint(0, 50, (96, 12))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, number):
        return {"input_ids": self.tokens[number], "labels": self.tokens[number]}


torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=12, n_embd=16, n_layer=2, n_head=2))
arguments = TrainingArguments(
    "out", max_steps=STEPS, per_device_train_batch_size=8, save_steps=10, use_cpu=True, report_to=[], logging_steps=5,
    eval_strategy="steps", eval_steps=10, gradient_accumulation_steps=2, warmup_steps=5, save_total_limit=2,
    lr_scheduler_type="cosine", bf16=True, max_grad_norm=0.5,
)  # fmt: skip
Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens()).train()
