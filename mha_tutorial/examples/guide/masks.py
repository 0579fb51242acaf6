"""Faults of masks."""

import numpy as np

from ...check.problems import triangle
from .case import Case, Numbers, both, imitated, sines, three_tokens

LETTERS = "three tokens, `sines` of two features"


def _polarity() -> Numbers:
    q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 3, 1)), np.array([1.0, 2.0, 4.0]).reshape(1, 1, 3, 1)
    visible = np.array([[True, False, True]])
    return both("q = 0, v = 1, 2, 4, mask = True, False, True", "mask-inverted", q, k, v, visible=visible)


def _added() -> Numbers:
    q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([1.0, 9.0]).reshape(1, 1, 2, 1)
    return both("q = 0, v = 1, 9, mask = 1.0, 0.0", "mask-added", q, k, v, visible=np.array([[True, False]]))


def _merged() -> Numbers:
    q, k, v = three_tokens()
    causal, real = triangle(3, 3), np.array([[False, True, True]])
    wrong, right = (imitated("", q, k, v, visible=mask)[0, 0, 2] for mask in (causal, causal & real))
    return Numbers(f"{LETTERS}, causal, the first key padded away; the last query", wrong, right)


def _order() -> Numbers:
    q, k, v = (sines(2, 2, 2, 2, a=a) for a in (1.3, 0.9, 2.1))
    visible = np.ones((2, 2, 2, 2), bool)
    visible[0, 0, :, 0] = visible[0, 1, :, 1] = visible[1, 1, 0, 0] = False
    numbers = both(
        "two sequences, two heads, two tokens; head 2 of sequence 1", "mask-head-order", q, k, v, visible=visible
    )
    return numbers._replace(wrong=numbers.wrong[0, 1, 0], right=numbers.right[0, 1, 0])


def _nothing() -> Numbers:
    scores = np.full(2, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max())
    right = imitated(
        "", np.ones((1, 1, 1, 1)), np.ones((1, 1, 2, 1)), np.ones((1, 1, 2, 1)), np.zeros((1, 2), bool)
    )
    return Numbers("one query, two keys, both hidden", weights / weights.sum(), right)


def _path() -> Numbers:
    visible = np.array([[True, True], [False, False]])  # of two heads
    q, k, v = np.zeros((1, 2, 1, 1)), np.zeros((1, 2, 2, 1)), np.array([[[[1.0], [3.0]]] * 2])
    heads = imitated("", q, k, v, visible=visible[None, :, None, :])
    with np.errstate(invalid="ignore"):
        naive = np.where(visible.any(1), heads[0, :, 0, 0], np.nan)
    return Numbers("two heads of values 1, 3; one head sees nothing; their sum", naive.sum(), heads.sum())


def _leak() -> Numbers:
    weights, values = np.array([0.5, 0.0, 0.5]), np.array([2.0, np.nan, 4.0])
    selected = weights[weights > 0] @ values[weights > 0]
    return Numbers("weights 0.5, 0, 0.5 and values 2, NaN, 4", weights @ values, selected)


def _alignment() -> Numbers:
    q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 5, 1)), np.arange(5.0).reshape(1, 1, 5, 1)
    return both(
        "q = 0, one new token, five keys with v = 0 … 4", "causal-top-left", q, k, v, visible=triangle(1, 5)
    )


def _fill() -> Numbers:
    scores, values, visible = np.array([-20000.0, 0.0]), np.array([1.0, 9.0]), np.array([True, False])
    wrong, right = (np.exp(s - s.max()) for s in (np.where(visible, scores, fill) for fill in (-1e4, -np.inf)))
    return Numbers("scores -20000, 0, the second hidden by -1e4; v = 1, 9", wrong @ values, right @ values)


def _after() -> Numbers:
    q, k = np.ones((1, 1, 1, 1)), np.array([0.0, 1.0, 4.0]).reshape(1, 1, 3, 1)
    v, visible = np.array([10.0, 20.0, 40.0]).reshape(1, 1, 3, 1), np.array([[True, True, False]])
    return both("scores 0, 1, 4, v = 10, 20, 40, the third hidden", "mask-after-softmax", q, k, v, visible=visible)


