"""The heads of a model at one text: all of them small, one large, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from .base import Explorer, escape

LIMIT = 400_000  # numbers in a page: 270 heads and 38 tokens, or a file of a few megabytes
SHADES = ((0.05, 0.15), (0.25, 0.4), (0.5, 0.65), (0.75, 1.0))  # from this weight on, how dark it is drawn
NO_WEIGHTS = (
    "there are no attention weights: fused kernels, such as PyTorch's scaled_dot_product_attention, never write "
    'them down. In transformers load the model with attn_implementation="eager" and call it with '
    "output_attentions=True; call nn.MultiheadAttention with need_weights=True and average_attn_weights=False"
)
TRACED = "attention must be layers of shape (h, n, m) or (1, h, n, m), arrays or tensors"


class Following(NamedTuple):
    """The likeliest next tokens and their probabilities: with all heads, and without each head.

    Attributes
    ----------
    words, shares
        With all heads, the likeliest first.
    words_without, shares_without
        The same in nested lists, layer by layer and head by head.
    """

    words: list[str]
    shares: list[float]
    words_without: list[list[list[str]]]
    shares_without: list[list[list[float]]]

    def states(self) -> dict[str, Any]:
        """For the script: each word once, and shares in thousandths."""
        lists = [self.words, *(words for layer in self.words_without for words in layer)]
        known = {word: i for i, word in enumerate(dict.fromkeys(word for words in lists for word in words))}

        def pairs(words: list[str], shares: list[float]) -> list[list[int]]:
            return [[known[word], round(1000 * share)] for word, share in zip(words, shares, strict=True)]

        without = [list(map(pairs, *both)) for both in zip(self.words_without, self.shares_without, strict=True)]
        return {"words": list(known), "all": pairs(self.words, self.shares), "without": without}

    def still(self, layers: Sequence[int]) -> str:
        """A folded table with a row for all heads and one without each; the layers are called by these numbers."""
        rows = [("all heads", self.words, self.shares)]
        for layer, both in zip(layers, zip(self.words_without, self.shares_without, strict=True), strict=True):
            for head, (words, shares) in enumerate(zip(*both, strict=True)):
                rows += [(f"without layer {layer}, head {head}", words, shares)]
        lines = "\n".join(
            f"<tr><th scope=row>{name}"
            + "".join(f"<td>{_label(word)} {100 * share:.0f}" for word, share in zip(words, shares, strict=True))
            for name, words, shares in rows
        )
        return (
            "<details><summary>What comes next, in percent, with all heads and without each</summary>\n"
            f"<table>\n<tbody>\n{lines}\n</tbody></table></details>\n"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Heads(Explorer):
    """The attention of every head of every layer at one text, to be looked at in a page; `view` makes one.

    Attributes
    ----------
    attention
        The weights, ``(layers, h, n, m)``: tokens in rows, so that a row belongs to a query and sums to one.
    queries, keys
        The texts of the tokens.
    contributions
        The length of what each key adds to each query through a head, of the same shape, or none.
    following
        What the model says comes next, with all heads and without each, or none.
    layers
        The numbers of the layers, where they are not all of them from 0 on.
    """

    kind: ClassVar[str] = "heads"
    attention: Array
    queries: list[str]
    keys: list[str]
    contributions: Array | None = None
    following: Following | None = None
    layers: list[int] | None = None

    @property
    def title(self) -> str:
        layers, h, _, _ = self.attention.shape
        return f"{layers * h} heads at one text"

    def states(self) -> dict[str, Any]:
        added = None if self.contributions is None else _nested(self.contributions, _three_digits)
        return {
            "queries": self.queries,
            "keys": self.keys,
            "weights": _nested(self.attention, lambda x: round(1000 * x)),
            "contributions": added,
            **({} if self.following is None else {"following": self.following.states()}),
            **({} if self.layers is None else {"layers": self.layers}),
        }

    def still(self) -> str:
        names = range(len(self.attention)) if self.layers is None else self.layers
        layers = "".join(map(self._layer, names, self.attention))
        return f"{self._thumbnails()}\n{layers}{'' if self.following is None else self.following.still(names)}"

    def _thumbnails(self) -> str:
        """All heads as one picture: a row for each layer, and in it the weights of each head as a small square."""
        layers, h, n, m = self.attention.shape
        width, height = h * (m + 2), layers * (n + 2)
        steps = [bound for bound, _ in SHADES]
        levels = np.digitize(self.attention, steps)
        paths: list[list[str]] = [[] for _ in SHADES]
        for layer, head, query in np.ndindex(layers, h, n):
            x, y = head * (m + 2), layer * (n + 2) + query
            for level, cells in groupby(range(m), key=lambda key: int(levels[layer, head, query, key])):
                run = list(cells)
                if level:
                    paths[level - 1].append(f"M{x + run[0]} {y}h{len(run)}")
        drawn = "\n".join(
            f'<path d="{"".join(path)}" stroke-opacity="{dark}"/>'
            for path, (_, dark) in zip(paths, SHADES, strict=True)
        )
        says = (
            f"{layers} rows of {h} squares, a row for each layer and a square for each head. A square has a row "
            "for each query and a column for each key, and is dark where the weight is large. Its numbers follow."
        )
        return (
            f'<svg viewBox="-1 -1 {width} {height}" role="img" aria-label="{says}" '
            f'style="max-width:{2 * width}px">\n'
            f'<g stroke="currentColor" fill="none" transform="translate(0 .5)">\n{drawn}\n</g>\n</svg>'
        )

    def _layer(self, name: int, attention: Float[Array, "h n m"]) -> str:
        """The weights of a layer in percent, folded; cells are not closed, as HTML allows."""
        columns = "".join(f"<th scope=col>{_label(key)}" for key in self.keys)
        percent = np.rint(100 * attention).astype(int)
        rows = []
        for head, of_head in enumerate(percent):
            for query, weights in zip(self.queries, of_head.tolist(), strict=True):
                cells = "".join(f"<td>{weight or ''}" for weight in weights)
                rows.append(f"<tr><th scope=row>{head}<th scope=row>{_label(query)}{cells}")
        return (
            f"<details><summary>Layer {name}: weights in percent</summary>\n<table>\n"
            f"<thead><tr><th scope=col>head<th scope=col>query{columns}</thead>\n<tbody>\n"
            + "\n".join(rows)
            + "\n</tbody></table></details>\n"
        )


def view(attention: Any, tokens: Sequence[Any], contributions: Any = None) -> Heads:
    """Show what every head of a model attends to, at one text.

    A notebook shows the result by itself, and its method ``save("heads.html")`` writes a page that needs no other
    file. In it all heads are small pictures; one of them is large, and its tokens can be gone through one by one.

    Weights have to be computed to be seen. Fused kernels, PyTorch's `scaled_dot_product_attention` (SDPA) among
    them, go over the keys block by block and never hold a row of weights as a whole, so a model that runs on them
    has none to give: `transformers` then returns ``None`` for each layer, or nothing. So ask for the plain way:

    - for this package, ``model.trace(ids).attention``, or ``layer.trace(x).attention`` of one layer;
    - for `transformers`, load with ``attn_implementation="eager"``, call with ``output_attentions=True``, and pass
      the result's ``attentions``;
    - for `torch.nn.MultiheadAttention`, the second result of a call with ``need_weights=True`` and
      ``average_attn_weights=False``, without which the heads are averaged into one.

    Parameters
    ----------
    attention
        A list or tuple with the weights of each layer, ``(h, n, m)`` or ``(1, h, n, m)``, in NumPy or PyTorch; or
        one array: of a layer, ``(h, n, m)`` or ``(1, h, n, m)``, or of several, ``(layers, 1, h, n, m)``. Queries
        are rows, keys columns.
    tokens
        The texts of the tokens; where queries and keys are different tokens, a pair of lists, queries first.
    contributions
        If given, numbers of the same shape to be shown in place of the weights on demand: how much each key really
        adds to each query, such as the length of ``attention[i, j] * values[j] @ W_o``.

    Raises
    ------
    TypeError
        If there are no weights, or something is neither an array nor a list of them, or no text.
    ValueError
        If shapes do not fit each other or the tokens, there is more than one text, the numbers are not weights, or
        there are more of them than a page can hold.

    Examples
    --------
    >>> attention = np.full((2, 3, 4, 4), 0.25)  # two layers of three heads
    >>> view(list(attention), ["She", " sat", " down", "."])
    <explorer: 6 heads at one text>
    """
    weights = _stacked("attention", attention)
    layers, h, n, m = weights.shape
    queries, keys = _texts(tokens, n, m)
    if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() <= 1 + 1e-3):
        raise ValueError(
            "attention must hold weights, numbers from 0 to 1, got numbers from "
            f"{weights.min():.3g} to {weights.max():.3g}; are these scores, before softmax?"
        )
    if weights.size > LIMIT:
        raise ValueError(
            f"{layers} layers of {h} heads at {n} queries and {m} keys are {weights.size:,} numbers, more than the "
            f"{LIMIT:,} of a page; take a shorter text (here {int((LIMIT / (layers * h)) ** 0.5)} tokens), or some "
            "of the layers"
        )
    added = None if contributions is None else _stacked("contributions", contributions)
    if added is not None and added.shape != weights.shape:
        raise ValueError(f"contributions must be of the shape of attention, {weights.shape}, got {added.shape}")
    if added is not None and not np.isfinite(added).all():
        raise ValueError("contributions must be finite numbers")
    return Heads(weights, queries, keys, added)


def from_model(model: Any, text: str, switch_off: bool = False, layers: Sequence[int] | None = None) -> Heads:
    """Show what every head of a `mha_tutorial.models.Decoder` attends to and contributes, at one text.

    A key's contribution to a query through a head is the length of ``A_ij v_j W_o``, with the weight ``A_ij``, the
    value ``v_j`` of the head and its rows of the output projection: what the head adds to the query's vector from
    that key. A large weight on a short vector contributes little.

    Numbers are rounded, and those of a model in 32 bits may be rounded otherwise on another machine; load it with
    ``dtype=torch.float64`` where a page has to be the same everywhere.

    Parameters
    ----------
    switch_off
        Whether to tell, too, what comes next without each of the heads. This runs the upper part of the model once
        for each layer.
    layers
        Which layers to show, counted from 0; all of them, if left out.

    Raises
    ------
    ValueError
        If the text is empty or too long, the model has no tokenizer or none of these layers.
    """
    import torch

    if model.tokenizer is None:
        raise ValueError("this model was loaded without a tokenizer, and cannot read a text")
    ids = model.tokenizer.encode(text)
    if not ids:
        raise ValueError("the text is empty; attention needs one token or more")
    shown = range(model.config.layers) if layers is None else list(layers)
    if not shown or not set(shown) <= set(range(model.config.layers)):
        raise ValueError(f"the layers of this model are 0 to {model.config.layers - 1}, got layers={layers}")
    most = int((LIMIT / (len(shown) * model.config.h)) ** 0.5)
    if len(ids) > most:
        raise ValueError(f"the text has {len(ids)} tokens, and a page holds the heads of this model at {most}")
    tokens = torch.tensor([ids], device=model.embedding.weight.device)
    with torch.no_grad():
        traced = model.trace(tokens).layers
        added = [_written(model.blocks[i].attention, traced[i]) for i in shown]
        following = _following(model, tokens, shown) if switch_off else None
    page = view([traced[i].attention for i in shown], model.tokenizer.tokens(text), added)
    return replace(page, following=following, layers=None if layers is None else list(layers))


def _following(model: Any, ids: Any, layers: Sequence[int], most: int = 5) -> Following:
    """What comes next after a text, with all heads and without each of these layers."""
    x, options = model._begin(ids, None, None, None)
    blocks, found = list(model.blocks), {}
    for i, block in enumerate(blocks):
        steps, after = block.trace(x, **options)
        if i not in layers:
            x = after
            continue
        per_head = block.attention.W_o.weight.unflatten(1, (block.attention.h, -1)).movedim(1, 0)
        written = (steps.heads[0].to(per_head.dtype) @ per_head.mT).to(x.dtype)  # (h, n, d_model)
        changed = x + steps.output - written  # a text for each head that is left out
        changed = changed + block.feed_forward(block.feed_forward_norm(changed))
        for later in blocks[i + 1 :]:
            changed = later(changed, **options)
        found[i] = _likeliest(model, changed[:, -1], most)
        x = after
    words, shares = _likeliest(model, x[:, -1], most)
    return Following(words[0], shares[0], *map(list, zip(*(found[i] for i in layers), strict=True)))


def _likeliest(model: Any, last: Any, most: int) -> tuple[list[list[str]], list[list[float]]]:
    """The likeliest tokens after each of some last tokens, and their probabilities."""
    shares, ids = model.output(model.norm(last)).softmax(dim=-1).topk(most)
    return [[model.tokenizer.decode([i]) for i in row] for row in ids.tolist()], shares.tolist()


def _written(layer: Any, steps: Any) -> Any:
    """The length of what each key adds to each query through each head: (1, h, n, m)."""
    import torch

    values = steps.values.repeat_interleave(layer.h // layer.h_kv, dim=-3)  # (1, h, m, d_v)
    per_head = layer.W_o.weight.unflatten(1, (layer.h, -1))  # (d_model, h, d_v)
    written = torch.einsum("bhmv,dhv->bhmd", values.to(per_head.dtype), per_head)
    return steps.attention * written.norm(dim=-1)[..., None, :].to(steps.attention.dtype)


def _stacked(name: str, layers: Any) -> Array:
    """The layers as one array, (layers, h, n, m)."""
    if layers is None or (isinstance(layers, list | tuple) and (not layers or any(x is None for x in layers))):
        raise TypeError(NO_WEIGHTS)
    if isinstance(layers, list | tuple):
        arrays = [_layer(f"{name}[{i}]", _array(f"{name}[{i}]", x)) for i, x in enumerate(layers)]
    else:
        array = _array(name, layers)
        arrays = [_layer(name, x) for x in (array if array.ndim == 5 else array[None])]
    for i, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ValueError(
                f"all layers must have one shape (h, n, m): {name}[0] has {arrays[0].shape}, {name}[{i}] has "
                f"{array.shape}; show those that are alike"
            )
    return np.stack(arrays)


def _array(name: str, value: Any) -> Array:
    """An array of a NumPy array or a tensor of any device and type, in 64 bits."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{TRACED}; {name} is {type(value).__name__}")
    if value.dtype.kind != "f":
        raise TypeError(f"{name} must hold floating-point numbers, got {value.dtype}")
    return value.astype(np.float64)


