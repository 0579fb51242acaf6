"""What a query may see: the structured masks against their definition, and the converters."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_tutorial import Causal, Documents, Padding, Prefix, Window, masks
from tests.helpers import M, N
from tests.mask_helpers import EveryOther, combined

ALIGNMENTS = {"top-left": 0, "bottom-right": M - N}


def matrix(rule, n=N, m=M):
    """The rows of a rule given for one query position and one key position."""
    return np.array([[rule(i, j) for j in range(m)] for i in range(n)])


@pytest.mark.parametrize(("align", "offset"), ALIGNMENTS.items())
def test_causal_sees_keys_up_to_its_own_position(align, offset):
    assert np.array_equal(Causal(align).rows(N, M), matrix(lambda i, j: j <= i + offset))


@pytest.mark.parametrize(("align", "offset"), ALIGNMENTS.items())
@pytest.mark.parametrize("size", [1, 3])
def test_window_sees_fewer_than_size_positions_away(align, offset, size):
    assert np.array_equal(Window(size, align).rows(N, M), matrix(lambda i, j: abs(i + offset - j) < size))


def test_window_and_causal_see_size_keys():
    visible = (Window(3) & Causal()).rows(N, N)
    assert visible.sum(axis=1).tolist() == [1, 2, 3, 3, 3]


@pytest.mark.parametrize("mask", [Causal(), Window(2)])
def test_alignment_may_be_left_out_only_when_lengths_are_equal(mask):
    assert np.array_equal(mask.rows(N, N), type(mask)(**{**vars(mask), "align": "top-left"}).rows(N, N))
    with pytest.raises(ValueError, match=f"with {N} queries and {M} keys the alignment must be stated"):
        mask.rows(N, M)


def test_more_queries_than_keys():
    assert np.array_equal(Causal("bottom-right").rows(3, 1), [[False], [False], [True]])
    assert np.array_equal(Causal("top-left").rows(3, 1), [[True], [True], [True]])


@pytest.mark.parametrize("batch", [(3,), (3, 1), ()])
def test_padding_sees_the_first_keys(batch):
    lengths = np.array([0, 4, M]).reshape(batch) if batch else np.array(4)
    visible = Padding(lengths).rows(N, M, batch)
    assert visible.shape == (*batch, 1, M)
    for entry in np.ndindex(batch):
        assert visible[entry].sum() == lengths[entry]
        assert visible[entry][0, : lengths[entry]].all()


@pytest.mark.parametrize("batch", [(3,), (3, 1), ()])
@pytest.mark.parametrize("make", [Padding, Prefix, lambda lengths: Padding(lengths, side="right")])
def test_padding_on_the_right_and_a_prefix_are_the_first_keys(make, batch):
    lengths = np.array([0, 4, M]).reshape(batch) if batch else np.array(4)
    visible = make(lengths).rows(N, M, batch)
    for entry in np.ndindex(batch):
        assert np.array_equal(visible[entry][0], np.arange(M) < lengths[entry])


@pytest.mark.parametrize("batch", [(3,), (3, 1), ()])
def test_padding_on_the_left_leaves_the_last_keys(batch):
    lengths = np.array([0, 4, M]).reshape(batch) if batch else np.array(4)
    visible = Padding(lengths, side="left").rows(N, M, batch)
    assert visible.shape == (*batch, 1, M)
    for entry in np.ndindex(batch):
        assert np.array_equal(visible[entry][0], [j >= M - lengths[entry] for j in range(M)])


def test_lengths_may_be_of_any_type_of_integers():
    """An unsigned difference would wrap around, and an eight-bit one overflow."""
    for dtype in (np.uint8, np.int8, np.uint64):
        lengths = np.array([2, 3], dtype)
        for make in (Prefix, lambda lengths: Padding(lengths, side="left")):
            assert make(lengths).rows(1, 300, (2,)).sum(axis=-1).tolist() == [[2], [3]]
        assert Documents(lengths).rows(300, 300).sum() == 4 + 9
    with pytest.raises(ValueError, match="must not exceed"):
        Padding(np.array([2**64 - 1], np.uint64)).rows(1, 3, (1,))


def test_a_prefix_or_what_came_before():
    visible = (Causal() | Prefix([0, 2, N])).rows(N, N, (3,))
    for entry, k in enumerate([0, 2, N]):
        assert np.array_equal(visible[entry], matrix(lambda i, j, k=k: j <= i or j < k, N, N))


DOCUMENTS = [2, 0, 1, 3]  # of the seven keys one belongs to none
NUMBERS = [0, 0, 2, 3, 3, 3, None]


def together(i, j):
    return 0 <= i < M and NUMBERS[i] is not None and NUMBERS[i] == NUMBERS[j]


def test_a_document_sees_itself_and_what_is_left_over_is_seen_by_nobody():
    assert np.array_equal(Documents(DOCUMENTS).rows(M, M), matrix(together, M, M))
    assert Documents(DOCUMENTS).numbers(np.arange(-1, M + 1)).tolist() == [-1, 0, 0, 2, 3, 3, 3, -1, -1]
    assert not Documents([]).rows(3, 3).any()
    assert not Documents([0, 0]).rows(3, 3).any()


@pytest.mark.parametrize("n", [1, N, M + 2])
@pytest.mark.parametrize("align", ALIGNMENTS)
def test_queries_stand_beside_the_keys_of_their_document(align, n):
    shift = M - n if align == "bottom-right" else 0
    expected = matrix(lambda i, j: together(i + shift, j), n, M)
    assert np.array_equal(Documents(DOCUMENTS, align).rows(n, M), expected)


@pytest.mark.parametrize(
    "lengths", [[[2, 1], [4], []], [(2, 1), np.array([4]), []], np.array([[2, 1], [4, 0], [0, 0]])]
)
def test_every_entry_of_the_batch_may_have_its_own_documents(lengths):
    visible = Documents(lengths).rows(4, 4, (3,))
    assert visible.shape == (3, 4, 4)
    for entry, alone in enumerate([[2, 1], [4], []]):
        assert np.array_equal(visible[entry], Documents(alone).rows(4, 4))


def test_documents_of_a_batch_of_any_shape():
    lengths = np.array([[[2, 1], [4, 0], [0, 0]]])
    assert np.array_equal(Documents(lengths).rows(4, 4, (1, 3))[0], Documents(lengths[0]).rows(4, 4, (3,)))
    assert Documents(np.zeros((0, 2), int)).rows(4, 4, (0,)).shape == (0, 4, 4)
    assert not Documents([[]]).rows(4, 4, (1,)).any()


def test_masks_combine_entry_by_entry():
    causal, padding, window = Causal("top-left"), Padding([2, 6]), Window(2, "bottom-right")
    a, b, c = (mask.rows(N, M, (2,)) for mask in (causal, padding, window))
    assert np.array_equal((causal & padding | ~window).rows(N, M, (2,)), a & b | ~c)
    assert np.array_equal((padding & causal).rows(N, M, (2,)), a & b)
    assert np.array_equal((padding | window).rows(N, M, (2,)), b | c)
    assert np.array_equal((window | padding).rows(N, M, (2,)), b | c)
    assert np.array_equal((~padding).rows(N, M, (2,)), ~b)


def test_columns_are_transposed_rows():
    visible = Causal("bottom-right") & Padding([2, 6])
    assert visible.columns(N, M, (2,)).shape == (2, M, N)
    assert np.array_equal(visible.columns(N, M, (2,)), visible.rows(N, M, (2,)).mT)


def test_padding_of_an_empty_batch():
    assert Padding([]).rows(N, M, (0,)).shape == (0, 1, M)


def test_padding_keeps_its_own_copy_of_the_lengths():
    lengths = np.array([2, 3])
    mask = Padding(lengths)
    lengths[:] = 0
    assert mask.lengths.tolist() == [2, 3]
    assert not mask.lengths.flags.writeable


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Causal("lower-right"),
            ValueError,
            "Causal: align must be 'top-left' or 'bottom-right', got 'lower-right'",
        ),
        (lambda: Window(2, "left"), ValueError, "Window: align must be .* got 'left'"),
        (lambda: Window(0), ValueError, "Window: size must be a positive integer, got 0"),
        (lambda: Window(2.0), ValueError, r"Window: size must be a positive integer, got 2\.0"),
        (lambda: Window(True), ValueError, "Window: size must be a positive integer, got True"),
        (
            lambda: Causal() and Padding(3),
            TypeError,
            "a structured mask has no truth value; combine masks with & | ~",
        ),
        (lambda: masks.And(Causal(), np.ones((2, 2), dtype=bool)), TypeError, "combines with structured masks"),
        (lambda: masks.Not(np.ones((2, 2), dtype=bool)), TypeError, "combines with structured masks, got ndarray"),
        (
            lambda: masks.visible_from_bias(np.array([[False]])),
            TypeError,
            "a floating array of 0 and -inf, got bool",
        ),
        (lambda: masks.visible_from_bias([[0.0]]), TypeError, "a floating array of 0 and -inf, got list"),
        (lambda: masks.bias_from_visible(np.eye(2) > 0, int), TypeError, "needs a floating type, got int64"),
        (lambda: Padding([1.0]), TypeError, "Padding: lengths must be integers, got float64"),
        (lambda: Padding([2, -1]), ValueError, r"Padding: lengths must not be negative, got \[2, -1\]"),
        (lambda: Padding([M + 1]).rows(N, M, (1,)), ValueError, rf"must not exceed the {M} keys, got \[{M + 1}\]"),
        (lambda: Padding([1, 2]).rows(N, M, (3,)), ValueError, r"shape \(2,\) do not fit the batch axes \(3,\)"),
        (lambda: Padding([1, 2]).rows(N, M), ValueError, r"shape \(2,\) do not fit the batch axes \(\)"),
        (lambda: Padding(3, "top"), ValueError, "Padding: side must be 'right' or 'left', got 'top'"),
        (lambda: Prefix(2.0), TypeError, "Prefix: lengths must be integers, got float64"),
        (lambda: Prefix(True), TypeError, "Prefix: lengths must be integers, got bool"),
        (lambda: Prefix(-1), ValueError, "Prefix: lengths must not be negative, got -1"),
        (
            lambda: Prefix(M + 1).rows(N, M),
            ValueError,
            f"Prefix: lengths must not exceed the {M} keys, got {M + 1}",
        ),
        (lambda: Prefix([1, 2]).rows(N, M, (3,)), ValueError, r"Prefix: lengths of shape \(2,\) do not fit the b"),
        (
            lambda: Padding([[1, 2], [3]]),
            ValueError,
            r"Padding: lengths must be an array of integers, got \[\[1, 2",
        ),
        (lambda: Documents(3), ValueError, r"Documents: lengths must be a list of lengths, got 3; of one, \[3\]"),
        (lambda: Documents([1.0]), TypeError, "Documents: lengths must be integers, got float64"),
        (
            lambda: Documents([[1], 2]),
            ValueError,
            r"Documents: lengths must be an array of integers, got \[\[1\], 2",
        ),
        (lambda: Documents([[1], [-2, 3]]), ValueError, r"must not be negative, got \[\[1, 0\], \[-2, 3\]\]"),
        (lambda: Documents([2, 3], "left"), ValueError, "Documents: align must be .* got 'left'"),
        (
            lambda: Documents([M, 1]).rows(M, M),
            ValueError,
            rf"Documents: lengths must not exceed the {M} keys together, got \[{M}, 1\]",
        ),
        (lambda: Documents([2**62, 2**62]).rows(M, M), ValueError, "Documents: lengths must not exceed"),
        (
            lambda: Documents([[1, 2], [3]]).rows(M, M, (3,)),
            ValueError,
            r"lengths of shape \(2, 2\), the documents in the last axis, do not fit the batch axes \(3,\)",
        ),
        (lambda: Documents([2]).rows(N, M), ValueError, f"Documents: with {N} queries and {M} keys the alignment"),
        (lambda: Causal() & np.ones((2, 2), dtype=bool), TypeError, "combines with structured masks, got ndarray"),
        (lambda: np.ones((2, 2), dtype=bool) | Causal(), TypeError, "make an array of it first"),
        (
            lambda: masks.visible_from_ignored(np.array([[0, 1]])),
            TypeError,
            "ignored must be a boolean array, got int64",
        ),
        (lambda: masks.ignored_from_visible([[True]]), TypeError, "visible must be a boolean array, got list"),
        (lambda: masks.bias_from_visible(np.eye(2)), TypeError, "visible must be a boolean array, got float64"),
        (
            lambda: masks.visible_from_bias(np.array([[0.0, -1e9]])),
            ValueError,
            "an additive mask holds only 0 and -inf",
        ),
        (
            lambda: masks.visible_from_bias(np.array([[np.nan]])),
            ValueError,
            "an additive mask holds only 0 and -inf",
        ),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: bool(Causal()),
            "a structured mask has no truth value; combine masks with & | ~, not with and, or, not",
        ),
        (
            lambda: Causal() | np.eye(2),
            "a structured mask combines with structured masks, got ndarray; to combine with a boolean array make "
            "an array of it first, mask.rows(n, m) or mask.columns(n, m)",
        ),
        (
            lambda: Causal().rows(2, 3),
            "Causal: with 2 queries and 3 keys the alignment must be stated, align='top-left' (first query beside "
            "first key) or align='bottom-right' (last beside last)",
        ),
        (
            lambda: masks.visible_from_bias(np.ones((1, 1))),
            "an additive mask holds only 0 and -inf; this one has other values, which change the scores: make it "
            "part of the score with biased(score, bias)",
        ),
    ],
)
def test_advice_is_given_whole(make, sentence):
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert str(caught.value) == sentence


def test_a_mask_without_a_rule_cannot_be_made():
    with pytest.raises(NotImplementedError):
        masks.Mask().rows(N, N)


def test_converters_read_and_write_polarity():
    visible = Causal().rows(3, 3)
    ignored = masks.ignored_from_visible(visible)
    assert np.array_equal(ignored, np.triu(np.ones((3, 3), dtype=bool), k=1))
    assert np.array_equal(masks.visible_from_ignored(ignored), visible)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_converters_read_and_write_additive_masks(dtype):
    visible = Causal().rows(3, 3)
    bias = masks.bias_from_visible(visible, dtype)
    assert bias.dtype == dtype
    assert np.array_equal(bias, [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]])
    assert np.array_equal(masks.visible_from_bias(bias), visible)


def test_additive_masks_are_zero_and_minus_infinity_by_default_in_float64():
    assert masks.bias_from_visible(Causal().rows(2, 2)).dtype == np.float64


def test_top_left_is_what_torch_calls_causal():
    q, k = torch.zeros(1, 1, N, 1, dtype=torch.float64), torch.zeros(1, 1, M, 1, dtype=torch.float64)
    v = torch.arange(M, dtype=torch.float64).reshape(1, 1, M, 1)
    averages = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    rows = Causal("top-left").rows(N, M)
    np.testing.assert_allclose(averages.reshape(N), rows @ np.arange(M) / rows.sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda align: Causal(align),
        lambda align: Window(2, align),
        lambda align: Window(2, align) & Causal(align),
        lambda align: Window(1, align) | ~Causal(align) & Padding([M, 4]),
        lambda align: Padding([M - 1, 1]),
        lambda align: Padding([M - 1, 1], side="left") | Prefix([0, 2]),
        lambda align: Documents([[1, 2], [4]], align) & Causal(align),
        lambda align: Documents(DOCUMENTS, align) | Prefix(1),
        lambda align: EveryOther(),
    ],
)
def test_a_tile_is_a_part_of_the_rows(align, make):
    mask, batch = make(align), (2,)
    rows = np.broadcast_to(mask.rows(N, M, batch), (*batch, N, M))
    for start, stop in ((0, 2), (1, N), (N - 1, N)):
        for first, end in ((0, 1), (2, 5), (M - 3, M)):
            part = rows[:, start:stop, first:end]
            tile = mask.tile(slice(start, stop), slice(first, end), N, M, batch)
            assert np.array_equal(np.broadcast_to(tile, part.shape), part)


def test_a_tile_of_which_all_is_visible_or_hidden_is_one_answer():
    past, future = (slice(4, 7), slice(0, 2)), (slice(0, 2), slice(4, 7))
    assert Causal().tile(*past, 7, 7).tolist() == [[True]]
    assert Causal().tile(*future, 7, 7).tolist() == [[False]]
    assert Window(5).tile(*past, 7, 7).shape == (3, 2)
    assert Window(2).tile(*past, 7, 7).tolist() == Window(2).tile(*future, 7, 7).tolist() == [[False]]
    assert Window(7).tile(*past, 7, 7).tolist() == Window(7).tile(*future, 7, 7).tolist() == [[True]]


@pytest.mark.no_cover
@given(data=st.data(), b=st.integers(1, 3), n=st.integers(1, 6), m=st.integers(1, 6))
@settings(deadline=None)
def test_rules_of_any_kind_keep_the_laws(data, b, n, m):
    first, second = data.draw(combined(b, n, m)), data.draw(combined(b, n, m))

    def every(mask):
        return np.broadcast_to(mask.rows(n, m, (b,)), (b, n, m))

    assert np.array_equal(every(~(first & second)), every(~first | ~second))
    assert np.array_equal(every(~(first | second)), every(~first & ~second))
    assert np.array_equal(every(~~first), every(first))
    assert np.array_equal(np.broadcast_to(first.columns(n, m, (b,)), (b, m, n)), every(first).mT)
    queries, keys = (slice(*sorted(data.draw(st.tuples(st.integers(0, k), st.integers(0, k))))) for k in (n, m))
    part = every(first)[:, queries, keys]
    if part.size:
        tile = first.tile(queries, keys, n, m, (b,))
        assert np.array_equal(np.broadcast_to(tile, part.shape), part)
