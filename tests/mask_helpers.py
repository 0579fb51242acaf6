"""Masks for the tests: one without tiles of its own, and any that the rules can be combined to."""

import numpy as np
from hypothesis import strategies as st

from mha_tutorial import Causal, Documents, Mask, Padding, Prefix, Window


class EveryOther(Mask):
    """A mask of one's own, which makes only whole arrays."""

    def rows(self, n, m, batch=()):
        return np.arange(m)[None, :] % 2 == np.zeros((1, 1))


@st.composite
def combined(draw, b, n, m):
    """A structured mask of one to five rules."""
    align = draw(st.sampled_from(["top-left", "bottom-right"]))
    lengths = st.one_of(st.integers(0, m), st.lists(st.integers(0, m), min_size=b, max_size=b))
    documents = st.lists(st.integers(0, m), max_size=4).map(lambda some: some if sum(some) <= m else [])
    simple = st.one_of(
        st.just(Causal(align)),
        st.integers(1, m + 1).map(lambda size: Window(size, align)),
        st.tuples(lengths, st.sampled_from(["left", "right"])).map(lambda both: Padding(*both)),
        lengths.map(Prefix),
        documents.map(lambda some: Documents(some, align)),
        st.lists(documents, min_size=b, max_size=b).map(lambda some: Documents(some, align)),
    )
    rules = st.recursive(
        simple,
        lambda inner: st.one_of(
            inner.map(lambda rule: ~rule),
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        ),
        max_leaves=5,
    )
    return draw(rules)
