"""diffusers' tutorial of training a diffusion model: predict the noise that a scheduler added."""

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup

model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 8),
    down_block_types=("DownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "UpBlock2D"),
    norm_num_groups=4,
)
scheduler = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 6)
for step in range(6):
    images = torch.rand(4, 1, 8, 8)
    noise = torch.randn(images.shape)
    timesteps = torch.randint(0, 100, (4,), dtype=torch.int64)
    predicted = model(scheduler.add_noise(images, noise, timesteps), timesteps, return_dict=False)[0]
    loss = F.mse_loss(predicted, noise)
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print("step", step, "loss", loss.item())
model.save_pretrained("unet")
print("RESULT", loss.item())
