"""What the tests of `mha_tutorial.torch` share: arrays and tensors, kernels, devices, and a look at memory."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mha_tutorial.torch import fused, guarded, naive, online

BLOCKED = {"naive": naive, "fused": fused, "online": partial(online, block=3), "guarded": guarded(fused)}


def tensors(*arrays, dtype=torch.float64, device="cpu"):
    """Copies of the arrays as tensors."""
    made = tuple(torch.tensor(array, dtype=dtype, device=device) for array in arrays)
    return made if len(made) > 1 else made[0]


def array(tensor):
    """The tensor as an array, in float64 if NumPy lacks its type."""
    tensor = tensor.detach().cpu()
    return (tensor.double() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def assert_all_close(found, expected):
    """Equal to 1e-12 of the largest among all, since a gradient may be zero and its terms not."""
    largest = max(np.abs(right).max(initial=0.0) for right in expected)
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-12, atol=1e-12 * largest, strict=True)


def _there(kind):
    return torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()


on_a_gpu = pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            kind, marks=[pytest.mark.gpu, pytest.mark.skipif(not _there(kind), reason=f"there is no {kind} device")]
        )
        for kind in ("cuda", "mps")
    ],
)


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors are computed sooner by one thread than by two that wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class WithMask(nn.Module):
    """A layer whose mask does not come from outside."""

    def __init__(self, layer, visible):
        super().__init__()
        self.layer, self.visible = layer, visible

    def forward(self, x):
        return self.layer(x, visible=self.visible)


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that is made meanwhile."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple) else (result,):
            if isinstance(made, torch.Tensor):
                self.elements = max(self.elements, made.untyped_storage().nbytes() // made.element_size())
        return result
