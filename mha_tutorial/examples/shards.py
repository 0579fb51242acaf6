"""A layer whose heads are divided among devices, simulated: a list has an entry for each device, a *rank*."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from .._sizes import count
from ..weights import ColumnWeights, RowWeights


def shard(weights: ColumnWeights | RowWeights, rank: int, ranks: int) -> ColumnWeights | RowWeights:
    """Cut out what one rank holds of a layer: its share of the heads, and of the keys that these read.

    The outputs of all shards add up to that of the layer, :eq:`eq-shards` or, in rows, :eq:`eq-shards-row`. The
    output bias, which must be added once, is left to the first rank.

    Parameters
    ----------
    rank
        Which one, counted from zero.
    ranks
        How many there are.

    Raises
    ------
    TypeError, ValueError
        If the numbers are not whole, `rank` is not below `ranks`, or the key-value heads cannot be divided evenly.

    Examples
    --------
    >>> weights = RowWeights.random(np.random.default_rng(0), d_model=12, h=6, h_kv=2)
    >>> [(part.h, part.h_kv, part.b_o is None) for part in (shard(weights, rank, 2) for rank in (0, 1))]
    [(3, 1, False), (3, 1, True)]
    """
    ranks, rank = count("ranks", ranks), count("rank", rank, least=0)
    if rank >= ranks:
        raise ValueError(f"shard: ranks are 0 to {ranks - 1}, got rank {rank}")
    if weights.h_kv % ranks:
        raise ValueError(
            f"shard: {ranks} ranks cannot share {weights.h_kv} key-value heads evenly",
        )
    share = weights.h // ranks
    own = weights.heads(slice(rank * share, (rank + 1) * share))
    return own if rank == 0 else replace(own, b_o=None)


def all_reduce(parts: Sequence[Float[Array, "*shape"]]) -> list[Float[Array, "*shape"]]:
    """Give every rank the sum of what all of them hold, :eq:`eq-all-reduce`.

    Examples
    --------
    >>> [total.tolist() for total in all_reduce([np.array([1.0, 2.0]), np.array([10.0, 20.0])])]
    [[11.0, 22.0], [11.0, 22.0]]
    """
    total = np.sum(parts, axis=0)
    return [total.copy() for _ in parts]


def all_reduce_bytes(b: int, n: int, d_model: int, itemsize: int, gathered: int = 1) -> tuple[int, int]:
    """How many bytes each rank hands over to be added up, in a forward and in a backward pass of a layer.

    Computes :eq:`eq-all-reduce-bytes`. It does not depend on the number of ranks.

    Parameters
    ----------
    itemsize
        The bytes of a number: 2 in bfloat16, 8 in float64.
    gathered
        How many gradients of the input are added up over the ranks: one, or one for each projection, 3.

    Examples
    --------
    >>> all_reduce_bytes(b=1, n=4096, d_model=4096, itemsize=2)
    (33554432, 33554432)
    """
    size = count("b", b) * count("n", n) * count("d_model", d_model) * count("itemsize", itemsize)
    return size, count("gathered", gathered) * size


def ring_bytes(payload: int, ranks: int) -> float:
    """How many bytes each rank of a ring sends while a payload of so many is added up, :eq:`eq-ring`.

    Examples
    --------
    >>> [ring_bytes(1000, ranks) for ranks in (1, 2, 4, 1000)]
    [0.0, 1000.0, 1500.0, 1998.0]
    """
    return 2 * (count("ranks", ranks) - 1) / ranks * payload


class Ring(NamedTuple):
    """What the ranks of a ring hold after every step, the start included, and how many numbers each has sent."""

    held: Float[Array, "steps p size"]
    sent: list[int]


def ring_all_reduce(parts: Float[Array, "p size"]) -> Ring:
    """Add up over ranks that stand in a ring, where each sends to its right neighbour only, a chunk at a time.

    In ``p - 1`` steps sums travel: each rank passes a chunk on, and the next adds its own. Then each chunk is
    complete on one rank, and in ``p - 1`` more steps the complete ones are passed round.

    Parameters
    ----------
    parts
        A row for each rank, of at least one number.

    Examples
    --------
    >>> ring = ring_all_reduce(np.array([[1.0, 2.0], [10.0, 20.0]]))
    >>> ring.held[-1].tolist(), ring.sent
    ([[11.0, 22.0], [11.0, 22.0]], [2, 2])
    """
    p, size = parts.shape
    chunks = np.array_split(np.arange(size), p)
    held, sent = [parts.copy()], [0] * p
    for step in range(2 * (p - 1)):
        before, after = held[-1], held[-1].copy()
        for rank in range(p):
            chunk, neighbour = chunks[(rank - step) % p], (rank + 1) % p
            after[neighbour, chunk] = before[rank, chunk] + (before[neighbour, chunk] if step < p - 1 else 0)
            sent[rank] += len(chunk)
        held.append(after)
    return Ring(np.stack(held), sent)
