"""skorch's quick start: a classifier whose history holds the duration of each epoch."""

import numpy as np
import torch
from sklearn.datasets import make_classification
from skorch import NeuralNetClassifier
from torch import nn

X, y = make_classification(200, 20, n_informative=10, random_state=0)
X, y = X.astype(np.float32), y.astype(np.int64)


class MyModule(nn.Module):
    def __init__(self, num_units: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, num_units), nn.ReLU(), nn.Dropout(0.5), nn.Linear(num_units, 2))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(X), dim=-1)


net = NeuralNetClassifier(MyModule, max_epochs=4, lr=0.1, iterator_train__shuffle=True)
net.fit(X, y)
net.save_params(f_params="model.pkl", f_optimizer="optimizer.pkl", f_history="history.json")
print("RESULT", net.predict_proba(X)[0, 0])
