"""Trains with Lightning, which saves checkpoints after every third step, and goes on from the last one (ckpt_path)."""

import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, EACH = 3, 3


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))

    def training_step(self, batch, _number):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    features = torch.randn(64, 8)
    data = TensorDataset(features, features.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=8, shuffle="ordered" not in sys.argv)
    model = Regression() if "steady" not in sys.argv else Regression().eval()
    callback = ModelCheckpoint("checkpoints", save_last=True, every_n_train_steps=EACH)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[callback]
    )
    last = "checkpoints/last.ckpt"
    trainer.fit(model, loader, ckpt_path=last if os.path.exists(last) else None)


main()
