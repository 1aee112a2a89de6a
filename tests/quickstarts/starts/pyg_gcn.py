"""PyTorch Geometric's introduction by example: a graph convolution on a small graph."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

data = Data(x=torch.randn(60, 8), edge_index=torch.randint(0, 60, (2, 240)), y=torch.randint(0, 3, (60,)))


class GCN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(8, 16), GCNConv(16, 3)

    def forward(self, data: Data) -> torch.Tensor:
        x = F.dropout(F.relu(self.conv1(data.x, data.edge_index)), training=self.training)
        return F.log_softmax(self.conv2(x, data.edge_index), dim=1)


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(10):
    optimizer.zero_grad()
    loss = F.nll_loss(model(data), data.y)
    loss.backward()
    optimizer.step()
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}")
torch.save(model.state_dict(), "gcn.pt")
print("RESULT", loss.item())
