"""Positions in PyTorch, as `mha_tutorial.positions.row` has them; tokens are rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import check_positive
from ..positions import Pairs
from ..positions.common import bucket_sizes, check_even, check_order
from .kernels.common import is_eager
from .layer import Positions


def frequencies(
    d: int, base: float = 10000.0, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Float[Tensor, " pairs"]:
    """By how many radians each pair of features turns from one position to the next.

    In 32 bits these are, bit by bit, the numbers of transformers. Far into a text, where an angle is a large
    multiple of its frequency, better rounded ones would turn queries and keys elsewhere than a model has learned.

    Raises
    ------
    TypeError, ValueError
        If the width is not even and positive, or the base is not a positive number.

    Examples
    --------
    >>> frequencies(4, base=100.0)
    tensor([1.0000, 0.1000])
    """
    check_even(d)
    return 1.0 / check_positive("base", base) ** (torch.arange(0, d, 2, device=device, dtype=dtype) / d)


def sinusoidal(
    positions: Int[Tensor, "*b n"],
    d_model: int,
    base: float = 10000.0,
    order: Pairs = Pairs.INTERLEAVED,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*b n d_model"]:
    """Give each position a vector, to be added to the token there: a sine and a cosine at every frequency.

    Angles have 64 bits. The parameters are those of `mha_tutorial.positions.row.sinusoidal`.

    Raises
    ------
    TypeError, ValueError
        If the width is odd, the base is not positive, or the order is no `Pairs`.

    Examples
    --------
    >>> sinusoidal(torch.tensor([0, 3]), d_model=4).shape
    torch.Size([2, 4])
    """
    check_order(order)
    angles = positions[..., :, None] * frequencies(d_model, base, torch.float64, positions.device)
    return _beside(angles.sin(), angles.cos(), order).to(dtype)


def rotate(
    x: Float[Tensor, "*h n d_k"],
    positions: Int[Tensor, "*#h n"],
    base: float = 10000.0,
    order: Pairs = Pairs.HALVES,
) -> Float[Tensor, "*h n d_k"]:
    """Turn each pair of a query's or key's features by an angle that grows with its token's position.

    Computes :eq:`eq-rope-row`, with angles of 32 bits, or of 64 where `x` has them; see `frequencies`.

    Raises
    ------
    TypeError, ValueError
        If the width is odd, the base is not positive, or the order is no `Pairs`.

    References
    ----------
    Su and others, *RoFormer: Enhanced Transformer with Rotary Position Embedding*, section 3.2.

    Examples
    --------
    >>> rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([2]))  # cos 2 and sin 2
    tensor([[-0.4161,  0.9093]])
    """
    check_order(order)
    return _turned(x, *_turns(x, positions, base, order), order)


@dataclass(frozen=True)
class Rotary:
    """What `prepare=` takes: rotary positions, which turn the queries and keys of every head.

    On a CPU the cosines and sines of the last call are kept: the layers of a model may share one object, and all
    but the first then find those of their positions there.

    Parameters
    ----------
    base
        How slow the frequencies become.
    order
        Which features form a pair. It has to be the one the matrices were trained, or stored, for.

    Raises
    ------
    TypeError, ValueError
        If the base is not a positive number, or the order is no `Pairs`; called, if the width is odd.

    Examples
    --------
    >>> from mha_tutorial.torch import MultiHeadAttention
    >>> layer = MultiHeadAttention(d_model=12, h=3, prepare=Rotary(base=100.0))
    >>> layer(torch.zeros(2, 5, 12), positions=torch.arange(7, 12)).shape
    torch.Size([2, 5, 12])
    """

    base: float = 10000.0
    order: Pairs = Pairs.HALVES
    _kept: tuple = field(default=(None,) * 3, init=False, repr=False, compare=False)  # key, positions, turns

    def __post_init__(self):
        check_positive("base", self.base)
        check_order(self.order)

    def __call__(
        self, q: Float[Tensor, "b h n d_k"], k: Float[Tensor, "b h_kv m d_k"], positions: Positions
    ) -> tuple[Float[Tensor, "b h n d_k"], Float[Tensor, "b h_kv m d_k"]]:
        """Turn queries and keys, each by the positions of their tokens."""
        of_q, of_k = positions if isinstance(positions, tuple) else (positions, positions)
        turns = self._turns(q, of_q)
        q = _turned(q, *turns, self.order)
        return q, _turned(k, *(turns if of_k is of_q else self._turns(k, of_k)), self.order)

    def _turns(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if not is_eager(positions):
            return _turns(x, positions[..., None, :], self.base, self.order)
        # tensors made in inference mode are of no use to gradients
        key = x.shape[-1], x.dtype, x.device, positions.dtype, torch.is_inference_mode_enabled()
        known, places, turns = self._kept
        if key != known or not torch.equal(places, positions):
            turns = _turns(x, positions[..., None, :], self.base, self.order)
            object.__setattr__(self, "_kept", (key, positions.clone(), turns))  # at once, as threads may share it
        return turns


def alibi(
    slopes: Float[Tensor, " h"], positions: Int[Tensor, "*b n"], of_keys: Int[Tensor, "*b m"] | None = None
) -> Float[Tensor, "*b h n m"]:
    """Take from each score a head's slope for every step between query and key: a bias.

    Computes :eq:`eq-alibi-row`. The slopes are ``torch.tensor(alibi_slopes(h))``, in the type of the scores.

    Examples
    --------
    >>> alibi(torch.tensor([0.5]), torch.arange(2), torch.arange(3)).tolist()
    [[[0.0, -0.5, -1.0], [-0.5, 0.0, -0.5]]]
    """
    return slopes[:, None, None] * -distances(positions, of_keys).abs()[..., None, :, :]


def relative_bias(
    table: Float[Tensor, "h buckets"],
    positions: Int[Tensor, "*b n"],
    of_keys: Int[Tensor, "*b m"] | None = None,
    bucket: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "*b h n m"]:
    """Look up what each head has learned to add to a score at the distance of its query and key: a bias.

    The parameters are those of `mha_tutorial.positions.row.relative_bias`; gradients reach the table.

    Examples
    --------
    >>> relative_bias(torch.arange(32.0)[None], torch.arange(2), torch.arange(3)).tolist()
    [[[0.0, 17.0, 18.0], [1.0, 0.0, 17.0]]]
    """
    found = (bucket or relative_buckets)(distances(positions, of_keys))
    return table[:, found].movedim(0, -3)


def relative_buckets(
    distance: Int[Tensor, "*axes"], buckets: int = 32, farthest: int = 128, both_sides: bool = True
) -> Int[Tensor, "*axes"]:
    """Sort distances, key minus query, into buckets, as `mha_tutorial.positions.relative_buckets` does.

    Raises
    ------
    TypeError, ValueError
        As there.

    Examples
    --------
    >>> relative_buckets(torch.tensor([0, -1, -7, -8, -127, -500, 1, 500])).tolist()
    [0, 1, 7, 8, 15, 15, 17, 31]
    """
    side, exact = bucket_sizes(buckets, farthest, both_sides)
    steps = distance.abs() if both_sides else (-distance).clamp(min=0)
    growth = (steps.clamp(min=exact) / exact).log() / math.log(farthest / exact)
    found = torch.where(steps < exact, steps, (exact + (growth * (side - exact)).long()).clamp(max=side - 1))
    return found + side * (distance > 0) if both_sides else found


def distances(positions: Int[Tensor, "*b n"], of_keys: Int[Tensor, "*b m"] | None = None) -> Int[Tensor, "*b n m"]:
    """How far each key lies after each query, negative before it.

    Examples
    --------
    >>> distances(torch.tensor([0, 1]), torch.tensor([0, 1, 2])).tolist()
    [[0, 1, 2], [-1, 0, 1]]
    """
    of_keys = positions if of_keys is None else of_keys
    return of_keys[..., None, :] - positions[..., :, None]


def _turns(x: Tensor, positions: Tensor, base: float, order: Pairs) -> tuple[Tensor, Tensor]:
    """The cosines that features are multiplied by, and the sines for their partners, with their signs."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    angles = positions[..., :, None] * frequencies(x.shape[-1], base, dtype, x.device)
    cos, sin = angles.cos(), angles.sin()
    return _beside(cos, cos, order), _beside(-sin, sin, order)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, order: Pairs) -> Tensor:
    """Each feature times its cosine, plus its partner times the sine; in the type of `x`."""
    if order is Pairs.HALVES:
        partners = x.roll(x.shape[-1] // 2, dims=-1)
    else:
        partners = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * cos, partners, sin).to(x.dtype)


def _beside(first: Tensor, second: Tensor, order: Pairs) -> Tensor:
    """Put the first and second features of all pairs in their order."""
    if order is Pairs.HALVES:
        return torch.cat([first, second], dim=-1)
    return torch.stack([first, second], dim=-1).flatten(-2)
