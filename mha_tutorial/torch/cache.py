"""Keys and values that are kept while a text is written, so that every token is projected once."""

from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..masks import And, Causal, Mask, Not, Or, Padding, Prefix, Window
from . import _checks
from .masks import mask_mod, to_tensor

BEHIND = Causal("bottom-right")  # the last new token stands beside the last key
ENDLESS = 2**31 - 1  # tokens of a text, as far as a rule knows that is asked for positions


class Chunk(NamedTuple):
    """New tokens of every text, and where they stand."""

    n: int
    positions: Int[Tensor, "#b n"]
    real: Tensor | None  # (b, n), which of them are no padding; None where all are
    missing: Tensor | None  # (b,), as `KVCache.missing` will be when they are stored
    rule: Mask | Tensor | None  # what else hides keys from them


class KVCache:
    """The keys and values of the tokens that a layer has read, in memory that is taken once.

    ``layer(x, cache=cache)`` reads the next tokens of `b` texts: a whole prompt, one token, or a chunk of them. It
    stores their keys, as `prepare` left them, and their values, and attends to all that is stored. Each token sees
    itself and those before it, so that the results are those of one causal pass over the whole texts. Positions
    that are left out go on from the tokens stored. No gradient is recorded.

    **Masks** speak of positions in the text, whatever their `align`: ``Window(4)``, say, hides what lies 4 or more
    positions back. A boolean tensor or a bias has a column for every position, ``stored + n`` of them. `Padding`,
    joined by ``&``, says which of the *new* tokens are real, on either side; padding is not stored, and takes no
    position. A mask can only hide more: none lets a token see a later one.

    **A window** makes the cache a ring. It needs ``window + chunk - 1`` slots, for texts of any length: a new token
    takes the slot of one that nobody will see again.

    A pass that raises an error leaves all as it was. What lies in slots that were not written does not matter. A
    compiled layer is compiled once for all steps of one token behind others, and once for each length of chunks;
    padding, and all methods but reading `stored`, are for eager code.

    Parameters
    ----------
    b
        The number of texts.
    h_kv, d_k, d_v
        The number of key-value heads and their widths; `d_v` is `d_k` if left out.
    capacity
        The number of tokens each text may have; for a cache without a window.
    window
        How many tokens a token sees, itself included; for a ring.
    chunk
        The most tokens that a ring takes at a time.

    Raises
    ------
    TypeError, ValueError
        If a size is no whole number or below 1, or not one of `capacity` and `window` is given.

    References
    ----------
    Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*; Beltagy and others, *Longformer*.

    Examples
    --------
    >>> from mha_tutorial.torch import MultiHeadAttention
    >>> layer, x = MultiHeadAttention(d_model=12, h=4, h_kv=2), torch.ones(1, 5, 12)
    >>> cache = KVCache.for_layer(layer, b=1, capacity=8)
    >>> prompt, token = layer(x[:, :4], cache=cache), layer(x[:, 4:], cache=cache)
    >>> token.shape, cache
    (torch.Size([1, 1, 12]), KVCache(b=1, h_kv=2, d_k=3, d_v=3, stored=5, capacity=8))
    """

    def __init__(
        self,
        b: int,
        h_kv: int,
        d_k: int,
        d_v: int | None = None,
        *,
        capacity: int | None = None,
        window: int | None = None,
        chunk: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        d_v = d_k if d_v is None else d_v
        slots = _checks.slots_of_cache(b, h_kv, d_k, d_v, capacity, window, chunk)
        self.window, self.chunk = window, chunk
        self.keys = torch.zeros(b, h_kv, slots, d_k, device=device, dtype=dtype)
        self.values = torch.zeros(b, h_kv, slots, d_v, device=device, dtype=dtype)
        self.positions = torch.full((b, slots), -1, device=self.keys.device)  # of what lies in each slot
        self.missing: Tensor | None = None  # how far each text lies behind the longest; None where none does
        self._count(0)

    @classmethod
    def for_layer(
        cls,
        layer: Any,
        b: int,
        *,
        capacity: int | None = None,
        window: int | None = None,
        chunk: int = 1,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Make the cache that fits a `MultiHeadAttention`, on its device and in its type if no other is given."""
        weight, sizes = layer.W_k.weight, (layer.h_kv, layer.d_k, layer.d_v)
        factory = {"device": weight.device, "dtype": weight.dtype if dtype is None else dtype}
        return cls(b, *sizes, capacity=capacity, window=window, chunk=chunk, **factory)

    @property
    def stored(self) -> int:
        """The number of tokens stored of the longest text."""
        return self._counter.shape[0] - 2

    @property
    def lengths(self) -> Int[Tensor, " b"]:
        """The number of tokens stored of each text."""
        stored = torch.full(self.keys.shape[:1], self.stored, device=self.keys.device)
        return stored if self.missing is None else stored - self.missing

    def rollback(self, n: int | list[int] | Int[Tensor, " b"]) -> None:
        """Forget the last `n` tokens of every text, or so many of each.

        Raises
        ------
        TypeError, ValueError
            If `n` is not a whole number, or one for each text; if more are to be forgotten than are stored, or, in
            a ring, if a token that the next one sees was overwritten already.

        Examples
        --------
        >>> cache = KVCache(b=1, h_kv=1, d_k=2, capacity=4)
        >>> cache.rollback(1)
        Traceback (most recent call last):
        ValueError: KVCache: cannot forget [1] tokens of texts of which [0] are stored
        """
        lengths = self.lengths
        back = _checks.check_one_for_each_text("rollback", n, lengths)
        remaining = lengths - back
        if (back < 0).any() or (remaining < 0).any():
            raise ValueError(
                f"KVCache: cannot forget {back.tolist()} tokens of texts of which {lengths.tolist()} are stored"
            )
        if self.window is not None and not self._still_stored(remaining, self.window).all():
            raise ValueError(
                f"KVCache: cannot forget {back.tolist()} tokens: the next one would see {self.window - 1} before "
                f"it, and of these some were overwritten; a ring made with chunk={self.chunk} can go back "
                f"{self.chunk} tokens from the last one it has seen"
            )
        self._store_lengths(remaining)

    def reorder(self, indices: list[int] | Int[Tensor, " b"]) -> None:
        """Continue other texts: text ``i`` becomes what text ``indices[i]`` was, as in a search with beams.

        Raises
        ------
        TypeError, ValueError
            If there is not one whole number for each text, or one names no text.

        Examples
        --------
        >>> cache = KVCache(b=2, h_kv=1, d_k=2, capacity=4)
        >>> cache.reorder([1, 1])
        """
        lengths = self.lengths
        indices = _checks.check_one_for_each_text("reorder", indices, lengths, least_axes=1)
        _checks.check_indices(indices)
        used = slice(self._used(self.stored))
        for x in (self.keys[:, :, used], self.values[:, :, used], self.positions[:, used]):
            x.copy_(x.index_select(0, indices))
        if self.missing is not None:
            self._store_lengths(lengths[indices])

    def begin(self, shape: tuple[int, ...], visible: Mask | Tensor | None) -> Chunk:
        """Say where new tokens (*b, n) stand, and what hides keys from them; nothing is stored yet."""
        *batch, n = shape
        b, device = self.keys.shape[0], self.keys.device
        _checks.check_room(n, self.stored, self.keys.shape[2], self.window, self.chunk)
        padding, rule = _separated(visible) if isinstance(visible, Mask) else (None, visible)
        _check_rule(rule, self.window)
        first: int | Tensor = self.stored if self.missing is None else self.stored - self.missing[:, None]
        if padding is None:
            return Chunk(n, first + torch.arange(n, device=device), None, self.missing, rule)
        padding.check(n, tuple(batch))
        flat = Padding(padding.lengths.reshape(-1) if padding.lengths.ndim else padding.lengths, padding.side)
        real = to_tensor(flat, b, n, n, device).expand(b, 1, 1, n)[:, 0, 0]
        # real tokens take the next positions, and padding, which is hidden by what `write` notes, those after them
        order = torch.where(real, real.cumsum(-1), real.sum(-1, keepdim=True) + (~real).cumsum(-1)) - 1
        missing = (~real).sum(-1) if self.missing is None else self.missing + (~real).sum(-1)
        return Chunk(n, first + order, real, missing, rule)

    def write(
        self, chunk: Chunk, k: Float[Tensor, "b h_kv n d_k"], v: Float[Tensor, "b h_kv n d_v"]
    ) -> tuple[Float[Tensor, "b h_kv m d_k"], Float[Tensor, "b h_kv m d_v"]]:
        """Put new keys and values into their slots, and return all that may be seen: views, nothing is copied."""
        slots = chunk.positions if self.window is None else chunk.positions % self.keys.shape[2]
        positions = chunk.positions.expand(len(self.positions), -1)
        if chunk.real is not None:
            k, v = (x.masked_fill(~chunk.real[:, None, :, None], 0) for x in (k, v))
            positions = positions.where(chunk.real, -1)
        with_all_axes = (self.positions[:, None, :, None], positions[:, None, :, None])
        for kept, x in ((self.keys, k), (self.values, v), with_all_axes):
            if slots.ndim == 1:
                kept.index_copy_(2, slots, x)
            else:
                entry = torch.arange(len(slots), device=slots.device)[:, None]
                kept[entry, :, slots] = x.transpose(1, 2)
        m = self._used(self.stored + chunk.n)
        return self.keys[:, :, :m], self.values[:, :, :m]

    def visible(self, chunk: Chunk) -> Mask | Tensor | None:
        """What the new tokens may see of what `write` returned: by positions, never by slots."""
        rule = chunk.rule
        plain = rule is None or isinstance(rule, Causal)
        if plain and self.window is None and chunk.positions.ndim == 1:  # slots are positions
            return BEHIND if chunk.n > 1 else None
        i = chunk.positions[..., None, :, None]  # an axis for the heads, one for the keys
        j = self.positions[:, None, None, : self._used(self.stored + chunk.n)]
        visible = (j >= 0) & (j <= i)
        if self.window is not None:
            visible = visible & (i - j < self.window)
        if rule is None or isinstance(rule, Causal):
            return visible
        if isinstance(rule, Tensor):
            return visible & self.of_slots(rule)
        entry = torch.arange(len(j), device=j.device)[:, None, None, None]
        return visible & mask_mod(rule, len(j), ENDLESS, ENDLESS, j.device)(entry, i, j)

    def of_slots(self, x: Tensor) -> Tensor:
        """Take the columns of a mask or a bias, which has one for each position, in the order of the slots."""
        if self.window is None or x.shape[-1] == 1:
            return x
        columns = self.positions.clamp(min=0)[:, None, None]
        x = x[(None,) * (4 - x.ndim)].expand(len(columns), -1, -1, -1)
        return x.gather(-1, columns.expand(*x.shape[:3], -1))

    def advance(self, chunk: Chunk) -> None:
        """Count the tokens that were written."""
        if chunk.real is None or chunk.missing is None:
            self._count(self.stored + chunk.n)
        else:
            self._store_lengths(self.stored + chunk.n - chunk.missing)

    def _store_lengths(self, lengths: Tensor) -> None:
        stored = int(lengths.max())
        missing = stored - lengths
        self.missing = missing if missing.any() else None
        self._count(stored)

    def _count(self, stored: int) -> None:
        """Keep the count as the length of an empty tensor, which compiled code need not take for a constant.

        Two are added, since it takes lengths of 0 and 1 for constants. It is asked and not told to let the length
        vary, since a single key, as behind an empty cache, is a constant to it too.
        """
        counter = torch.empty(stored + 2, 0)
        self._counter = counter if torch.compiler.is_compiling() else _varying(counter)

    def _used(self, stored: int) -> int:
        """How many slots may hold something when so many tokens of the longest text are stored."""
        return stored if self.window is None else self.keys.shape[2]

    def _still_stored(self, lengths: Tensor, window: int) -> Tensor:
        """Whether the oldest token that the next one of each text would see is in its slot, and so all after it."""
        oldest = (lengths - window + 1).clamp(min=0)[:, None]
        found = self.positions.gather(1, oldest % self.keys.shape[2])
        return (found == oldest) | (oldest >= lengths[:, None])

    def __repr__(self) -> str:
        b, h_kv, slots, d_k = self.keys.shape
        kind = f"capacity={slots}" if self.window is None else f"window={self.window}, chunk={self.chunk}"
        d_v = self.values.shape[3]
        return f"KVCache(b={b}, h_kv={h_kv}, d_k={d_k}, d_v={d_v}, stored={self.stored}, {kind})"


def _varying(counter: Tensor) -> Tensor:
    torch._dynamo.maybe_mark_dynamic(counter, 0)
    return counter


def _separated(mask: Mask) -> tuple[Padding | None, Mask | None]:
    """Tell the padding of the new tokens from the rule for what they see."""
    match mask:
        case Padding():
            return mask, None
        case And(left, right):
            (padding, rule), (second, other) = _separated(left), _separated(right)
            if padding is None and second is None:
                return None, mask
            if padding is not None and second is not None:
                raise ValueError("KVCache: Padding must be given once, got two of them joined by &")
            padding = second if padding is None else padding
            return padding, other if rule is None else rule if other is None else And(rule, other)
    return None, mask


def _check_rule(rule: Mask | Tensor | None, window: int | None) -> None:
    """Refuse rules that cannot hold for tokens that are stored."""
    match rule:
        case And(left, right) | Or(left, right):
            _check_rule(left, window)
            _check_rule(right, window)
        case Not(inner):
            _check_rule(inner, window)
        case Padding():
            raise ValueError("KVCache: Padding says which new tokens are stored, and is joined to masks by & only")
        case Prefix():
            raise ValueError(
                "KVCache: Prefix lets a token see later ones, which are not stored yet; read such a prefix "
                "without a cache"
            )
        case Window(size) if window is not None and size > window:
            raise ValueError(f"KVCache: {rule} sees more than the {window} tokens that a ring of this window keeps")
