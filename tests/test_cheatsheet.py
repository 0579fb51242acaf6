"""What stands on the cheatsheet is run: its code, its masks, its layouts and its formulas."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from einops import einsum, rearrange
from torch.nn.functional import scaled_dot_product_attention

from mha_tutorial import Causal, Padding, RowWeights
from mha_tutorial.analysis import counting
from mha_tutorial.layouts import LAYOUTS
from mha_tutorial.reference import row
from tests.helpers import assert_close

SHEET = (Path(__file__).parents[1] / "book/reference/cheatsheet.md").read_text(encoding="utf-8")
B, N, M, D_MODEL, H, H_KV, D_K, D_V = 2, 5, 7, 12, 6, 3, 4, 5
LENGTHS = torch.tensor([7, 3])


def table(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in SHEET.split(f"## {section}\n")[1].split("\n## ")[0].splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def code(cell: str) -> str:
    """What stands between the first backticks of a cell."""
    return re.search(r"`([^`]+)`", cell)[1]


def test_cheatsheet_steps_are_the_layer(rng):
    weights = RowWeights.random(rng, d_model=D_MODEL, h=H, d_k=D_K, d_v=D_V, bias=False)
    x, visible = rng.normal(size=(B, N, D_MODEL)), np.tril(np.ones((N, N), bool))
    flat = {name: rearrange(getattr(weights, name), "h m d -> m (h d)") for name in ("W_q", "W_k", "W_v")}
    flat["W_o"] = rearrange(weights.W_o, "h d m -> (h d) m")
    names = {"einsum": einsum, "rearrange": rearrange, "inf": np.inf, "where": np.where, "softmax": softmax}
    sizes = {"b": B, "n": N, "m": N, "h": H, "d_k": D_K, "d_v": D_V, "d_model": D_MODEL, "visible": visible}
    state = names | sizes | {"x": x} | flat
    for step, line, shape in table("Shapes"):
        for letter in "kvq" if step in ("project", "split") else "q":
            exec(re.sub(r"\bq\b", letter, code(line)).replace("W_q", f"W_{letter}"), state)
        found = state[code(line)[0]]
        assert found.shape == eval(code(shape).replace("·", "*"), dict(sizes)), step
    assert_close(state["y"], row.multi_head(x, x, x, weights, visible=visible).output)


def softmax(s, axis):
    e = np.exp(s - s.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def test_cheatsheet_head_that_shares_reads_its_group():
    expression = re.search(r"key-value head `([^`]+)`", SHEET)[1]
    found = [eval(expression, {"i": i, "h": H, "h_kv": H_KV}) for i in range(H)]
    weights = RowWeights.random(np.random.default_rng(0), d_model=D_MODEL, h=H, h_kv=H_KV)
    assert found == weights.repeat_kv(np.arange(H_KV)[:, None, None]).ravel().tolist()


def masks() -> dict[str, tuple[str, str, str]]:
    return {code(where) if "`" in where else where: tuple(cells) for where, *cells in table("Masks")}


def run(cell: str):
    """A mask of the table, made."""

    def ones(*shape):
        return torch.ones(*shape, dtype=torch.bool)

    names = {"ones": ones, "arange": torch.arange, "n": N, "m": M, "lengths": LENGTHS}
    return eval(code(cell), names | {"Causal": Causal, "Padding": Padding})


@pytest.mark.parametrize("kind", ["causal", "padding"])
def test_cheatsheet_masks_hide_the_same_in_every_library(kind):
    which = 1 if kind == "causal" else 2
    rows = masks()
    ours = torch.as_tensor(run(rows["this package"][which]).rows(N, M, (B,))).expand(B, N, M)
    assert 0 < ours.float().mean() < 1
    q, k, v = (torch.randn(B, H, length, D_K, generator=torch.Generator().manual_seed(0)) for length in (N, M, M))
    expected = scaled_dot_product_attention(q, k, v, attn_mask=ours[:, None])
    sdpa = run(rows["F.scaled_dot_product_attention"][which])
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, attn_mask=sdpa), expected)

    ignored = run(rows["nn.MultiheadAttention"][which])
    module = torch.nn.MultiheadAttention(D_MODEL, H, batch_first=True)
    x, y = torch.randn(B, N, D_MODEL), torch.randn(B, M, D_MODEL)
    name = "attn_mask" if kind == "causal" else "key_padding_mask"
    _, attention = module(x, y, y, **{name: ignored}, average_attn_weights=False)
    assert ((attention > 0) == ours[:, None].expand(B, H, N, M)).all()

    others = [row for where, row in rows.items() if where.startswith("Keras")]
    if kind == "padding":
        others.append(rows["Hugging Face"])
    for cells in others:
        found = run(cells[which]).bool()
        found = found[:, None] if found.shape == (B, M) else found
        assert torch.equal(found.expand(B, N, M), ours)


def test_cheatsheet_says_which_value_may_attend():
    said = {where: cells[0].strip("`") for where, cells in masks().items()}
    assert said.pop("nn.MultiheadAttention") == "False"
    assert said.pop("Hugging Face") == "1"
    assert set(said.values()) == {"True"}


def test_cheatsheet_layouts_are_those_of_the_table():
    tensors = [tensor for layout in LAYOUTS.values() for tensor in layout.tensors]
    stored = {(tensor.key, tensor.pattern.split(" -> ")[0]) for tensor in tensors}
    assert {(code(key), code(axes)) for _, key, axes in table("Layouts")} <= stored


def test_cheatsheet_formulas_are_those_that_count():
    sizes = {"d_model": D_MODEL, "h": H, "h_kv": H_KV, "d_k": D_K, "d_v": D_V, "n": N, "m": M}
    formulas = [eval(code(cell).replace("·", "*"), dict(sizes)) for _, cell in table("Costs of one layer")]
    bare = counting.shape_only_weights(D_MODEL, H, H_KV, D_K, D_V, bias=False)
    biased = counting.shape_only_weights(D_MODEL, H, H_KV, D_K, D_V)
    costs = counting.multiply_adds(bare, N, M)
    square = costs.scores + costs.averages
    assert formulas == [
        counting.parameters(bare),
        counting.parameters(biased) - counting.parameters(bare),
        costs.total - square,
        square,
        costs.scores // D_K,
        counting.cache_bytes(bare, M, np.float16) // 2,
    ]
