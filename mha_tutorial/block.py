"""A transformer block around the layer, in NumPy: two norms, a feed-forward part and two sums; tokens are rows."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from ._checks import ROWS as convention
from .layer import MultiHeadAttention
from .masks import Mask


def layer_norm(
    x: Float[Array, "*b d_model"],
    gain: Float[Array, " d_model"],
    shift: Float[Array, " d_model"],
    eps: float = 1e-5,
) -> Float[Array, "*b d_model"]:
    """Shift and scale each token's numbers to mean zero and variance one, then by what has been learned.

    Computes :eq:`eq-layer-norm`.

    Parameters
    ----------
    eps
        What is added to the variance, so that equal numbers are divided by something.

    Raises
    ------
    TypeError, ValueError
        If tokens, gain and shift are not floating arrays of one type and width.

    References
    ----------
    Ba, Kiros and Hinton, *Layer Normalization*.

    Examples
    --------
    >>> layer_norm(np.array([1.0, 3.0]), np.ones(2), np.zeros(2), eps=0.0)
    array([-1.,  1.])
    """
    _check_widths(x, gain=gain, shift=shift)
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps) * gain + shift


def rms_norm(
    x: Float[Array, "*b d_model"], gain: Float[Array, " d_model"], eps: float = 1e-5
) -> Float[Array, "*b d_model"]:
    """Scale each token's numbers to a root mean square of one, then by what has been learned.

    Computes :eq:`eq-rms-norm`.

    Parameters
    ----------
    eps
        What is added to the mean square, so that zeros are divided by something.

    Raises
    ------
    TypeError, ValueError
        If tokens and gain are not floating arrays of one type and width.

    References
    ----------
    Zhang and Sennrich, *Root Mean Square Layer Normalization*.

    Examples
    --------
    >>> rms_norm(np.array([1.0, 7.0]), np.ones(2), eps=0.0)
    array([0.2, 1.4])
    """
    _check_widths(x, gain=gain)
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps) * gain


def silu(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    """Let large numbers through, and next to nothing of negative ones: ``x`` times its logistic function.

    Examples
    --------
    >>> silu(np.array([-30.0, 0.0, 30.0])).round(6).tolist()
    [-0.0, 0.0, 30.0]
    """
    return x * (0.5 + 0.5 * np.tanh(0.5 * x))  # the logistic function, without an exponential that overflows


def swiglu(
    x: Float[Array, "*b d_model"],
    W_gate: Float[Array, "d_model d_hidden"],
    W_up: Float[Array, "d_model d_hidden"],
    W_down: Float[Array, "d_hidden d_model"],
) -> Float[Array, "*b d_model"]:
    """Rewrite each token by itself: widened, gated number by number, and brought back to its width.

    Computes :eq:`eq-swiglu-row`; with everything transposed it is :eq:`eq-swiglu`.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one floating type, or the matrices do not fit the tokens and each other.

    References
    ----------
    Shazeer, *GLU Variants Improve Transformer*.

    Examples
    --------
    >>> swiglu(np.ones((5, 2)), np.ones((2, 3)), np.ones((2, 3)), np.ones((3, 2))).shape
    (5, 2)
    """
    _check_feed_forward(x, W_gate, W_up, W_down)
    return (silu(x @ W_gate) * (x @ W_up)) @ W_down


@dataclass(frozen=True)
class Block:
    """One layer of a language model such as Llama: attention, then a feed-forward part, each added to the tokens.

    Computes :eq:`eq-pre-norm-block`.

    Parameters
    ----------
    attention
        The layer, with the positions it is told by `prepare`.
    W_gate, W_up, W_down
        The matrices of `swiglu`.
    attention_gain, feed_forward_gain
        What the numbers of a normalised token are multiplied by, before attention and before the feed-forward part.
    eps
        What both norms add to the mean square.

    Raises
    ------
    TypeError, ValueError
        Called, if tokens do not fit the layer, the matrices or the gains.

    References
    ----------
    Touvron and others, *LLaMA: Open and Efficient Foundation Language Models*, section 2.2.

    Examples
    --------
    >>> from mha_tutorial import RowWeights
    >>> rng = np.random.default_rng(0)
    >>> layer = MultiHeadAttention(RowWeights.random(rng, d_model=6, h=2))
    >>> gate, up, down = (rng.normal(size=shape) for shape in ((6, 16), (6, 16), (16, 6)))
    >>> Block(layer, gate, up, down, np.ones(6), np.ones(6))(rng.normal(size=(5, 6))).shape
    (5, 6)
    """

    attention: MultiHeadAttention
    W_gate: Float[Array, "d_model d_hidden"]
    W_up: Float[Array, "d_model d_hidden"]
    W_down: Float[Array, "d_hidden d_model"]
    attention_gain: Float[Array, " d_model"]
    feed_forward_gain: Float[Array, " d_model"]
    eps: float = 1e-5

    def __call__(
        self,
        x: Float[Array, "*b n d_model"],
        *,
        visible: Bool[Array, "*#b_h #n #n"] | Mask | None = None,
        positions: Int[Array, "*#b n"] | None = None,
    ) -> Float[Array, "*b n d_model"]:
        """Let each token take in what the others hold, then rewrite it by itself."""
        normalised = rms_norm(x, self.attention_gain, self.eps)
        x = x + self.attention(normalised, visible=visible, positions=positions)
        normalised = rms_norm(x, self.feed_forward_gain, self.eps)
        return x + swiglu(normalised, self.W_gate, self.W_up, self.W_down)


def _check_widths(x: Array, **vectors: Array) -> None:
    """Refuse what is not one vector for each width, in the type of the tokens."""
    convention.check_array("x", x, axes=1)
    for name, vector in vectors.items():
        convention.check_array(name, vector, axes=1)
        convention.check_type(name, vector, "x", x)
        if vector.shape != x.shape[-1:]:
            raise ValueError(f"{convention} {name} must be ({x.shape[-1]},), as wide as x, got {vector.shape}")


def _check_feed_forward(x: Array, W_gate: Array, W_up: Array, W_down: Array) -> None:
    """Refuse matrices that do not lead from a token's width to a hidden one and back."""
    convention.check_array("x", x, axes=1)
    for name, W in (("W_gate", W_gate), ("W_up", W_up), ("W_down", W_down)):
        convention.check_array(name, W)
        convention.check_type(name, W, "x", x)
    d_model, d_hidden = x.shape[-1], W_gate.shape[-1]
    expected = (d_model, d_hidden), (d_model, d_hidden), (d_hidden, d_model)
    shapes = W_gate.shape, W_up.shape, W_down.shape
    if shapes != expected:
        raise ValueError(
            f"{convention} W_gate and W_up must be (d_model, d_hidden) and W_down (d_hidden, d_model) with "
            f"d_model={d_model}, got {', '.join(map(str, shapes))}"
        )
