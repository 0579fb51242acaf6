"""One layer on several devices: its heads divided by PyTorch's tensor parallelism, or its keys cut into blocks.

Nothing in the layer knows of it. Each device has a process, its *rank*, and all of them run the same program; a
``DeviceMesh`` says which ranks there are.
"""

import copy
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ..masks import Mask
from .extra_keys import extra_of
from .kernels.common import Kernel
from .kernels.online import finite
from .layer import MultiHeadAttention


def plan(inputs: int = 1) -> dict[str, ParallelStyle]:
    """Say how the parts of a layer are divided: what ``parallelize_module`` is given.

    Heads lie side by side in the columns of the three input projections, so these are cut by columns; the output
    projection is cut by rows, and what the ranks write is added up, :eq:`eq-shards-row`. ``nn.Linear`` stores
    transposes, and what is a column here is a row there. Every token goes to every rank: the first entry, of the
    layer itself, makes the gradients of queries, keys and values meet before they are added up over the ranks, so
    that there is one :eq:`eq-all-reduce` for each input. Without this entry there is one for each projection.

    Parameters
    ----------
    inputs
        How many tensors the layer is called with: 1 for ``layer(x)``, 2 for ``layer(x, memory)``.

    Examples
    --------
    >>> list(plan())
    ['', 'W_q', 'W_k', 'W_v', 'W_o']
    """
    whole = (Replicate(),) * inputs
    return {
        "": PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole),
        "W_q": ColwiseParallel(),
        "W_k": ColwiseParallel(),
        "W_v": ColwiseParallel(),
        "W_o": RowwiseParallel(),
    }


def tensor_parallel(layer: MultiHeadAttention, mesh: DeviceMesh, inputs: int = 1) -> MultiHeadAttention:
    """Divide the heads of a layer among the ranks of a mesh, in place; the output stays what it was.

    Every rank calls the layer with all tokens, computes with its own heads, and gets the whole output. The weights
    are those of the first rank. Parameters become ``DTensor``: each rank holds its part, `h` and `h_kv` are still
    those of all, and ``parameter.full_tensor()`` or ``parameter.grad.full_tensor()`` puts a whole one together. A
    mask or a bias with an axis for the heads has those of the rank. Where there is dropout, give every rank a seed
    of its own, or the heads of all ranks drop alike.

    Parameters
    ----------
    mesh
        The ranks, along one axis.
    inputs
        How many tensors the layer will be called with, see `plan`.

    Raises
    ------
    ValueError
        If the mesh has more than one axis, or its size does not divide the number of key-value heads; then
        `repeat_kv_heads` may help.
    NotImplementedError
        If the layer has extra keys.

    References
    ----------
    Shoeybi and others, *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*.
    """
    if mesh.ndim != 1:
        raise ValueError(
            f"tensor_parallel: the mesh must have one axis, got {mesh.ndim}; pass one of them, mesh[name]"
        )
    ranks, h, h_kv = mesh.size(), layer.h, layer.h_kv
    if h_kv % ranks:
        copies = math.lcm(h_kv, ranks) // h_kv
        helps = h // h_kv % copies == 0
        hint = f"repeat_kv_heads(layer, {copies}) makes the equal layer with {copies * h_kv}"
        raise ValueError(
            f"tensor_parallel: {ranks} ranks cannot share {h_kv} key-value heads evenly; "
            + (hint if helps else f"nor do the {h} heads divide so that copies of these would help")
        )
    if extra_of(layer.extra_keys):
        raise NotImplementedError(
            "tensor_parallel: a layer with extra keys, which belong to its heads, is not divided"
        )
    parallelize_module(layer, mesh, plan(inputs))
    return layer


