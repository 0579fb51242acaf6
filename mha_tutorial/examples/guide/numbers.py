"""Faults of numbers at their limits."""

import numpy as np

from .case import Case, Numbers


def _softmax(scores: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        exponentials = np.exp(scores - scores.max())
        return exponentials / exponentials.sum()


def _rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """To so many binary digits, as bfloat16 has eight."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent)


def _block() -> Numbers:
    scores, values = np.array([-2000.0, -2001.0]), np.array([1.0, 3.0])
    exponentials = np.exp(scores - 0)  # the running maximum started at zero, in a block that is hidden
    wrong = exponentials @ values / max(exponentials.sum(), 1)
    return Numbers("a hidden block, then scores -2000, -2001; v = 1, 3", wrong, _softmax(scores) @ values)


def _nan_query() -> Numbers:
    right = _softmax(np.full(3, np.nan)) @ np.ones(3)
    return Numbers("a query of NaN, three keys, all values one", np.nan_to_num(right), right)


def _negative() -> Numbers:
    products, visible = np.array([2.0, 4.0]), np.array([True, False])
    with np.errstate(invalid="ignore"):
        early, late = np.where(visible, products, -np.inf) * -0.5, np.where(visible, products * -0.5, -np.inf)
    return Numbers("products 2, 4, scale -0.5, the second key hidden; weights", _softmax(early), _softmax(late))


def _alibi() -> Numbers:
    bias, odd = 0.5 * np.arange(300), np.arange(300) % 2
    return Numbers(
        "300 equal scores, a bias of half the place; the share of odd places",
        _softmax(_rounded(bias, 8)) @ odd,
        _softmax(bias) @ odd,
    )


def _near() -> Numbers:
    q, k = np.full(64, 8.0), np.full((2, 64), 8.0)
    k[1, 0] = 8.25
    products = k @ q
    rounded = products.astype(np.float16).astype(np.float64) / 8
    return Numbers(
        "q and k of 64 eights, one of them 8.25, in float16; the second weight",
        _softmax(rounded)[1],
        _softmax(products / 8)[1],
    )


def _lost() -> Numbers:
    score = np.float32(-1e9)
    log_sum = score + np.float32(np.log(4))  # a number of this size has no room for 1.39
    return Numbers(
        "four scores of -1e9 in float32; a weight as exp(score - log_sum)",
        np.exp(score - log_sum),
        _softmax(np.full(4, -1e9))[0],
    )


def _overflow() -> Numbers:
    with np.errstate(all="ignore"):
        scores = np.array([1.0, np.float32(3e38) * np.float32(2)])
        added = scores + np.array([0, -np.inf])
    return Numbers(
        "scores 1 and, in float32, 2 · 3e38, which is hidden; weights",
        _softmax(added),
        _softmax(np.where([True, False], scores, -np.inf)),
    )


def _leader() -> Numbers:
    scores = np.array([1e6 + 0.06, 0.0])
    rounded = np.float32(scores[0])
    return Numbers(
        "one score of 1,000,000.06 leads, in float32; its weight as exp(score - log_sum)",
        np.exp(scores[0] - float(rounded)),
        _softmax(scores)[0],
    )


def _folded() -> Numbers:
    values = np.array([1e6 + 0.25, 1e6 + 0.5, 1e6 + 0.75], dtype=np.float32)
    weights = np.array([0.3, 0.3, 0.4], dtype=np.float32)
    late = (weights * values).sum(dtype=np.float32) - np.float32(1e6)
    return Numbers(
        "values near 1e6 and a bias of -1e6, in float32; the average",
        late,
        (weights * (values - np.float32(1e6))).sum(),
    )


CASES = (
    Case(
        "A31",
        "numbers",
        "Zeros, or NaN, where the first block of keys is masked.",
        (
            "The running maximum of a blockwise softmax started at 0, and very low scores underflowed; at"
            " minus infinity it gives inf - inf."
        ),
        "Keep the true maximum, and guard the subtraction alone.",
        (
            "Dao-AILab/flash-attention#2082",
            "pytorch/pytorch!130014",
            "flashinfer-ai/flashinfer#4267",
        ),
        "test_torch_a_block_that_is_hidden_counts_for_nothing",
        "block-hidden",
        _block,
    ),
    Case(
        "M01",
        "numbers",
        "NaN disappears inside the layer, and the loss looks fine.",
        "What guards hidden NaN also swallowed a NaN that every query sees.",
        "NaN that is seen is shown; only what is hidden is not read.",
        ("pytorch/pytorch#141128",),
        "test_torch_query_that_is_not_finite",
        "",
        _nan_query,
    ),
    Case(
        "M02",
        "numbers",
        "A negative scale makes all but the last row NaN.",
        "Scores were hidden first and scaled afterwards: minus infinity times -0.5.",
        "Scale, then hide.",
        ("NVIDIA/cudnn-frontend!804",),
        "test_torch_scale_that_is_not_positive",
        "",
        _negative,
    ),
    Case(
        "M03",
        "numbers",
        "ALiBi in bfloat16 is off for long texts.",
        "The bias was rounded to the type of the queries, which counts in ones and twos beyond 256.",
        "A bias keeps its own precision.",
        ("Dao-AILab/flash-attention!846",),
        "test_torch_bias_keeps_its_precision",
        "",
        _alibi,
    ),
    Case(
        "M04",
        "numbers",
        "In half precision similar keys get exactly the same weight.",
        "Scores were rounded to 16 bits, or overflowed at 65,504.",
        "Scores, softmax and sums have 32 bits.",
        (
            "huggingface/transformers!33317",
            "huggingface/transformers#35151",
        ),
        "test_torch_scores_are_kept_in_32_bits",
        "sixteen-bit-scores",
        _near,
    ),
    Case(
        "M07",
        "numbers",
        "The forward pass is right and the gradient of the values is m times too large.",
        "The logarithm of the sum was lost beside a score of -1e9.",
        "Subtract the maximum first, and add logarithms of what is left.",
        (
            "Dao-AILab/flash-attention#1012",
            "pytorch/pytorch#110213",
        ),
        "test_torch_row_of_one_large_number",
        "",
        _lost,
    ),
    Case(
        "M10",
        "numbers",
        "A finite, hidden key makes the output NaN.",
        "Its score overflowed to infinity, and a mask of minus infinity was added.",
        "Select, do not add.",
        (),
        "test_torch_hidden_key_whose_score_overflows",
        "hidden-leaks",
        _overflow,
    ),
    Case(
        "M13",
        "numbers",
        "With very large scores gradients are wrong, and nothing is NaN.",
        "Weights were recomputed from rounded log-sums: they are not zeros and ones any more.",
        "Where one key leads, its weight is one exactly.",
        (),
        "test_where_one_key_leads_every_gradient_is_that_of_the_plain_layer",
        "",
        _leader,
    ),
    Case(
        "M15",
        "numbers",
        "An optimised layer loses digits for inputs with a large offset.",
        "The value bias was moved behind the average, and no longer cancelled the offset in time.",
        "Fold a bias only where nothing cancels.",
        (),
        "test_biases_that_cancel_what_the_tokens_hold_are_not_folded",
        "",
        _folded,
    ),
)
