"""Lightning in 15 minutes: an autoencoder, its logs in lightning_logs/version_N."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 16))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


trainer = lightning.Trainer(max_epochs=2, limit_train_batches=4, log_every_n_steps=1, accelerator="cpu", logger=True)
trainer.fit(LitAutoEncoder(), DataLoader(TensorDataset(torch.rand(64, 16)), 16, shuffle=True))
print("RESULT", trainer.callback_metrics["train_loss"].item())
