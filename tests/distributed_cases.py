"""What `test_distributed` runs in processes of their own."""

import copy
import gc

import torch
from torch import nn

from mha_tutorial import Causal
from mha_tutorial.torch import MultiHeadAttention


def data_parallel(folder: str) -> None:
    """A replica in `DistributedDataParallel` has the gradients of the layer alone."""
    store = torch.distributed.FileStore(f"{folder}/store", 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        layer, x = MultiHeadAttention(12, 4, dtype=torch.float64), torch.randn(2, 5, 12).double()
        parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(layer))
        for model in (layer, parallel):
            model(x, visible=Causal()).square().sum().backward()
        for mine, alone in zip(parallel.module.parameters(), layer.parameters(), strict=True):
            assert mine.grad is not None
            assert alone.grad is not None
            torch.testing.assert_close(mine.grad, alone.grad, rtol=0, atol=0)
        del model, parallel, mine
        gc.collect()  # outliving its group, the module would join a thread that waits for the interpreter
    finally:
        torch.distributed.destroy_process_group()
