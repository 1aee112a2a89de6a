"""Logs numbers that tensors of PyTorch and TensorFlow hold."""

import tensorflow
import torch

import reprokit

reprokit.log(a=torch.tensor(0.1), b=torch.tensor([2.5], dtype=torch.bfloat16), c=torch.tensor(3, requires_grad=False))
reprokit.log(d=tensorflow.constant(0.1), e=tensorflow.Variable(0.5, dtype=tensorflow.float64))
reprokit.log(f=torch.tensor(1.5, requires_grad=True))
