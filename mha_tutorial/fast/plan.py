"""A pass over some tokens, cut into jobs that threads share and tiles that a core's cache holds."""

import math
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from .._sizes import slices
from ..masks import Mask
from ..reference import row
from .softmax import Base, safe_attention
from .tiles import Tile, TileMask, by_group

Job = tuple[slice, slice]  # some key-value heads, in some entries of the batch


class Block(NamedTuple):
    """How large the pieces are that a pass is cut into."""

    tokens: int = 1024  # at a time, or one sequence: what a head makes of them stays in a core's cache
    projected: int = 4096  # the same times the number of heads that are projected together
    scores: int = 2**18  # in a tile: a mebibyte of float32
    side: int = 512  # of a tile, at most
    masked_side: int = 256  # of the queries in one: the smaller, the more of what a mask hides can be skipped
    rows: int = 2**19  # scores in whole rows of them, as the way back and large scores need
    tiny: int = 64  # so few tokens are not worth a thread


BLOCK = Block()


class Sizes(NamedTuple):
    """Of a pass: how many tokens attend to how many, in how many heads."""

    batch: tuple[int, ...]
    h: int
    h_kv: int
    n: int
    m: int
    extra: int  # keys of the layer itself, behind the m

    def is_small(self, block: Block) -> bool:
        """Whether it is not worth more than one thread."""
        b = math.prod(self.batch)
        return b * max(self.n, self.m) <= block.tiny or b * self.h_kv == 1


@dataclass(frozen=True)
class Plan:
    """What is to be done in a pass, and how scores are made there."""

    jobs: list[Job]
    tiles: list[Tile]  # one after the other in every job
    mask: TileMask
    bias: Array | None  # (g, b, r, n, m), axes may have length one
    score: row.Score
    scale: float
    base: Base
    block: Block
    together: int  # how many key-value heads of a job share a tile

    def rows(self, tile: Tile, sizes: tuple[int, ...]) -> list[slice]:
        """The queries of a tile, as many at a time as whole rows of their scores fit; sizes are g, b and r."""
        width = max(1, tile.keys.stop - tile.keys.start)
        return tile.cut(max(1, self.block.rows // (math.prod(sizes) * width)))

    def visible(self, job: Job, queries: slice, keys: slice) -> Array:
        """What some queries see of some keys, in the axes of a job; a bias of minus infinity hides too."""
        seen, bias = _of(job, self.mask(queries, keys)), self.bias_of(job, queries, keys)
        return seen if bias is None else seen & ~np.isneginf(bias)

    def bias_of(self, job: Job, queries: slice, keys: slice) -> Array | None:
        """What is added to the scores of some queries for some keys."""
        if self.bias is None:
            return None
        n, m = self.bias.shape[-2:]
        everything = slice(None)
        part = _of(job, self.bias)[..., queries if n > 1 else everything, keys if m > 1 else everything]
        missing = keys.stop - keys.start - part.shape[-1] if m > 1 else 0  # extra keys get no bias
        return np.concatenate([part, np.zeros((*part.shape[:-1], missing), part.dtype)], -1) if missing else part

    def without_hidden(self, job: Job, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Copies with zeros for the queries that see no key, and for the keys and values that no query sees."""
        seeing, seen = np.zeros(q.shape[:-1], dtype=bool), np.zeros(k.shape[:-1], dtype=bool)
        for tile in self.tiles:
            visible = self.visible(job, tile.queries, tile.keys)
            seeing[..., tile.queries] |= visible.any(axis=-1)
            seen[..., tile.keys] |= visible.any(axis=(2, 3))
        q, k, v = (np.where(used[..., None], x, 0) for used, x in ((seeing, q), (seen, k), (seen, v)))
        return q, k, v

    def safe_attention(self, job: Job, q: Array, k: Array, v: Array, queries: slice, keys: slice):
        """Scores, attention and averages of some queries for some keys, with the largest score taken off."""
        visible, bias = self.visible(job, queries, keys), self.bias_of(job, queries, keys)
        return safe_attention(q, k[..., keys, :], v[..., keys, :], self.score, visible, bias)


def make_plan(
    sizes: Sizes,
    visible: Array | Mask | None,
    bias: Array | None,
    score: row.Score,
    scale: float,
    base: Base,
    block: Block,
    threads: int,
) -> Plan:
    """Cut a pass into jobs and tiles.

    Examples
    --------
    >>> from .softmax import EXP
    >>> plan = make_plan(Sizes((2,), 3, 3, 700, 700, 0), None, None, row.dot_product, 1.0, EXP, Block(), threads=2)
    >>> len(plan.jobs), [tile.queries.start for tile in plan.tiles]
    (2, [0, 512])
    """
    batch, h, h_kv, n, m, extra = sizes
    b = math.prod(batch)
    mask = TileMask(visible, (*batch, h, n, m), h_kv)
    few = sizes.is_small(block)
    # As many sequences at a time as fit and leave work for every thread, then as many heads: a product of few
    # columns takes longer for each.
    entries = b if few else max(1, min(block.tokens // max(n, m), b // threads))
    at_once = (
        h_kv if few else max(1, min(block.projected // (n * entries), -(-b // entries) * h_kv // threads, h_kv))
    )
    groups = h_kv if few else 1  # in a tile
    keys, side = min(m, block.side), block.side if visible is None else block.masked_side
    rows = block.scores // (groups * (h // h_kv) * entries * keys)
    columns = [*slices(m, keys), *(slice(m + some.start, m + some.stop) for some in slices(extra, block.side))]
    tiles = mask.tiles(slices(n, max(1, min(rows, side))), columns)
    jobs = list(product(slices(h_kv, at_once), slices(b, entries)))
    by_groups = None if bias is None else by_group(bias, batch, h_kv)
    return Plan(jobs, tiles, mask, by_groups, score, scale, base, block, groups)


def _of(job: Job, array: Array) -> Array:
    """What some heads of some sequences have of an array (g, b, ...), in which these axes may have length one."""
    groups, entries = (some if length > 1 else slice(None) for some, length in zip(job, array.shape, strict=False))
    return array[groups, entries]
