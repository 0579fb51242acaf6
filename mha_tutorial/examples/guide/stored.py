"""Faults of stored weights."""

import numpy as np

from ...layouts import identify
from ...positions import Pairs
from ...positions.row import rotate
from .case import Case, Numbers, sines


def _turned() -> Numbers:
    W, x = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 10.0])
    return Numbers("W = [1 2], [3 4] stored (out, in), x = 1, 10", x @ W, W @ x)


def _conv1d() -> Numbers:
    c_proj, head = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 10.0])
    return Numbers("c_proj = [1 2], [3 4] stored (in, out), heads 1, 10", c_proj @ head, head @ c_proj)


def _thirds() -> Numbers:
    packed = np.arange(12)
    return Numbers("in_proj_weight with 12 rows, E = 4; rows read as W_k", packed[8:12], packed[4:8])


def _by_head() -> Numbers:
    by_head = ["Q1", "K1", "V1", "Q2", "K2", "V2"]
    return Numbers(
        "two heads of one row, stored Q1 K1 V1 Q2 K2 V2; read as the queries",
        ", ".join(by_head[:2]),
        ", ".join(by_head[::3]),
    )


def _kdim() -> Numbers:
    return Numbers("embed_dim 4, two heads, kdim 3; the scale", 3**-0.5, (4 / 2) ** -0.5)


def _pairs() -> Numbers:
    q = sines(2, 4)
    wrong, right = (rotate(q, np.arange(2), order=order)[1] for order in (Pairs.HALVES, Pairs.INTERLEAVED))
    return Numbers("a head of four features at place 1, pairs meant to be neighbours", wrong, right)


def _names() -> Numbers:
    stored = {"qkv_proj.weight": np.ones((12, 4)), "qkv_proj.bias": np.ones(12), "o_proj.weight": np.ones((4, 4))}
    found = [match.layout for match in identify(stored | {"o_proj.bias": np.ones(4)})]
    return Numbers(
        "a `qkv_proj` and an `o_proj`, stored in two orders by two libraries", found[0], " or ".join(found)
    )


CASES = (
    Case(
        "A18",
        "stored",
        "The weights load, every shape is right, the output is nonsense.",
        "Stored (out, in) and multiplied as (in, out). A square matrix allows both.",
        "Know the orientation of each library, and transpose exactly once.",
        ("rasbt/LLMs-from-scratch#857",),
        "test_stored_matrices_are_turned_once",
        "weights-transposed",
        _turned,
    ),
    Case(
        "A19",
        "stored",
        "GPT-2's weights in `nn.Linear`: queries, keys, values are right, the output is not.",
        (
            "`Conv1D` stores (in, out). `c_attn` is not square and complains; `c_proj` is square and does"
            " not. And `attn.bias` is a mask."
        ),
        "Turn both, skip the buffers.",
        (
            "AutoGPTQ/AutoGPTQ!139",
            "huggingface/transformers#4356",
            "huggingface/transformers#29725",
        ),
        "test_conv1d_stores_in_out",
        "output-transposed",
        _conv1d,
    ),
    Case(
        "A20",
        "stored",
        "A converted DETR-like model is slightly, then badly, wrong.",
        "The keys were taken from the third third of `in_proj_weight`.",
        "Rows 0:E, E:2E, 2E:3E are queries, keys, values; of the bias too.",
        (
            "huggingface/transformers#40253",
            "huggingface/transformers!40257",
        ),
        "test_thirds_of_a_packed_matrix",
        "keys-from-value-matrix",
        _thirds,
    ),
    Case(
        "A21",
        "stored",
        "BLOOM or GPT-NeoX loads and speaks nonsense; with one head it is right.",
        "The fused matrix lies head by head, and was cut in thirds.",
        "The order is part of the layout: say it.",
        (
            "vllm-project/vllm!53114",
            "phlippe/uvadlc_notebooks#110",
        ),
        "test_queries_keys_and_values_head_by_head",
        "fused-head-by-head",
        _by_head,
    ),
    Case(
        "A22",
        "stored",
        "`kdim` does not set the width of the keys in a head.",
        "`kdim` and `vdim` are the widths of the inputs; heads stay embed_dim / heads wide.",
        "Three matrices in place of one, the same heads, the same scale.",
        (
            "pytorch/pytorch#95712",
            "pytorch/pytorch#54128",
            "pytorch/pytorch#26698",
        ),
        "test_kdim_and_vdim_are_widths_of_inputs",
        "differs",
        _kdim,
    ),
    Case(
        "A30",
        "stored",
        "A converted Llama writes fluent nonsense.",
        ("Rotary pairs are neighbours in Meta's files and half a head apart in those of transformers."),
        "Reorder the rows of W_q and W_k in every head; W_v and W_o stay.",
        (
            "huggingface/transformers#25199",
            "rasbt/LLMs-from-scratch!747",
            "jzhang38/TinyLlama#24",
            "huggingface/nanotron!427",
        ),
        "test_rotary_pairs_side_by_side_or_half_a_head_apart",
        "rotary-pairs",
        _pairs,
    ),
    Case(
        "M20",
        "stored",
        "The converter blames the wrong matrix, or picks a layout without a word.",
        "Names and shapes fit more than one layout.",
        "Name all that fit, and say what tells them apart.",
        (),
        "test_a_fused_projection_whose_order_no_name_tells",
        "fused-in-blocks",
        _names,
    ),
)
