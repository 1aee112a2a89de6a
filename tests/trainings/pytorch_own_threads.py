"""Has an operator of its own tell how many threads there are, inside and outside of it."""

import json

import torch

library = torch.library.Library("mine", "DEF")
library.define("threads(Tensor x) -> Tensor")
library.impl("threads", lambda x: torch.tensor(torch.get_num_threads()), "CPU")
torch.set_num_threads(2)
print(json.dumps([torch.ops.mine.threads(torch.ones(1)).item(), torch.get_num_threads()]))
