"""Calls of the package that no docstring shows, for `test_types`: pyright reads them, and they run."""

import numpy as np
import torch

from mha_tutorial import Causal, Documents, FastMultiHeadAttention, MultiHeadAttention, Padding, Prefix, RowWeights
from mha_tutorial.layouts import LAYOUTS, convert, dump, identify, load
from mha_tutorial.torch import ExtraKeys, fused, guarded, naive, online
from mha_tutorial.torch import MultiHeadAttention as TorchAttention

rng = np.random.default_rng(0)
weights = RowWeights.random(rng, d_model=12, h=4, h_kv=2, d_k=5, d_v=7, bias=False)
x, memory = rng.normal(size=(2, 3, 12)), rng.normal(size=(2, 4, 12))

layer = MultiHeadAttention(weights.heads([0, 1]), scale=0.5)
visible = (Padding([3, 2]) & Causal()) | ~Prefix(np.array([1, 2])) | Documents([[1, 2], [3]])
print(layer(x, visible=visible).shape, layer(x, memory, visible=Padding((4, 2), side="left")).shape)
print(layer(x, memory, memory, bias=np.zeros((3, 4)), positions=None).shape)
print(layer.trace(x, visible=Documents([1, 2])).T.attention.shape)
print(layer.trace(x, visible=np.eye(3, dtype=bool)).output.shape)

fast = FastMultiHeadAttention(weights.T)
output, backward = fast.vjp(x, memory, visible=Padding([3, 2]))
print(backward(output).weights.W_q.shape, fast(x, bias=np.zeros((3, 3))).shape)

stored = dump(RowWeights.random(rng, 12, 4), LAYOUTS["torch"], "attention.")
print(load(stored, "torch", h=4, prefix="attention.").arrays().keys(), [match.h for match in identify(stored)])
print(convert(stored, "torch", "bert", h=4, prefix="attention.").keys())

tokens = torch.ones(2, 3, 12, dtype=torch.float64)
for kernel in (naive, fused, online, guarded(fused)):
    module = TorchAttention(12, 4, h_kv=2, kernel=kernel, dtype=torch.float64)
    print(module(tokens, visible=Padding([3, 2])).shape, module.trace(tokens, visible=Causal()).attention.shape)
    print(module.to_weights().W_q.shape, TorchAttention.from_weights(weights, kernel=kernel, device="cpu").h)
extra = ExtraKeys(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3))
print(TorchAttention(12, 4, h_kv=2, extra_keys=extra)(torch.zeros(1, 3, 12)).shape)
