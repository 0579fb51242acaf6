"""A pass over some tokens, cut into jobs that threads share and tiles that fit in a core's cache."""

import math
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from .._sizes import slices
from ..layer import _for_all_keys
from ..masks import Mask
from .softmax import Scoring, safe_attention
from .tiles import Tile, TileMask, group_heads, job_part

Job = tuple[slice, slice]  # some key-value heads, in some entries of the batch


class Block(NamedTuple):
    """The largest sizes of the pieces that a pass is cut into."""

    tokens: int = 1024  # in a job, unless one sequence is longer: a head's projections stay in a core's cache
    projected: int = 4096  # tokens times key-value heads that are projected together
    scores: int = 2**18  # in a tile: a mebibyte of float32
    side: int = 512  # queries, or keys, in a tile
    masked_side: int = 256  # queries in a tile under a mask: smaller tiles leave more that can be skipped
    rows: int = 2**19  # scores in whole rows, as gradients and the row maximum need them
    tiny: int = 64  # tokens in a pass for which no thread is started
    factors: int = 2**20  # numbers in the masks of tiles that are kept as floats: four mebibytes


BLOCK = Block()


class Sizes(NamedTuple):
    """How many tokens attend to how many in a pass, in how many heads."""

    batch: tuple[int, ...]
    h: int
    h_kv: int
    n: int
    m: int
    extra: int  # keys of the layer itself, behind the m

    def is_small(self, block: Block) -> bool:
        """Whether a second thread would cost more than it saves."""
        b = math.prod(self.batch)
        return b * max(self.n, self.m) <= block.tiny or b * self.h_kv == 1


@dataclass(frozen=True)
class Plan:
    """The jobs and tiles of a pass, and what its scores are made of."""

    jobs: list[Job]  # for the threads to share
    tiles: list[Tile]  # of every job
    mask: TileMask
    bias: Array | None  # (g, b, r, n, m), axes may have length one
    scoring: Scoring
    block: Block
    groups_per_tile: int  # key-value heads of a job that share a tile

    def rows(self, tile: Tile, sizes: tuple[int, ...]) -> list[slice]:
        """Cut the queries of a tile so that whole rows of their scores fit in a block; sizes are g, b and r."""
        width = max(1, tile.keys.stop - tile.keys.start)
        return tile.cut(max(1, self.block.rows // (math.prod(sizes) * width)))

    def visible(self, job: Job, queries: slice, keys: slice) -> Array:
        """Which of some keys each of some queries of a job sees; a bias of minus infinity hides too."""
        visible, bias = job_part(self.mask(queries, keys), *job), self.bias_of(job, queries, keys)
        return visible if bias is None else visible & ~np.isneginf(bias)

    def bias_of(self, job: Job, queries: slice, keys: slice) -> Array | None:
        """What is added to the scores of some queries for some keys."""
        if self.bias is None:
            return None
        n, m = self.bias.shape[-2:]
        everything = slice(None)
        return job_part(self.bias, *job)[..., queries if n > 1 else everything, keys if m > 1 else everything]

    def without_hidden(self, job: Job, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Copies with zeros for fully masked queries, and for the keys and values that no query sees."""
        used_q, used_k = np.zeros(q.shape[:-1], dtype=bool), np.zeros(k.shape[:-1], dtype=bool)
        for tile in self.tiles:
            visible = self.visible(job, tile.queries, tile.keys)
            used_q[..., tile.queries] |= visible.any(axis=-1)
            used_k[..., tile.keys] |= visible.any(axis=(2, 3))
        q, k, v = (np.where(used[..., None], x, 0) for used, x in ((used_q, q), (used_k, k), (used_k, v)))
        return q, k, v

    def safe_attention(self, job: Job, q: Array, k: Array, v: Array, queries: slice, keys: slice):
        """Scores, attention and averages of some queries for some keys, with the row maximum subtracted."""
        visible, bias = self.visible(job, queries, keys), self.bias_of(job, queries, keys)
        return safe_attention(q, k[..., keys, :], v[..., keys, :], self.scoring.score, visible, bias)


def make_plan(
    sizes: Sizes, visible: Array | Mask | None, bias: Array | None, scoring: Scoring, block: Block, threads: int
) -> Plan:
    """Cut a pass into jobs and tiles.

    A job has as many sequences as fit in a block and leave work for every thread, and then as many key-value
    heads: the fewer columns a projection has, the longer it takes for each.

    Raises
    ------
    TypeError, ValueError
        If the mask does not fit.

    Examples
    --------
    >>> from ..reference import row
    >>> scoring, sizes = Scoring(row.dot_product, 1.0, np.exp), Sizes((2,), 3, 3, 700, 700, 0)
    >>> plan = make_plan(sizes, None, None, scoring, Block(), threads=2)
    >>> len(plan.jobs), [tile.queries.start for tile in plan.tiles]
    (2, [0, 512])
    """
    batch, h, h_kv, n, m, extra = sizes
    b = math.prod(batch)
    mask = TileMask(visible, (*batch, h, n, m), h_kv)
    if sizes.is_small(block):  # one job, and all heads in every tile
        entries, at_once, groups = b, h_kv, h_kv
    else:
        entries = max(1, min(block.tokens // max(n, m), b // threads))
        at_once = max(1, min(block.projected // (n * entries), math.ceil(b / entries) * h_kv // threads, h_kv))
        groups = 1
    keys, side = min(m, block.side), block.side if visible is None else block.masked_side
    queries = block.scores // (groups * (h // h_kv) * entries * keys)
    rows = slices(n, max(1, min(queries, side)))
    columns = [*slices(m, keys), *(slice(m + some.start, m + some.stop) for some in slices(extra, block.side))]
    jobs = list(product(slices(h_kv, at_once), slices(b, entries)))
    tiles = mask.tiles(rows, columns, block.factors)
    if extra:  # to whose scores nothing is added
        bias = _for_all_keys(bias, m, m + extra)
    return Plan(jobs, tiles, mask, None if bias is None else group_heads(bias, batch, h_kv), scoring, block, groups)
