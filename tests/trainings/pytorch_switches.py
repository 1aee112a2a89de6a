"""Turns off again what patches of PyTorch have switched on."""

import json
import sys

import torch
from torch.utils.data import DataLoader

inductor = "torch._inductor.config" in sys.modules
states = []
torch.use_deterministic_algorithms(False)
states.append(torch.get_deterministic_debug_mode())
torch.set_deterministic_debug_mode("default")
states.append(torch.get_deterministic_debug_mode())
torch.use_deterministic_algorithms(True)
states.append(torch.get_deterministic_debug_mode())
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = False
states.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))
with torch.backends.cudnn.flags(benchmark=True, deterministic=False):
    states.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))
torch.set_num_threads(5)
torch.set_num_interop_threads(5)
states.append((torch.get_num_threads(), torch.get_num_interop_threads()))


class Counts:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.get_num_threads()


states.append([batch.tolist() for batch in DataLoader(Counts(), num_workers=1)])
states.append(torch.empty(4000).isnan().all().item())
undone = sys.modules["_reprokit_agent"].patches.running.undo
states.append([undone(name) for name in ("torch-deterministic", "torch-cudnn", "threads")])
torch.backends.cudnn.benchmark = True
torch.use_deterministic_algorithms(False)
torch.set_num_threads(4)
states.append((torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark, torch.get_num_threads()))
print(json.dumps([inductor, *states]))