def _slow() -> Numbers:
    q, k, v = three_tokens()
    numbers = both(f"{LETTERS}, causal; the first query", "mask-ignored", q, k, v, visible=triangle(3, 3))
    return numbers._replace(wrong=numbers.wrong[0, 0, 0], right=numbers.right[0, 0, 0])


def _axis() -> Numbers:
    q, k, v = (sines(1, 2, 2, 2, a=a) for a in (1.3, 0.9, 2.1))
    visible = np.array([[[True, False], [True, True]], [[False, True], [True, True]]])
    wrong, right = (imitated("", q, k, v, visible=m)[0, 0, 0] for m in (np.moveaxis(visible, -1, 0), visible))
    return Numbers("two heads, two queries, two keys, a mask for each head", wrong, right)


def _slots() -> Numbers:
    q, k, v = three_tokens()
    k, v = (np.concatenate([x, np.zeros((1, 1, 1, 2))], axis=-2) for x in (k, v))
    before, one = np.tri(3, 3, -1, dtype=bool), np.ones((3, 1), bool)
    masks = np.hstack([one, before]), np.hstack([before, one])
    wrong, right = (imitated("", q, k, v, visible=mask)[0, 0, 0] for mask in masks)
    return Numbers("three tokens that see what is before them, and a key of zeros; the first", wrong, right)


def _chunk() -> Numbers:
    q, k, v = np.zeros((1, 1, 3, 1)), np.zeros((1, 1, 5, 1)), np.arange(5.0).reshape(1, 1, 5, 1)
    return both(
        "q = 0, three new tokens behind two cached ones, v = 0 … 4",
        "causal-top-left",
        q,
        k,
        v,
        visible=triangle(3, 5),
    )


def _two_readings() -> Numbers:
    q, k, v = np.zeros((2, 2, 1, 1)), np.zeros((2, 2, 2, 1)), np.array([[[[1.0], [9.0]]] * 2] * 2)
    mask = np.array([[[True, False]], [[False, True]]])
    wrong, right = (imitated("", q, k, v, visible=m) for m in (mask[None], mask[:, None]))
    return Numbers("two sequences, two heads, a mask (2, 1, 2) meant for the sequences; v = 1, 9", wrong, right)