def repeat_kv_heads(layer: MultiHeadAttention, r: int) -> MultiHeadAttention:
    """Make the layer that computes the same with `r` copies of each key-value head, beside each other.

    So it can be divided among more ranks. Its copies are parameters of their own: the gradients of the `r` copies
    add up to the gradient of the one head, and training would move them apart unless they are added up.

    Raises
    ------
    ValueError
        If `r` is below 1, or does not divide the number of heads that share a key-value head.

    Examples
    --------
    >>> layer = MultiHeadAttention(d_model=12, h=6, h_kv=1)
    >>> repeat_kv_heads(layer, 3).h_kv
    3
    """
    shared = layer.h // layer.h_kv
    if r < 1 or shared % r:
        raise ValueError(
            f"repeat_kv_heads: {r} copies do not divide the {shared} heads that share a key-value head"
        )
    repeated = copy.deepcopy(layer)
    for owner in (repeated.W_k, repeated.W_v, *extra_of(repeated.extra_keys)):
        for name, of_heads in [*owner.named_parameters(), *owner.named_buffers()]:
            by_head = of_heads.detach().unflatten(0, (layer.h_kv, -1)).repeat_interleave(r, dim=0).flatten(0, 1)
            learned = isinstance(of_heads, nn.Parameter)
            setattr(owner, name, nn.Parameter(by_head, of_heads.requires_grad) if learned else by_head)
    repeated.W_k.out_features *= r
    repeated.W_v.out_features *= r
    return repeated


def context_parallel(kernel: Kernel, mesh: DeviceMesh) -> Kernel:
    """Make a kernel whose keys and values are cut into blocks, one for each rank, and whose results are merged.

    Every rank has all queries and its own block. It attends to the block, and then the partial results are averaged
    over the ranks, each in proportion to its sum of exponentials: a collective for the largest of the sums'
    logarithms and one for the sums. A layer with such a kernel is called ``layer(x, block)``, on each rank with its
    own block of tokens. Its output is whole on every rank, and so are the gradients of `x`, ``W_q`` and ``W_o``;
    those of ``W_k`` and ``W_v`` are what the rank's own tokens contribute, to be added up over the ranks.

    `visible` and `bias` have the columns of the rank's own keys.

    Parameters
    ----------
    kernel
        What attends to a block: `naive` or `online`, which return the logarithms of their sums.

    Raises
    ------
    TypeError
        When called, if `visible` is a structured mask: it would speak of the block as if it were all keys.

    References
    ----------
    Milakov and Gimelshein, *Online Normalizer Calculation for Softmax*; blocks that travel, so that no rank needs
    all queries: Liu, Zaharia and Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context*.
    """

    def merged(
        q: Float[Tensor, "b h n d_k"],
        k: Float[Tensor, "b h_kv block d_k"],
        v: Float[Tensor, "b h_kv block d_v"],
        *,
        visible: Bool[Tensor, "#b #h #n #block"] | None = None,
        bias: Float[Tensor, "#b #h #n #block"] | None = None,
        scale: float | None = None,
    ) -> Float[Tensor, "b h n d_v"]:
        if isinstance(visible, Mask):
            raise TypeError(
                "context_parallel: visible must be a boolean tensor with the columns of this rank's keys, "
                f"got {type(visible).__name__}; make one of all keys, mask.rows(n, m), and cut it"
            )
        replicated = DTensor.from_local(q, mesh, [Replicate()], run_check=False)
        q = replicated.to_local(grad_placements=[Partial()])  # each rank has a part of its gradient
        heads, log_sums = kernel(q, k, v, visible=visible, bias=bias, scale=scale, log_sums=True)
        largest = collectives.all_reduce(
            log_sums.detach(), "max", mesh
        )  # cancels, so no gradient passes through it
        weight = (log_sums - finite(largest)).exp().unsqueeze(-1)
        part = torch.cat([weight * heads, weight], dim=-1)
        sums = DTensor.from_local(part, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()])
        weighted, total = sums.to_local().split([v.shape[-1], 1], dim=-1)
        return (weighted / total.masked_fill(total == 0, 1)).to(q.dtype)  # zero for a query that sees nothing

    return merged


class Collectives(TorchDispatchMode):
    """Notes every collective that is called meanwhile, forward or backward: its name and its payload in bytes.

    The payload is the tensor that a rank hands over. What travels depends on how a backend does it.

    Examples
    --------
    >>> with Collectives() as noted:
    ...     _ = torch.ones(3) + 1
    >>> noted.calls
    []
    """

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes the call apart, and the collectives among the parts come here again
        namespace, _, name = function.name().partition("::")
        if namespace == "_c10d_functional" and not name.startswith(("_", "wait")):
            self.calls.append((name, args[0].nbytes))
        return function(*args, **(kwargs or {}))
