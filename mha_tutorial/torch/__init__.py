"""Multi-head attention in PyTorch, on CPU and GPU."""

from .._extras import require

require("mha_tutorial.torch", "torch")

import torch as _torch  # noqa: E402

# The vectorised functions of PyTorch on a CPU choose their code when they are first called. Where two threads make
# that first call at once, the result can be wrong by 1e-9 (pytorch issue 188792), so one thread makes it here.
for _dtype in (_torch.float32, _torch.float64):
    for _function in (_torch.exp, _torch.exp2, _torch.log, _torch.sqrt, _torch.tanh):
        _function(_torch.ones(64, dtype=_dtype, device="cpu"))

from .cache import KVCache  # noqa: E402
from .extra_keys import ExtraKeys  # noqa: E402
from .kernels import KERNELS, backend_of, flex, fused, fused_on, guarded, naive, online  # noqa: E402
from .layer import MultiHeadAttention  # noqa: E402
from .positions import Rotary  # noqa: E402

__all__ = [
    "KERNELS",
    "ExtraKeys",
    "KVCache",
    "MultiHeadAttention",
    "Rotary",
    "backend_of",
    "flex",
    "fused",
    "fused_on",
    "guarded",
    "naive",
    "online",
]