CASES = (
    Case(
        "A01",
        "masks",
        (
            "I moved from `scaled_dot_product_attention` to `nn.MultiheadAttention` with the same mask, "
            "and nothing learns."
        ),
        "True means *attend* in one and *ignore* in the other.",
        "Name the polarity where the mask is made, and invert it once.",
        (
            "pytorch/pytorch#170400",
            "pytorch/pytorch!170415",
        ),
        "test_mask_polarity",
        "mask-inverted",
        _polarity,
    ),
    Case(
        "A02",
        "masks",
        ("My causal mask of ones and zeros changes the loss a little, but the model still sees the future."),
        "A float mask is added to the scores: a one raises a score by one and a zero hides nothing.",
        "Boolean to hide, float to add. A float mask that hides holds minus infinity.",
        ("pytorch/pytorch#21518",),
        "test_float_mask_is_additive",
        "mask-added",
        _added,
    ),
    Case(
        "A03",
        "masks",
        "With a boolean causal mask and a float padding mask together, the padding is attended to.",
        "Two masks of different types were merged as if both were boolean.",
        "Bring masks to one form before they are combined.",
        ("pytorch/pytorch#92554",),
        "test_masks_of_two_kinds_merge",
        "",
        _merged,
    ),
    Case(
        "A04",
        "masks",
        "A mask for each head works with one sequence and is wrong in a batch.",
        (
            "A mask of three axes counts the heads of one sequence, then those of the next; `tile` counts"
            " the other way."
        ),
        "`repeat_interleave`, so that sequence i, head j stands at i·h + j.",
        (
            "line/lighthouse!77",
            "pytorch/pytorch#64706",
        ),
        "test_torch_masks_of_heads_lie_within_their_sequence",
        "mask-head-order",
        _order,
    ),
    Case(
        "A05",
        "masks",
        "Loss is NaN as soon as a batch has a short text.",
        (
            "Two masks together left a query without a key, and the softmax of nothing is 0/0. It reaches"
            " every gradient, even where the row is dropped later."
        ),
        "A query that sees nothing gets zero, and zero gradients.",
        ("pytorch/pytorch#41508",),
        "test_query_that_sees_nothing",
        "blind-nan",
        _nothing,
    ),
    Case(
        "A06",
        "masks",
        "`need_weights=True` turns the output into NaN.",
        "The path that returns weights is another computation, and one head sees nothing.",
        "Asking for weights must not change the output: compare the two.",
        ("pytorch/pytorch#160064",),
        "test_torch_head_that_sees_nothing",
        "",
        _path,
    ),
    Case(
        "A07",
        "masks",
        "There is NaN in the padding, I mask it, and the output is NaN.",
        "A hidden value is multiplied by a weight of zero, and zero times NaN is NaN.",
        "Select, do not multiply: what is hidden is not read.",
        ("pytorch/pytorch#101967",),
        "test_hidden_nan_does_not_leak",
        "hidden-leaks",
        _leak,
    ),
    Case(
        "A08",
        "masks",
        "Generation with a cache gives nonsense; the full pass is right.",
        "With fewer queries than keys the triangle can start at the first key or end at the last.",
        "State the alignment. With a cache it ends at the last key.",
        (
            "pytorch/pytorch#108108",
            "pytorch/pytorch#103082",
        ),
        "test_causal_alignment",
        "causal-top-left",
        _alignment,
    ),
    Case(
        "A09",
        "masks",
        "A padded token gets all the weight, for some inputs.",
        (
            "Hidden scores were filled with -10,000, and the visible ones were lower. In 16 bits, the "
            "lowest number plus a score overflows."
        ),
        "Hide with minus infinity, by selection, in the type of the sums.",
        (
            "huggingface/transformers#14859",
            "huggingface/transformers!17306",
        ),
        "test_hiding_is_not_a_large_negative_number",
        "mask-finite-fill",
        _fill,
    ),
    Case(
        "A10",
        "masks",
        "Attention rows do not sum to one.",
        "Weights were set to zero after the softmax, when hidden keys had taken their share.",
        "Hide before the softmax.",
        (
            "https://stats.stackexchange.com/questions/619612",
            "huggingface/pytorch-image-models!2236",
        ),
        "test_masking_comes_before_softmax",
        "mask-after-softmax",
        _after,
    ),
    Case(
        "A11",
        "masks",
        "The model is causal, except when I ask for attention scores.",
        "The mask was left to the fused kernel, and the slow path has none.",
        "One mask for all paths. Change a future token: no earlier output may change.",
        (
            "keras-team/keras#23038",
            "huggingface/transformers!30652",
        ),
        "test_every_way_to_the_output_is_masked",
        "weights-path-differs",
        _slow,
    ),
    Case(
        "A12",
        "masks",
        "A mask for each head runs without an error and hides the wrong keys.",
        "It was mapped over its last axis, which has the same length as the first.",
        "The heads' axis comes first. Test with an asymmetric mask, and with sizes that differ.",
        ("patrick-kidger/equinox!190",),
        "test_head_axis_of_a_mask_is_the_first",
        "",
        _axis,
    ),
    Case(
        "A23",
        "masks",
        "With `add_zero_attn` the model is no longer causal.",
        ("An extra key was appended at one end and the mask widened at the other, so the triangle moved by one."),
        "Keys and mask grow at the same end.",
        ("pytorch/pytorch#27461",),
        "test_torch_extra_keys_leave_the_triangle_alone",
        "causal-missing",
        _slots,
    ),
    Case(
        "A29",
        "masks",
        "Reading the prompt in chunks gives other text than reading it at once.",
        (
            "With two cached and three new tokens the mask is 3 × 5 and shifted by two; a triangle from "
            "the first key hides the prompt."
        ),
        "New token i sees key j if j ≤ past + i. Any split gives the full pass.",
        (
            "meta-llama/llama#899",
            "lucidrains/x-transformers#187",
        ),
        "test_a_chunk_sees_what_is_cached",
        "causal-top-left",
        _chunk,
    ),
    Case(
        "M14",
        "masks",
        "A mask (b, n, m) works, until the batch is as large as the number of heads.",
        ("Three axes can be one mask for each sequence or for each head, and the shape does not tell."),
        "Give the mask four axes; the package refuses what can be read in two ways.",
        (),
        "test_three_axes_that_could_be_sequences_or_heads_are_refused",
        "mask-head-order",
        _two_readings,
    ),
)
