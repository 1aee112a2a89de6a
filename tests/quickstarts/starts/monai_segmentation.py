"""MONAI's spleen tutorial, cut to a small net on random volumes."""

import torch
from monai.data import DataLoader, Dataset
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureChannelFirstd, RandFlipd, RandGaussianNoised

volumes = [{"image": torch.rand(16, 16), "label": (torch.rand(16, 16) > 0.5).float()} for _ in range(12)]
transform = Compose(
    [
        EnsureChannelFirstd(keys=["image", "label"], channel_dim="no_channel"),
        RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0),
        RandGaussianNoised(keys=["image"], prob=0.5),
    ]
)
model = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2,), num_res_units=1)
loss_function = DiceLoss(sigmoid=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(2):
    for step, batch in enumerate(DataLoader(Dataset(volumes, transform), batch_size=4, shuffle=True)):
        optimizer.zero_grad()
        loss = loss_function(model(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch + 1}, {step}/3, train_loss: {loss.item():.4f}")
torch.save(model.state_dict(), "best_metric_model.pth")
print("RESULT", loss.item())
