"""The forward pass of a job: its heads, a tile of queries after the other."""

from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from .._sizes import slices
from .plan import Job, Plan
from .projections import Projected
from .softmax import are_bounded, are_exact, max_norms, unshifted_attention
from .tiles import Tile
from .workspace import Buffer, Workspace


class Residuals(NamedTuple):
    """What the backward pass needs of some key-value heads in some sequences: their projections, and no scores."""

    job: Job
    q: Array  # (g, b, r, n, d_k)
    k: Array  # (g, b, m, d_k)
    v: Array  # (g, b, m, d_v)
    unshifted: list[bool]  # for each tile of queries, whether exponentials are taken of the scores as they are
    finite: bool  # whether all of q, k and v are, but for what is masked


def attend(job: Job, projected: Projected, plan: Plan, heads: Array, workspace: Workspace) -> list[Residuals]:
    """Write the heads of a job to where they belong among all.

    Before any score is computed, the norms of queries, keys and values say for which tiles of queries the
    scores may be exponentiated as they are (`softmax.unshifted_attention`). In the others the row maximum is
    subtracted (`softmax.safe_attention`).

    Parameters
    ----------
    heads
        ``(g, b, r, n, d_v)``, of all heads of all sequences.
    """
    groups, entries = job
    # The norms say nothing of a bias, and exact scores deserve exact exponents.
    allowed = np.full(len(projected.q), plan.bias is None) & ~are_exact(projected.q, projected.k)
    bounded = allowed & are_bounded(projected.norms, plan.scoring.scale)
    residuals = []
    for some in slices(len(projected.q), plan.groups_per_tile):
        part = slice(groups.start + some.start, groups.start + some.stop), entries
        q, k, v = (x[some] for x in projected[:3])
        tiles, finite = [tile.of(*part) for tile in plan.tiles], True
        if bounded[some].all():
            unshifted = [True] * len(tiles)
        else:
            q, k, v, finite = _without_masked(part, q, k, v, plan)
            unshifted = [_is_bounded(tile, q, k, v, allowed[some], plan) for tile in tiles]
        for tile, is_unshifted in zip(tiles, unshifted, strict=True):
            _attend_tile(part, tile, is_unshifted, (q, k, v), plan, heads[part], workspace)
        residuals.append(Residuals(part, q, k, v, unshifted, finite))
    return residuals


def _attend_tile(
    job: Job,
    tile: Tile,
    unshifted: bool,
    projected: tuple[Array, Array, Array],
    plan: Plan,
    heads: Array,
    workspace: Workspace,
) -> None:
    """Write the heads of a tile of queries."""
    q, k, v = projected
    if unshifted:
        scaled = workspace.copy(Buffer.TILE_QUERIES, q[..., tile.queries, :], plan.scoring.query_factor)
        out = heads[..., tile.queries, :]
        unshifted_attention(scaled, k, v, tile.kv_tiles, plan.scoring.exponential, workspace, out)
        return
    for queries in plan.rows(tile, q.shape[:3]):
        _, _, made = plan.safe_attention(job, q[..., queries, :], k, v, queries, tile.keys)
        heads[..., queries, :] = made


def _without_masked(job: Job, q: Array, k: Array, v: Array, plan: Plan) -> tuple[Array, Array, Array, bool]:
    """Queries, keys and values, zero at masked positions if these may hold NaN; and whether all are finite then."""
    if all(np.isfinite(x).all() for x in (q, k, v)):
        return q, k, v, True
    q, k, v = plan.without_hidden(job, q, k, v)
    return q, k, v, all(np.isfinite(x).all() for x in (q, k, v))


def _is_bounded(tile: Tile, q: Array, k: Array, v: Array, allowed: Array, plan: Plan) -> bool:
    """Whether the scores of a tile of queries may be exponentiated as they are, by its own vectors."""
    if not tile.kv_tiles:
        return True
    norms = [max_norms(x) for x in (q[..., tile.queries, :], k[..., tile.keys, :], v[..., tile.keys, :])]
    return bool((allowed & are_bounded(norms, plan.scoring.scale)).all())
