"""A pass over some tokens, cut into jobs that threads share and tiles that a core's cache holds."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from typing import NamedTuple

from numpy import ndarray as Array

from .masks import Mask
from .threads import ONE_BLAS_THREAD
from .tiles import Sight, Tile, cut
from .weights import RowWeights

TOKENS = 1024  # projected at a time, or one sequence: what a head makes of them stays in a core's cache
SCORES = 2**18  # in a tile: a mebibyte of float32
SIDE = 512  # of a tile, at most
MASKED_SIDE = 256  # the smaller the tiles, the more of what a mask hides can be skipped
TINY = 64  # so few tokens are not worth a thread

Job = tuple[slice, slice]  # some key-value heads, in some entries of the batch


class Work(NamedTuple):
    """What is to be done in a pass, and by how many threads."""

    tokens: list[Array]  # (b, n, d_in), of queries, keys and values; one array if the three are one
    sight: Sight
    plan: list[Tile]  # one after the other in every job
    all_see: bool  # every query sees a key
    jobs: list[Job]
    blas: AbstractContextManager[int]
    threads: int


@contextmanager
def divided(
    weights: RowWeights, inputs: tuple[Array, Array, Array], visible: Array | Mask | None
) -> Iterator[Work]:
    """Cut a pass over queries, keys and values; inside, a matrix product runs on the thread that asks for it.

    Where there is but one thread, as for few tokens, it runs as it always does.

    Examples
    --------
    >>> x = np.ones((2, 100, 6))
    >>> with divided(RowWeights.random(np.random.default_rng(0), d_model=6, h=3), (x, x, x), None) as work:
    ...     len(work.tokens), len(work.jobs) % 3, [tile.queries.start for tile in work.plan]
    (1, 0, [0])
    """
    queries, keys, values = inputs
    (*batch, n, _), m, h_kv = queries.shape, keys.shape[-2], weights.h_kv
    b = math.prod(batch)
    distinct = [queries] if keys is queries and values is queries else [queries, keys, values]
    sight = Sight(visible, (*batch, weights.h, n, m), h_kv)
    few = b * max(n, m) <= TINY or b * h_kv == 1
    blas = nullcontext(1) if few else ONE_BLAS_THREAD
    with blas as threads:
        # As many sequences at a time as fit and leave work for every thread.
        entries = b if few else max(1, min(TOKENS // max(n, m), b * h_kv // threads, b))
        groups = h_kv if few else 1
        side = SIDE if visible is None else MASKED_SIDE
        rows = SCORES // (groups * weights.group * entries * min(m, side))
        plan, all_see = sight.plan(cut(n, max(1, min(rows, side))), cut(m, side))
        tokens = [x.reshape(b, *x.shape[-2:]) for x in distinct]
        jobs = list(product(cut(h_kv, groups), cut(b, entries)))
        yield Work(tokens, sight, plan, all_see, jobs, blas, threads)