def _layer(name: str, array: Array) -> Array:
    """The weights of one layer at one text, (h, n, m)."""
    if array.ndim == 4 and len(array) > 1:
        raise ValueError(
            f"{name} has shape {array.shape}: {len(array)} texts, or as many layers? Pass one text, as x[:1], or "
            "the layers as a list, list(x)"
        )
    if array.ndim not in (3, 4):
        averaged = "; of averaged heads nothing can be told apart" if array.ndim == 2 else ""
        raise ValueError(f"{TRACED}; {name} has shape {array.shape}{averaged}")
    if not array.size:
        raise ValueError(f"{name} is empty: its shape is {array.shape}")
    return array.reshape(array.shape[-3:])


def _texts(tokens: Sequence[Any], n: int, m: int) -> tuple[list[str], list[str]]:
    """The texts of the queries and of the keys."""
    if isinstance(tokens, str):
        raise TypeError(
            f"tokens must be a list of texts, one for each token, got one text of {len(tokens)} letters"
        )
    pair = len(tokens) == 2 and not any(isinstance(part, str) for part in tokens)
    queries, keys = (list(part) for part in (tokens if pair else (tokens, tokens)))
    for name, texts, length in (("queries", queries, n), ("keys", keys, m)):
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("tokens must be texts; make texts of numbers with the tokenizer that made them")
        if len(texts) != length:
            hint = "" if pair or n == m else "; where queries and keys differ, pass a pair of lists"
            raise ValueError(f"attention has {length} {name}, and there are {len(texts)} tokens{hint}")
    return queries, keys


def _nested(array: Array, number: Any) -> list:
    """Nested lists of rounded numbers; a row ends with its last one that is not zero."""
    if array.ndim > 1:
        return [_nested(part, number) for part in array]
    row = [number(x) for x in array.tolist()]
    while row and not row[-1]:
        row.pop()
    return row


def _three_digits(x: float) -> float | int:
    rounded = float(f"{x:.3g}")
    return int(rounded) if rounded.is_integer() else rounded


def _label(token: str) -> str:
    """How a token is shown: without the space before it, which most have."""
    return escape(token.strip(" ") or "␣")
