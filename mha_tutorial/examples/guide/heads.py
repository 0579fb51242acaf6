"""Faults of heads, axes and sizes."""

import numpy as np

from .case import Case, Numbers, both, sines


def _merge() -> Numbers:
    heads = np.arange(1.0, 9.0).reshape(1, 2, 2, 2)
    return Numbers(
        "head 1 gives [1 2] and [3 4], head 2 gives [5 6] and [7 8]; the first token",
        heads.reshape(1, 2, 4)[0, 0],
        heads.swapaxes(1, 2).reshape(1, 2, 4)[0, 0],
    )


def _batch() -> Numbers:
    x = np.array([[1.0, 2.0], [10.0, 20.0]])  # with scores of zero, a query gets the plain mean
    given = "two texts of two tokens, 1, 2 and 10, 20, all scores zero; the first token of the first"
    return Numbers(given, x.mean(0)[0], x.mean(1)[0])


def _divide() -> Numbers:
    return Numbers(
        "d_model = 10, four heads; features that are used",
        f"{4 * (10 // 4)} of 10, in silence",
        "an error with both numbers",
    )


def _free() -> Numbers:
    kernel = np.arange(12.0).reshape(3, 2, 2)  # (d_model, h, d)
    return Numbers(
        "a kernel (3, 2, 2) of 0 … 11, as (h·d, d_model); its first row",
        kernel.reshape(4, 3)[0],
        kernel.reshape(3, 4).T[0],
    )


def _groups() -> Numbers:
    q, k = np.zeros((1, 4, 1, 1)), np.zeros((1, 2, 1, 1))
    return both(
        "four query heads, two key-value heads with v = 1, 2",
        "groups-strided",
        q,
        k,
        np.array([1.0, 2.0]).reshape(1, 2, 1, 1),
    )


def _bias() -> Numbers:
    merged, W, b = np.array([1.0, 2.0]), np.array([3.0, 4.0]), 5.0
    parts = merged * W
    return Numbers("two ranks, one feature each: 1·3 and 2·4, output bias 5", (parts + b).sum(), parts.sum() + b)


def _view() -> Numbers:
    view = np.arange(6.0).reshape(2, 3).T
    return Numbers("the transposed view of [0 1 2] and [3 4 5]; its first row", view.T.ravel()[:2], view[0])


def _types() -> Numbers:
    scores, mask = np.zeros(3), np.array([1, 1, 0])
    added = np.exp(scores + mask)
    return Numbers(
        "three equal scores and the integers 1, 1, 0 as a mask; the third weight",
        (added / added.sum())[2],
        "an error that says `mask.astype(bool)`",
    )


def _columns() -> Numbers:
    scores = sines(2, 3)  # keys by queries
    rows, columns = (np.exp(scores) / np.exp(scores).sum(axis=axis, keepdims=True) for axis in (1, 0))
    return Numbers("two keys, three queries, tokens in columns; sums over the keys", rows.sum(0), columns.sum(0))


CASES = (
    Case(
        "A16",
        "heads",
        "All shapes fit, and tokens hold pieces of each other.",
        "Heads (b, h, n, d) were reshaped straight to (b, n, h·d).",
        "`transpose(1, 2)`, then flatten.",
        (
            "jsbaan/transformer-from-scratch!6",
            "ajhalthor/Transformer-Neural-Network#8",
            "chelsea0x3b/dfdx#158",
            "hackiey/QAnet-pytorch#2",
        ),
        "test_heads_are_merged_token_by_token",
        "merge-without-transpose",
        _merge,
    ),
    Case(
        "A17",
        "heads",
        "A text's result depends on which others are in the batch.",
        ("The data were batch first and the module tokens first. With as many texts as tokens no shape tells."),
        "Change text 2: the output of text 1 must not change.",
        (
            "pytorch/pytorch#122959",
            "aipixel/AEMatter#3",
            "NVlabs/FoundationStereo!217",
        ),
        "test_torch_sequences_do_not_mix",
        "batch-first",
        _batch,
    ),
    Case(
        "A26",
        "heads",
        "With four heads on ten features two features vanish.",
        "The width of a head was rounded down.",
        "Refuse, with both numbers, unless the head's width is given.",
        (
            "pytorch/pytorch#28719",
            "pytorch/torchtitan!4276",
            "rasbt/LLMs-from-scratch#444",
        ),
        "test_heads_that_do_not_divide_the_width",
        "",
        _divide,
    ),
    Case(
        "A27",
        "heads",
        "Gemma, Mistral-Nemo or a Keras layer loads with a shape error, or scrambled.",
        (
            "The width of a head is free: h·d need not be d_model. A kernel with its own axis for heads "
            "was reshaped without moving it."
        ),
        "Take the head's width from the configuration; move axes, then flatten.",
        (
            "keras-team/keras#21219",
            "keras-team/keras-io#1184",
            "huggingface/transformers#38373",
            "huggingface/candle#2358",
        ),
        "test_heads_need_not_share_out_the_width",
        "differs",
        _free,
    ),
    Case(
        "A28",
        "heads",
        "Grouped-query attention works in one library and not in another.",
        "Key-value heads were tiled, 0 1 0 1; neighbours share, 0 0 1 1.",
        "`repeat_interleave`: head i reads key-value head i // (h / h_kv).",
        (
            "onnx/onnx!7274",
            "apple/axlearn!842",
        ),
        "test_neighbouring_query_heads_share_a_key_value_head",
        "groups-strided",
        _groups,
    ),
    Case(
        "A32",
        "heads",
        "On two devices every output is off by the same vector.",
        "Each rank added the whole output bias before the sum over ranks.",
        "Sum first, add the bias once.",
        (
            "huggingface/text-generation-inference#1036",
            "Wenyueh/MinivLLM#80",
        ),
        "test_the_output_bias_is_added_once_by_any_number_of_ranks",
        "output-bias-repeated",
        _bias,
    ),
    Case(
        "A33",
        "heads",
        "The kernel returns garbage for a transposed tensor, and is right for its `.contiguous()`.",
        "Memory was read as if densely packed.",
        "Honour strides, or copy.",
        (
            "pytorch/pytorch#112577",
            "pytorch/pytorch!187506",
        ),
        "test_views_give_what_their_copies_give",
        "dense-read",
        _view,
    ),
    Case(
        "A34",
        "heads",
        "I passed the tokenizer's `attention_mask`, and padding is attended to.",
        "It holds integers, 1 and 0, and was added or refused deep inside.",
        "Refuse integers, and say how to convert.",
        (
            "seal-rg/recurrent-pretraining#23",
            "pytorch/pytorch#99012",
            "pytorch/pytorch#111276",
        ),
        "test_types_that_do_not_belong_together_are_refused",
        "mask-of-integers",
        _types,
    ),
    Case(
        "A35",
        "heads",
        "The formula in the text and the code do not agree.",
        "The text has W x, tokens in columns, with the softmax of rows, Q Kᵀ.",
        ("In columns the softmax runs down each column of Kᵀ Q. One convention is the other's transpose."),
        (
            "d2l-ai/d2l-en#2056",
            "pytorch/pytorch#60445",
            "SamLynnEvans/Transformer#4",
        ),
        "test_heads_side_by_side_are_heads_one_by_one_and_rows_are_transposed_columns",
        "softmax-over-queries",
        _columns,
    ),
)
