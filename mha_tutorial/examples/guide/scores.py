"""Faults of the softmax, of scores and of their scale."""

import numpy as np

from .case import Case, Numbers, both, imitated, sines

WIDE = "two heads of four features, `sines` times two"


def _tokens(d_v: int = 4) -> tuple[np.ndarray, ...]:
    return 2 * sines(1, 2, 2, 4), 2 * sines(1, 2, 3, 4, a=0.9), sines(1, 2, 3, d_v, a=2.1)


def _softmax() -> Numbers:
    q, k, v = sines(1, 1, 2, 2), sines(1, 1, 3, 2, a=0.9), np.ones((1, 1, 3, 1))
    return both("two queries, three keys, all values one", "softmax-over-queries", q, k, v)


def _scale() -> Numbers:
    numbers = both(f"{WIDE}; the first query", "scale-d-model", *_tokens())
    return numbers._replace(wrong=numbers.wrong[0, 0, 0], right=numbers.right[0, 0, 0])


def _twice() -> Numbers:
    numbers = both(f"{WIDE}; the first query", "scale-twice", *_tokens())
    return numbers._replace(wrong=numbers.wrong[0, 0, 0], right=numbers.right[0, 0, 0])


def _dropout() -> Numbers:
    weights, kept = np.array([0.5, 0.3, 0.2]), np.array([1, 0, 1])
    return Numbers(
        "weights 0.5, 0.3, 0.2, the second dropped with p = 0.2; their sum",
        (weights * kept / 0.8).sum(),
        weights.sum(),
    )


def _values() -> Numbers:
    numbers = both("keys of width 4, values of width 7; the first query", "scale-values", *_tokens(7))
    return numbers._replace(wrong=numbers.wrong[0, 0, 0], right=numbers.right[0, 0, 0])


def _own_scale() -> Numbers:
    q, k, v = _tokens()
    wrong, right = (imitated("", q, k, v, scale=scale)[0, 0, 0] for scale in (None, 0.25))
    return Numbers("a kernel with scale 0.25; the first head, from the weights that are shown", wrong, right)


CASES = (
    Case(
        "A13",
        "scores",
        "It trains, but worse than it should; nothing looks wrong.",
        ("The softmax ran over the queries. Where there are as many queries as keys, no shape complains."),
        "Each query's weights sum to one. Test with n ≠ m.",
        ("labmlai/annotated_deep_learning_paper_implementations#146",),
        "test_softmax_runs_over_the_keys",
        "softmax-over-queries",
        _softmax,
    ),
    Case(
        "A14",
        "scores",
        "Attention is too even, and more so with more heads.",
        "Scores were divided by the root of the model's width, not of one head's.",
        "The scale is 1/√d_k of one head.",
        (
            "omihub777/ViT-CIFAR!11",
            "juho-lee/set_transformer#18",
            "mlc-ai/mlc-llm!3426",
        ),
        "test_scale_is_the_root_of_one_heads_width",
        "scale-d-model",
        _scale,
    ),
    Case(
        "A15",
        "scores",
        "After moving to the fused kernel, attention is nearly uniform.",
        "Queries were scaled already, and the kernel scales too.",
        "Scale once: `scale=1.0` for scaled queries.",
        (
            "huggingface/transformers#38277",
            "huggingface/transformers!38290",
        ),
        "test_queries_scaled_already_take_the_unscaled_score",
        "scale-twice",
        _twice,
    ),
    Case(
        "A24",
        "scores",
        "Returned attention weights do not sum to one in training.",
        "They are returned after dropout, which removes some and enlarges the others.",
        "Return the softmax's weights; use the dropped ones in the sum alone.",
        (
            "pytorch/pytorch#42929",
            "pytorch/pytorch#27968",
            "jessevig/bertviz#54",
        ),
        "test_torch_dropout_comes_after_the_weights_that_are_shown",
        "weights-after-dropout",
        _dropout,
    ),
    Case(
        "A25",
        "scores",
        "It fails, or is wrong, when values are wider than keys.",
        "The scale, or a buffer, has the width of the values.",
        "d_k in the scale, d_v in the output.",
        (
            "lucidrains/flash-attention-jax!15",
            "jadore801120/attention-is-all-you-need-pytorch#211",
        ),
        "test_values_may_be_wider_than_keys",
        "scale-values",
        _values,
    ),
    Case(
        "M05",
        "scores",
        "The attention map does not fit the output.",
        ("The kernel has a scale of its own, and the weights for display were computed with the usual one."),
        "Weights that are shown times values are the heads.",
        ("google/gemma_pytorch#71",),
        "test_torch_scale_of_a_kernel_is_that_of_its_trace",
        "",
        _own_scale,
    ),
)
