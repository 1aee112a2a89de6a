"""Trains with Lightning: checkpoints, logged metrics, a validation, clipped and accumulated gradients, an average."""

import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(sys.argv[1])


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))

    def training_step(self, batch, _number):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, _number):
        self.log("validation", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
features = torch.randn(64, 8)
data = TensorDataset(features, features.sum(1, keepdim=True))
callbacks = [ModelCheckpoint("checkpoints", save_last=True, monitor="validation"), LearningRateMonitor()]
callbacks += [EarlyStopping("validation", patience=2)] if "stopping" in sys.argv else [EMAWeightAveraging(decay=0.9)]
trainer = lightning.Trainer(
    max_steps=STEPS, accelerator="cpu", logger=CSVLogger("logs"), callbacks=callbacks, log_every_n_steps=2,
    gradient_clip_val=1.0, accumulate_grad_batches=2,
)  # fmt: skip
trainer.fit(Regression(), DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=32))
