"""Hydra's quick start: an application that works in outputs/DATE/TIME and logs there."""

import logging
import os

import hydra
import torch
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path=None)
def train(config: DictConfig) -> None:
    log.info("configuration %s", OmegaConf.to_container(config))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        log.info("epoch %d loss %.6f", epoch, loss.item())
    directory = hydra.core.hydra_config.HydraConfig.get().runtime.output_dir
    torch.save(model.state_dict(), os.path.join(directory, "model.pt"))
    print("RESULT", loss.item())


if __name__ == "__main__":
    train()
