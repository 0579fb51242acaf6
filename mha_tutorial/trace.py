"""Everything one pass computes, step by step, so that figures and tests can look at any of it."""

from typing import NamedTuple

from numpy import ndarray


class Trace(NamedTuple):
    """The seven steps of one pass through multi-head attention, in the order they are computed.

    In the column convention the last two axes of every step are read as below; in the row
    convention they are swapped. A leading ``h`` counts heads, and ``h_kv`` the heads that keys and
    values have (``h_kv`` is ``h`` unless several query heads share them). Batch axes come first.

    =============  ======================  ======================
    step           columns                 rows
    =============  ======================  ======================
    ``queries``    ``(h, d_k, n)``         ``(h, n, d_k)``
    ``keys``       ``(h_kv, d_k, m)``      ``(h_kv, m, d_k)``
    ``values``     ``(h_kv, d_v, m)``      ``(h_kv, m, d_v)``
    ``scores``     ``(h, m, n)``           ``(h, n, m)``
    ``attention``  ``(h, m, n)``           ``(h, n, m)``
    ``heads``      ``(h, d_v, n)``         ``(h, n, d_v)``
    ``output``     ``(d_model, n)``        ``(n, d_model)``
    =============  ======================  ======================

    ``scores`` hold minus infinity where a query may not see a key, and only there. They and ``attention``
    have 32 bits or more, also where the other steps have 16. ``queries`` and ``keys`` are what the scores
    are computed from, after a ``prepare`` function; a layer's extra keys and values stand behind the ``m``
    of the tokens. ``attention`` is the softmax of
    the scores: what most texts call the attention weights.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_tutorial import ColumnWeights
    >>> from mha_tutorial.reference import column
    >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=6, h=2)
    >>> X = np.eye(6, 5)
    >>> trace = column.multi_head(X, X, X, weights)
    >>> trace.heads.shape, trace.T.heads.shape
    ((2, 3, 5), (2, 5, 3))
    """

    queries: ndarray
    keys: ndarray
    values: ndarray
    scores: ndarray
    attention: ndarray
    heads: ndarray
    output: ndarray

    @property
    def T(self) -> "Trace":
        """The same pass in the other convention, every step with its last two axes swapped.

        What :eq:`eq-transposition` says that the other convention computes.
        """
        return Trace(*(step.mT for step in self))
