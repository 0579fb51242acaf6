"""The layouts: load undoes dump, outputs are PyTorch's, and what does not fit is named with both shapes."""

import re
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_tutorial import ColumnWeights, layouts
from mha_tutorial.layouts import LAYOUTS, Layout, Stored, dump, identify, load
from mha_tutorial.layouts.patterns import solve, told
from mha_tutorial.reference import row
from mha_tutorial.torch import MultiHeadAttention
from tests.helpers import assert_close, rotated
from tests.layout_helpers import SIZES, assert_same, draw, randomised

each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
HEADS_HAVE_AN_AXIS = {"keras", "flax", "transformer-lens", "transformer-lens-groups", "columns"}


def always_biased(layout):
    """Whether the library has no such layer without biases."""
    return all(tensor.together is None for tensor in layout.tensors)


# --- there and back ---------------------------------------------------------------------------------------------


@pytest.mark.no_cover
@each_layout
@given(
    seed=st.integers(0, 2**32 - 1),
    h_kv=st.integers(1, 4),
    group=st.integers(1, 3),
    sizes=st.fixed_dictionaries(
        {letter: st.integers(1, 9) for letter in SIZES if letter[0] == "d" or letter == "half"}
    ),
    bias=st.booleans(),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    prefix=st.sampled_from(["", "h.0.attn.", "mha/"]),
)
@settings(max_examples=25, deadline=None)
def test_load_undoes_dump_and_dump_undoes_load(layout, seed, h_kv, group, sizes, bias, dtype, prefix):
    h, bias = h_kv * group, bias or always_biased(layout)
    weights = draw(np.random.default_rng(seed), layout, bias, dtype, **sizes, h=h, h_kv=h_kv)
    stored = dump(weights, layout, prefix)
    heads = None if layout.name in HEADS_HAVE_AN_AXIS else h
    back = load(stored, layout.name, heads, prefix=prefix)
    assert type(back) is ColumnWeights
    assert_same(back.arrays(), weights.arrays())
    assert_same(dump(back.T, layout, prefix), stored)


@each_layout
def test_keys_come_in_the_order_of_the_table_below_the_prefix(layout, rng):
    stored = dump(draw(rng, layout), layout, "layer.")
    assert list(stored) == ["layer." + tensor.key for tensor in layout.tensors]
    assert all(array.flags["C_CONTIGUOUS"] for array in stored.values())


@each_layout
def test_nothing_shares_memory_and_nothing_is_changed(layout, rng):
    weights = draw(rng, layout)
    stored = dump(weights, layout)
    assert not any(np.shares_memory(a, b) for a in weights.arrays().values() for b in stored.values())
    before = {key: array.copy() for key, array in stored.items()}
    for array in stored.values():
        array.flags.writeable = False
    loaded = load(stored, layout, weights.h)
    assert not any(np.shares_memory(a, b) for a in loaded.arrays().values() for b in stored.values())
    for array in loaded.arrays().values():
        array[...] = 0
    assert_same(stored, before)


@pytest.mark.no_cover
@pytest.mark.parametrize("source", LAYOUTS)
def test_every_layout_converts_into_every_other(source, rng):
    weights = ColumnWeights.random(rng, d_model=30, h=3)  # sizes that every library allows
    stored = dump(weights, source, "a.")
    for target in LAYOUTS:
        moved = layouts.convert(stored, source, target, h=3, prefix="a.", to_prefix="b.")
        assert_same(moved, dump(weights, target, "b."))


@each_layout
def test_the_table_holds_every_array_once(layout):
    held = [name for tensor in layout.tensors for name in tensor.arrays]
    assert sorted(held) == sorted(["W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o"])
    assert LAYOUTS[layout.name] is layout
    for tensor in layout.tensors:
        before, after = (sorted(re.findall(r"\w+", side)) for side in tensor.pattern.split(" -> "))
        assert before == after, tensor.pattern


def test_a_layout_of_your_own(rng):
    mine = Layout(
        "mine",
        "somebody's",
        (
            Stored("qkv", "W_q W_k W_v", "(d h qkv) d_model -> qkv h d d_model"),
            Stored("out", "W_o", "(d h) d_model -> h d_model d"),
        ),
    )
    weights = ColumnWeights.random(rng, d_model=11, h=3, d_k=5, d_v=5, bias=False)
    stored = dump(weights, mine)
    assert stored["qkv"][(4 * 3 + 2) * 3 + 1, 7] == weights.W_k[2, 4, 7]  # feature 4, head 2, keys
    assert_same(load(stored, mine, h=3).arrays(), weights.arrays())


PLAIN = {tensor.key: tensor for tensor in LAYOUTS["linear"].tensors}


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (("qkv", "W_q W_k W_v", "(h qkv d) m -> h qkv d m"), "must lead to 'qkv h d_k d_query' or the like"),
        (("q", "W_q", "(h d) m -> qkv h d"), "must have the same letters on both sides"),
        (("q", "W_q", "(h d) m -> h d"), "must have the same letters on both sides"),
        (("q", "W_q", "(h d) (h m) -> h d m"), "must have the same letters on both sides, each of them once"),
        (("q", "W_q", "(h h) m -> h h m"), "must have the same letters on both sides, each of them once"),
        (("q", "W_q", "(h d) m -> h (d m)"), "must lead to 'h d_k d_query' or the like"),
        (("q", "W_q", "(h d) m -> d h m"), "must lead to 'h d_k d_query' or the like"),
        (("q", "W_q", "(h_kv d) m -> h_kv d m"), "must lead to 'h d_k d_query' or the like"),
        (("q", "W_q", "(g d) m -> g d m"), "must lead to 'h d_k d_query' or the like"),
        (("q", "W_q", "(h qkv) m -> h qkv m"), "must lead to 'h d_k d_query' or the like"),
        (("k", "W_k", "(g d) m -> g d m"), "must lead to 'h_kv d_k d_key' or the like"),
        (("b", "b_o", "h -> h"), "must lead to 'd_model' or the like"),
        (("b", "b_q", "(h d) m -> h d m"), "must lead to 'h d_k' or the like"),
        (("q", "W_Q", "(h d) m -> h d m"), "must hold one or three of W_q, W_k, W_v, W_o, b_q, b_k, b_v, b_o"),
        (("kv", "W_k W_v", "(two h d) m -> two h d m"), "must hold one or three of W_q"),
        (("q", "W_q", "... (h d) m -> ... h d m"), "must have letters and flat brackets on both sides of ' -> '"),
        (("q", "W_q", "(h d m -> h d m"), "must have letters and flat brackets"),
        (("q", "W_q", "((h d) m) -> h d m"), "must have letters and flat brackets"),
        (("q", "W_q", "(h d) m 1 -> h d m"), "must have letters and flat brackets"),
        (("q", "W_q", "(h d) m->h d m"), "must have letters and flat brackets"),
        (("q", "W_q", "h d m -> (h d) m -> h d m"), "must have letters and flat brackets"),
    ],
)
def test_a_wrong_pattern_is_refused_at_once(tensor, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        Layout("mine", "somebody's", (Stored(*tensor),))
    assert str(refusal.value).startswith(f"layout 'mine': {tensor[0]} ")


def test_a_layout_has_every_matrix_once():
    def refused(message, *tensors):
        with pytest.raises(ValueError, match=re.escape(f"layout 'mine': {message}")):
            Layout("mine", "somebody's", tensors)

    q, k, v, o = (PLAIN[f"{name}.weight"] for name in ("queries", "keys", "values", "output"))
    refused("two tensors have the key keys.weight", q, k, v._replace(key=k.key), o)
    refused("two tensors have the array W_k", q, k, v._replace(holds="W_k"), o)
    refused("no tensor that is always there holds W_v, W_o", q, k)
    refused("no tensor that is always there holds W_v", q, k, v._replace(together="values"), o)


def test_heads_are_looked_for_in_every_tensor(rng):
    q, k, v, o = (PLAIN[f"{name}.weight"] for name in ("queries", "keys", "values", "output"))
    mine = Layout("mine", "somebody's", (Stored("b", "b_o", "d_model -> d_model"), o, v, k, q))
    stored = dump(draw(rng, mine), mine)
    refused(stored, mine, "heads are stored side by side, and shapes do not tell how many there are", h=None)
    assert load(stored, mine, h=6).h_kv == 2


def test_lengths_that_only_their_product_tells_are_not_guessed(rng):
    q, k, v, o = (PLAIN[f"{name}.weight"] for name in ("queries", "keys", "values", "output"))
    pairs = q._replace(pattern="(h i j) d_query -> h (i j) d_query")
    mine = Layout("mine", "somebody's", (pairs, k, v, o))
    weights = ColumnWeights.random(rng, d_model=12, h=2, bias=False)
    dumping_refused(weights, mine, "shapes tell i·j and none of the factors")
    stored = dump(weights, "linear")
    refused(stored, mine, "shapes tell i·j and none of the factors", h=2)
    apart = k._replace(pattern="(h_kv d) d_key -> h_kv d d_key")
    mine = Layout("mine", "somebody's", (q, apart, v._replace(pattern="(h_kv e) d_value -> h_kv e d_value"), o))
    refused(stored, mine, "heads are stored side by side, and shapes do not tell how many there are; pass h_kv")
    assert load(stored, mine, h=2, h_kv=2).h_kv == 2


# --- what the patterns say ----------------------------------------------------------------------------------------


def each_row(weights):
    """Every projection p, head h and feature i of a layer, with its row of the matrix and its bias."""
    for p, name in enumerate("qkv"):
        W, b = weights.arrays()[f"W_{name}"], weights.arrays()[f"b_{name}"]
        for h, i in np.ndindex(b.shape):
            yield p, h, i, W[h, i], b[h, i]


@pytest.mark.equation("eq-layout-blocks")
def test_rows_of_a_fused_matrix_in_blocks(rng):
    weights = ColumnWeights.random(rng, d_model=35, h=5)
    upright, lying = dump(weights, "torch"), dump(weights, "gpt2")
    for p, h, i, row_of_W, bias in each_row(weights):
        r = (p * 5 + h) * 7 + i
        np.testing.assert_array_equal(upright["in_proj_weight"][r], row_of_W)
        np.testing.assert_array_equal(lying["c_attn.weight"][:, r], row_of_W)
        assert upright["in_proj_bias"][r] == lying["c_attn.bias"][r] == bias


@pytest.mark.equation("eq-layout-by-head")
def test_rows_of_a_fused_matrix_head_by_head(rng):
    weights = ColumnWeights.random(rng, d_model=35, h=5)
    neox, uva = dump(weights, "neox"), dump(weights, "uva")
    for p, h, i, row_of_W, bias in each_row(weights):
        r = (3 * h + p) * 7 + i
        np.testing.assert_array_equal(neox["query_key_value.weight"][r], row_of_W)
        np.testing.assert_array_equal(uva["qkv_proj.weight"][r], row_of_W)
        assert neox["query_key_value.bias"][r] == uva["qkv_proj.bias"][r] == bias


@pytest.mark.equation("eq-rotary-order")
def test_rows_of_a_rotary_head(rng):
    """Row i of the package, and of transformers, is row 2i of Meta's; row d_k/2 + i is row 2i + 1."""
    weights = ColumnWeights.random(rng, d_model=11, h=6, h_kv=2, d_k=10, d_v=10)
    stored = dump(weights, "llama-pairs")
    for key, W, b in (("wq", weights.W_q, weights.b_q), ("wk", weights.W_k, weights.b_k)):
        rows = stored[f"{key}.weight"].reshape(len(W), 10, 11)
        biases = stored[f"{key}.bias"].reshape(len(W), 10)
        for i in range(5):
            np.testing.assert_array_equal(rows[:, [2 * i, 2 * i + 1]], W[:, [i, 5 + i]])
            np.testing.assert_array_equal(biases[:, [2 * i, 2 * i + 1]], b[:, [i, 5 + i]])
    np.testing.assert_array_equal(stored["wv.weight"], weights.W_v.reshape(20, 11))


def test_the_inverse_of_the_inverse():
    for layout in LAYOUTS.values():
        for tensor in layout.tensors:
            assert layouts.inverse(layouts.inverse(tensor.pattern)) == tensor.pattern


def test_a_product_gives_way_to_its_factors():
    """The matrix tells h·d, and the bias after it tells h and d; both must agree."""
    sizes = solve("example:", {"matrix": ("(h d) m", (15, 11)), "bias": ("h d", (3, 5))})
    assert {name: size.length for name, size in told(["h", "d", "m"], sizes).items()} == {"h": 3, "d": 5, "m": 11}
    message = "example: matrix must be '(h d) m' = (20, 11) with m=11 (matrix), h=4 (bias), d=5 (bias), got shape"
    with pytest.raises(ValueError, match=re.escape(message)):
        solve("example:", {"matrix": ("(h d) m", (15, 11)), "bias": ("h d", (4, 5))})


def test_the_atlas_has_a_line_for_every_tensor():
    entries = layouts.atlas()
    assert [(entry.layout, entry.tensor) for entry in entries] == [
        (layout.name, tensor.key) for layout in LAYOUTS.values() for tensor in layout.tensors
    ]
    by_tensor = {(entry.layout, entry.tensor): entry for entry in entries}
    assert by_tensor["gpt2", "c_attn.weight"].shape == "d_model × q, k, v › heads › features"
    assert by_tensor["llama-pairs", "wk.weight"].shape == "key-value heads › pairs › two × d_model"
    products = {
        ("torch", "in_proj_weight"): "W x",
        ("torch", "out_proj.weight"): "W x",
        ("gpt2", "c_attn.weight"): "x @ W",
        ("gpt2", "c_proj.weight"): "x @ W",
        ("keras", "attention_output/kernel"): "x @ W",
        ("transformer-lens", "W_Q"): "x @ W",
        ("columns", "W_q"): "W x",
        ("llama-pairs", "wq.weight"): "W x",
        ("bert", "self.query.bias"): "+ b",
    }
    assert {name: by_tensor[name].product for name in products} == products


# --- PyTorch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("layout", "widths"), [("torch", {}), ("torch-separate", {"kdim": 11, "vdim": 13})], ids=["packed", "separate"]
)
def test_output_is_that_of_multihead_attention(layout, widths, bias, rng):
    module = randomised(
        torch.nn.MultiheadAttention(15, 3, bias=bias, batch_first=True, dtype=torch.float64, **widths)
    )
    q, k, v = (rng.normal(size=(2, n, w)) for n, w in ((5, 15), (7, module.kdim), (7, module.vdim)))
    expected, attention = module(*map(torch.from_numpy, (q, k, v)), average_attn_weights=False)
    weights = load(module, layout, h=3)
    trace = row.multi_head(q, k, v, weights.T)
    assert_close(trace.attention, attention.detach().numpy())
    assert_close(trace.output, expected.detach().numpy())
    back = {key: torch.from_numpy(array) for key, array in dump(weights, layout).items()}
    torch.testing.assert_close(back, dict(module.state_dict()), rtol=0, atol=0)


class Separate(torch.nn.Module):
    """Multi-head attention of four `nn.Linear`, as many write it; `names` are theirs."""

    def __init__(self, names, widths, d_model, h, h_kv, d_k, d_v):
        super().__init__()
        self.names, self.h, self.h_kv = names, h, h_kv
        inner = (h * d_k, h_kv * d_k, h_kv * d_v)
        for name, wide, out in zip(names, (*widths, h * d_v), (*inner, d_model), strict=True):
            setattr(self, name, torch.nn.Linear(wide, out, dtype=torch.float64))

    def forward(self, q, k, v):
        to_q, to_k, to_v, to_o = (getattr(self, name) for name in self.names)

        def split(x, heads):
            return x.unflatten(-1, (heads, -1)).transpose(-3, -2)

        queries, keys, values = split(to_q(q), self.h), split(to_k(k), self.h_kv), split(to_v(v), self.h_kv)
        heads = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
        return to_o(heads.transpose(-3, -2).flatten(-2))


SEPARATE = {
    "linear": (["queries", "keys", "values", "output"], (17, 19, 23), 29, 6, 2, 11, 13),
    "d2l": (["W_q", "W_k", "W_v", "W_o"], (17, 19, 23), 21, 3, 3, 7, 7),
}


@pytest.mark.parametrize("layout", SEPARATE)
def test_output_is_that_of_separate_linears(layout, rng):
    module = randomised(Separate(*SEPARATE[layout]))
    q, k, v = (rng.normal(size=(2, n, w)) for n, w in ((5, 17), (7, 19), (7, 23)))
    expected = module(*map(torch.from_numpy, (q, k, v))).detach().numpy()
    weights = load(module, layout, h=module.h)
    assert weights.h_kv == module.h_kv
    assert_close(row.multi_head(q, k, v, weights.T).output, expected)


OWN = {"d_model": 29, "h": 6, "h_kv": 2, "d_k": 11, "d_v": 13, "widths": (17, 19, 23)}


@pytest.mark.parametrize("without", ["", "k", "qkvo"])
def test_the_state_of_our_own_torch_layer_is_a_layout(without, rng):
    """Any biases may be missing; reading the state is what `to_weights` does, and writing it `from_weights`."""
    module = randomised(MultiHeadAttention(**OWN, dtype=torch.float64))
    for name in without:
        getattr(module, f"W_{name}").register_parameter("bias", None)
    (match,) = identify(module)
    assert (match.layout, match.prefix, match.h, match.alike, match.surplus) == ("mha-tutorial", "", None, (), ())
    assert match.parameters == sum(parameter.numel() for parameter in module.parameters())
    weights = load(module, "mha-tutorial", h=6)
    assert_same(weights.T.arrays(), module.to_weights().arrays())
    again = MultiHeadAttention.from_weights(weights)
    again.load_state_dict({key: torch.from_numpy(array) for key, array in dump(weights, "mha-tutorial").items()})
    q, k, v = (torch.from_numpy(rng.normal(size=(2, n, w))) for n, w in ((5, 17), (7, 19), (7, 23)))
    output = module(q, k, v).detach().numpy()
    assert_close(row.multi_head(q.numpy(), k.numpy(), v.numpy(), weights.T).output, output)
    assert_close(again(q, k, v).detach().numpy(), output)


def test_our_own_torch_layer_is_named_first():
    """Where its heads share out the width, its names and shapes are those of Dive into Deep Learning too."""
    layer = MultiHeadAttention(d_model=12, h=3)
    assert [match.layout for match in identify(layer)] == ["mha-tutorial", "d2l"]
    assert_same(load(layer, "mha-tutorial", h=3).arrays(), load(layer, "d2l", h=3).arrays())


def test_no_layout_holds_extra_keys():
    layer = MultiHeadAttention(d_model=12, h=3, extra_keys=(torch.zeros(3, 1, 4), torch.zeros(3, 1, 4)))
    names = "extra_keys.0.keys, of shape (3, 1, 4), extra_keys.0.values, of shape (3, 1, 4)"
    ignore = ["extra_keys.0.keys", "extra_keys.0.values"]
    message = (
        f"does not know {names}; if they are no part of the layer, leave them out or pass ignore={ignore}, and if "
        "they are, this layout cannot hold the layer: it has W_q.weight, W_k.weight, "
    )
    refused(layer, "mha-tutorial", message, h=3)
    assert load(layer, "mha-tutorial", h=3, ignore=ignore).h == 3


def test_output_is_that_of_the_tutorial_of_amsterdam(rng):
    """Its forward pass: one projection, split by heads first and then in thirds."""
    h, d, width, d_model = 3, 7, 17, 29
    qkv_proj = torch.nn.Linear(width, 3 * h * d, dtype=torch.float64)
    o_proj = torch.nn.Linear(h * d, d_model, dtype=torch.float64)
    module = randomised(torch.nn.ModuleDict({"qkv_proj": qkv_proj, "o_proj": o_proj}))
    x = rng.normal(size=(2, 5, width))
    queries, keys, values = qkv_proj(torch.from_numpy(x)).unflatten(-1, (h, 3 * d)).transpose(1, 2).chunk(3, dim=-1)
    heads = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)
    expected = o_proj(heads.transpose(1, 2).flatten(-2)).detach().numpy()
    assert_close(row.multi_head(x, x, x, load(module, "uva", h).T).output, expected)


def test_output_is_that_of_the_einsums_of_transformer_lens(rng):
    """As its documentation writes them, with the axes [head, in, out]."""
    h, d, d_model = 3, 7, 11
    stored = {f"W_{p}": rng.normal(size=(h, d_model, d)) for p in "QKV"} | {"W_O": rng.normal(size=(h, d, d_model))}
    stored |= {f"b_{p}": rng.normal(size=(h, d)) for p in "QKV"} | {"b_O": rng.normal(size=d_model)}
    stored |= {"mask": np.tril(np.ones((5, 5), dtype=bool)), "IGNORE": np.array(-np.inf)}  # its buffers
    stored |= {"rotary_sin": np.ones((5, 2)), "rotary_cos": np.ones((5, 2))}
    x = rng.normal(size=(2, 5, d_model))
    q, k, v = (np.einsum("bpm,hmd->bphd", x, stored[f"W_{p}"]) + stored[f"b_{p}"] for p in "QKV")
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(d)
    z = np.einsum("bhqk,bkhd->bqhd", row.softmax(scores), v)
    expected = np.einsum("bqhd,hdm->bqm", z, stored["W_O"]) + stored["b_O"]
    assert_close(row.multi_head(x, x, x, load(stored, "transformer-lens").T).output, expected)


def test_output_is_that_of_the_einsums_of_transformer_lens_with_groups(rng):
    """Its attributes W_K and W_V are made of parameters with an underscore, which its checkpoints hold."""
    h, h_kv, d, d_model = 6, 2, 7, 11
    heads = {"W_Q": h, "_W_K": h_kv, "_W_V": h_kv}
    stored = {name: rng.normal(size=(number, d_model, d)) for name, number in heads.items()}
    stored |= {name.replace("W", "b"): rng.normal(size=(number, d)) for name, number in heads.items()}
    stored |= {"W_O": rng.normal(size=(h, d, d_model)), "b_O": rng.normal(size=d_model), "mask": np.ones((5, 5))}
    x = rng.normal(size=(2, 5, d_model))
    q, k, v = (
        np.einsum("bpm,hmd->bphd", x, stored[name].repeat(h // number, axis=0))
        + stored[name.replace("W", "b")].repeat(h // number, axis=0)
        for name, number in heads.items()
    )
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(d)
    z = np.einsum("bhqk,bkhd->bqhd", row.softmax(scores), v)
    expected = np.einsum("bqhd,hdm->bqm", z, stored["W_O"]) + stored["b_O"]
    weights = load(stored, "transformer-lens-groups")
    assert weights.h_kv == h_kv
    assert_close(row.multi_head(x, x, x, weights.T).output, expected)
    message = "W_K is missing; expected a tensor 'h d_model d' = (6, 11, 7), but the names are those of layout"
    refused(stored, "transformer-lens", f"{message} 'transformer-lens-groups'", None)


class Fused(torch.nn.Module):
    """One projection cut in thirds and then into heads, as nanoGPT, Phi-3 and vLLM do; `names` are theirs."""

    def __init__(self, names, h, d, d_model, bias):
        super().__init__()
        self.names, self.h, self.d = names, h, d
        setattr(self, names[0], torch.nn.Linear(d_model, 3 * h * d, bias=bias, dtype=torch.float64))
        setattr(self, names[1], torch.nn.Linear(h * d, d_model, bias=bias, dtype=torch.float64))

    def forward(self, x):
        fused, out = (getattr(self, name) for name in self.names)
        thirds = fused(x).split(self.h * self.d, dim=2)
        q, k, v = (third.view(*x.shape[:2], self.h, self.d).transpose(1, 2) for third in thirds)
        heads = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return out(heads.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("layout", "names", "d_model"),
    [("nanogpt", ("c_attn", "c_proj"), 15), ("qkv-blocks", ("qkv_proj", "o_proj"), 17)],
)
def test_output_is_that_of_one_projection_cut_in_thirds(layout, names, d_model, bias, rng):
    module = randomised(Fused(names, 3, 5, d_model, bias))
    x = rng.normal(size=(2, 7, d_model))
    expected = module(torch.from_numpy(x)).detach().numpy()
    assert_close(row.multi_head(x, x, x, load(module, layout, 3).T).output, expected)


def test_rotary_scores_are_the_same_in_both_orders(rng):
    """Meta's rows with its pairs side by side, and the package's rows with pairs half a head apart."""
    h, h_kv, d, width, n = 6, 2, 10, 17, 5
    stored = {
        f"w{p}.weight": rng.normal(size=shape)
        for p, shape in {"q": (60, 17), "k": (20, 17), "v": (20, 17), "o": (17, 60)}.items()
    }
    x = rng.normal(size=(n, width))
    q, k = (
        (x @ stored[f"w{p}.weight"].T).reshape(n, heads, d).swapaxes(0, 1) for p, heads in (("q", h), ("k", h_kv))
    )
    expected = row.scaled_dot_product(rotated(q, pairs=True), rotated(k, pairs=True).repeat(3, axis=0))

    def rotary(Q, K):
        return row.scaled_dot_product(rotated(Q, pairs=False), rotated(K, pairs=False))

    weights = load(stored, "llama-pairs", h=h).T
    assert_close(row.multi_head(x, x, x, weights, score=rotary).scores, expected)
    hugging = {f"{p}_proj.weight": array for p, array in zip("qkvo", stored.values(), strict=True)}
    unmoved = row.multi_head(x, x, x, load(hugging, "llama", h=h).T, score=rotary).scores
    assert np.linalg.norm(unmoved - expected) > 0.1 * np.linalg.norm(expected)  # other scores


# --- checkpoints --------------------------------------------------------------------------------------------------


def test_a_checkpoint_may_be_nested(rng):
    stored = dump(draw(rng, LAYOUTS["flax"]), "flax")
    nested = {"params": {"attention": {}}}
    for key, array in stored.items():
        module, name = key.split(".")
        nested["params"]["attention"].setdefault(module, {})[name] = array
    assert_same(dump(load(nested, "flax", prefix="params.attention."), "flax"), stored)


def test_a_checkpoint_may_need_gradients_and_keeps_its_type():
    module = torch.nn.MultiheadAttention(6, 3)
    weights = load(dict(module.named_parameters()), "torch", h=3)
    assert weights.dtype == np.float32
    assert load(module.half(), "torch", h=3).dtype == np.float16


def test_bfloat16_is_moved_but_not_loaded():
    module = torch.nn.MultiheadAttention(6, 3, dtype=torch.bfloat16)
    message = (
        r"layout 'torch': the tensors are bfloat16; convert it to float32, which .* exactly \(tensor\.float\(\)\)"
    )
    with pytest.raises(TypeError, match=message):
        load(module, "torch", h=3)
    wide = dump(load(module.float(), "torch", h=3), "torch")
    narrow = {key: array.astype(ml_dtypes.bfloat16) for key, array in wide.items()}
    with pytest.raises(TypeError, match=r"layout 'torch': the tensors are bfloat16; convert it to float32"):
        load(narrow, "torch", h=3)
    moved = layouts.convert(narrow, "torch", "gpt2", h=3)
    assert moved["c_attn.weight"].dtype == ml_dtypes.bfloat16
    assert_same(layouts.convert(moved, "gpt2", "torch", h=3), narrow)


@pytest.mark.parametrize("make", [lambda module: module, lambda module: module.state_dict()])
def test_a_bfloat16_module_is_converted_byte_by_byte(make):
    """To another layout and back; parameters need gradients and are transposed on the way."""
    module = torch.nn.MultiheadAttention(6, 3, dtype=torch.bfloat16)
    moved = layouts.convert(make(module), "torch", "gpt2", 3)
    assert moved["c_attn.weight"].dtype == ml_dtypes.bfloat16
    columns = module.in_proj_weight.detach().T.contiguous()  # (in, out), with queries, keys and values in blocks
    assert moved["c_attn.weight"].tobytes() == columns.view(torch.int16).numpy().tobytes()
    back = layouts.convert(moved, "gpt2", "torch", 3)
    for name, tensor in module.state_dict().items():
        assert back[name].tobytes() == tensor.view(torch.int16).numpy().tobytes()


def test_bfloat16_tensors_of_any_order_are_read():
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    arrays = layouts.read_arrays({"turned": tensor.T, "one": tensor[0, 1], "none": tensor[:0]})
    np.testing.assert_array_equal(arrays["turned"].astype(float), [[0, 3], [1, 4], [2, 5]])
    assert (arrays["one"].shape, arrays["one"].astype(float)) == ((), 1)
    assert arrays["none"].shape == (0, 3)


def test_bfloat16_without_ml_dtypes_is_told_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    message = (
        r"in_proj_weight is bfloat16, which NumPy does not have: convert it to float32.*\.float\(\)\), or .*pip"
    )
    with pytest.raises(ImportError, match=message):
        layouts.convert(torch.nn.MultiheadAttention(6, 3, dtype=torch.bfloat16), "torch", "gpt2", 3)


def test_what_is_none_counts_as_missing(rng):
    """Equinox has no bias unless asked, and says so by None."""
    stored = dump(ColumnWeights.random(rng, d_model=12, h=3, bias=False), "equinox")
    empty = {key.replace("weight", "bias"): None for key in stored}
    assert_same(load(stored | empty, "equinox", h=3).arrays(), load(stored, "equinox", h=3).arrays())
    assert identify(stored | empty) == identify(stored)


class Unread:
    """A tensor whose shape may be asked for, and nothing else."""

    shape = (3,)

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("it was read")


def test_nothing_is_read_but_the_layer(bert):
    beside = {"output.LayerNorm.weight": Unread()}
    assert_same(load(bert | beside, "bert", h=3).arrays(), load(bert, "bert", h=3).arrays())
    refused(bert | {"head": Unread()}, "bert", "does not know head, of shape (3,)")
    assert set(layouts.read_arrays(bert | beside, "self.", ["key.bias"])) == {"self.key.bias"}


def test_the_type_of_a_neighbour_hides_no_mistake(rng):
    stored = dump(ColumnWeights.random(rng, d_model=12, h=3), "torch", "layer.")
    wanted = (
        "in_proj_weight is missing; expected a tensor '(qkv h d) d_model' = (3·3·d, d_model), which stands there"
    )
    refused(stored | {"head": torch.ones(3, dtype=torch.bfloat16)}, "torch", f"{wanted} with prefix 'layer.'")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(12, 12, device="meta"),
        torch.ones(12, 12).to(torch.float8_e5m2),
        torch.eye(12).to_sparse(),
        [[1.0], [2.0, 3.0]],
        [torch.nn.Parameter(torch.ones(12)) for _ in range(12)],
    ],
    ids=["no memory", "eight bits", "sparse", "ragged", "list of parameters"],
)
def test_what_is_no_array_is_named(tensor, bert):
    with pytest.raises(TypeError, match=r"^self\.key\.weight cannot be made a NumPy array: "):
        load(bert | {"self.key.weight": tensor}, "bert", h=3)


def test_a_mask_is_not_lost(bert):
    masked = np.ma.masked_less(bert["self.key.weight"], 0)
    with pytest.raises(
        TypeError, match=r"self\.key\.weight is a masked array, whose mask would be lost; fill it first"
    ):
        load(bert | {"self.key.weight": masked}, "bert", h=3)


def test_two_tensors_of_one_name_are_refused():
    twice = {"a.in_proj_weight": np.ones((12, 4)), "a": {"in_proj_weight": np.zeros((12, 4))}}
    with pytest.raises(ValueError, match=r"two tensors of the name a\.in_proj_weight"):
        identify(twice)


@pytest.mark.parametrize("checkpoint", [[1.0], np.ones(3), None])
def test_what_is_no_checkpoint_is_refused(checkpoint):
    message = f"mapping of names to arrays, .*, got {type(checkpoint).__name__}"
    for function in (lambda: load(checkpoint, "torch", h=3), lambda: identify(checkpoint)):
        with pytest.raises(TypeError, match=message):
            function()


# --- what does not fit --------------------------------------------------------------------------------------------


@pytest.fixture
def bert(rng):
    """A layer as BERT stores it: 3 heads of 4 features in a model of 12."""
    return dump(ColumnWeights.random(rng, d_model=12, h=3), "bert")


def refused(checkpoint, layout, message, h=3, error=ValueError, **options):
    with pytest.raises(error, match=re.escape(f"layout '{getattr(layout, 'name', layout)}': {message}")):
        load(checkpoint, layout, h, **options)


def test_a_wrong_number_of_heads_is_refused(bert, rng):
    fits = "self.query.weight must be '(h d) d_model' = (5·d, d_model) with h=5 (given), got shape (12, 12)"
    refused(bert, "bert", fits, h=5)
    keras = dump(draw(rng, LAYOUTS["keras"]), "keras")
    fits = (
        "query/kernel must be 'd_query h d_k' = (17, 4, d_k) with h=4 (given), d_query=17 (query/kernel), got shape"
    )
    refused(keras, "keras", f"{fits} (17, 6, 11)", h=4)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("name", ["h", "h_kv"])
@pytest.mark.parametrize("number", [0, -1, 2.0, "3", True])
def test_numbers_of_heads_are_whole_and_positive(name, number, bert):
    small = type(number) is int
    message = f"{name} must be {'at least 1' if small else 'a whole number'}, got {number!r}"
    refused(bert, "bert", message, error=ValueError if small else TypeError, **{"h": 3} | {name: number})


def test_heads_that_shapes_do_not_tell_are_asked_for(bert, rng):
    message = "heads are stored side by side, and shapes do not tell how many there are; pass h, a divisor of"
    refused(bert, "bert", f"{message} h·d=12", h=None)
    refused(dump(draw(rng, LAYOUTS["llama"]), "llama"), "llama", f"{message} h·half=30", h=None)


def test_a_wrong_number_of_key_value_heads_is_refused(bert, rng):
    message = "keys and values have as many heads as queries here, got h=3 and h_kv=1"
    refused(bert, "bert", message, h_kv=1)
    assert load(bert, "bert", h=3, h_kv=3).h_kv == 3
    keras = dump(draw(rng, LAYOUTS["keras"]), "keras")
    refused(keras, "keras", message.replace("3", "6"), h=None, h_kv=1)
    assert load(keras, "keras", h_kv=6).h_kv == 6  # its shapes tell the heads
    llama = dump(draw(rng, LAYOUTS["llama"]), "llama")
    assert load(llama, "llama", h=np.int64(6), h_kv=2).h_kv == 2
    fits = "k_proj.weight must be '(h_kv two half) d_model' = (30, 29) with h_kv=3 (given), half=5 (q_proj.weight)"
    refused(llama, "llama", fits, h=6, h_kv=3)
    message = "key-value heads must divide the heads, got h_kv=2 (k_proj.weight) and h=3 (given)"
    odd = llama | {"k_proj.weight": llama["k_proj.weight"].repeat(2, axis=0)}
    odd = {key: array for key, array in odd.items() if "weight" in key}
    odd["v_proj.weight"] = odd["k_proj.weight"]
    refused(odd, "llama", message, h=3)


def test_wrong_widths_are_named_with_where_they_differ_from(bert):
    known = "with h=3 (given), d=4 (self.query.weight), d_model=12 (self.query.weight)"
    for shape in ((12, 13), (13, 12), (15, 12), (24, 12), (12, 24)):
        fits = f"self.key.weight must be '(h d) d_model' = (12, 12) {known}, got shape {shape}"
        refused(bert | {"self.key.weight": np.ones(shape)}, "bert", fits)


@pytest.mark.parametrize("shape", [(12,), (3, 4, 12), (12, 0)])
def test_a_wrong_number_of_axes_is_refused(shape, bert):
    fits = "a.self.key.weight must be '(h d) d_model' = (3·d, d_model), with 2 axes and none of length 0"
    changed = {f"a.{key}": array for key, array in (bert | {"self.key.weight": np.ones(shape)}).items()}
    refused(changed, "bert", f"{fits}, got shape {shape}", prefix="a.")


def test_one_axis_is_not_called_axes(bert):
    fits = "output.dense.bias must be 'd_model' = (d_model,), with 1 axis and none of length 0, got shape (1, 12)"
    refused(bert | {"output.dense.bias": np.ones((1, 12))}, "bert", fits)


def test_sizes_that_the_library_ties_are_tied(rng):
    stored = dump(
        draw(rng, LAYOUTS["equinox"], d_query=17, d_key=17, d_value=17, d_model=17, d_k=7, d_v=7), "equinox"
    )
    renamed = {f"W_{key[0]}{key[key.index('.') :]}": array for key, array in stored.items()}
    message = "d_model is always h·d there, but d_model=17 (W_o.weight) and h·d=42"
    refused(renamed, "d2l", message, h=6)


def test_a_missing_key_is_named_with_what_is_there_instead(bert):
    without = {key: array for key, array in bert.items() if key != "self.key.weight"}
    message = (
        "self.key.weight is missing; expected a tensor '(h d) d_model' = (12, 12), got self.query.weight (12, 12)"
    )
    refused(without, "bert", message)
    refused(
        {}, "bert", "self.query.weight is missing; expected a tensor '(h d) d_model' = (3·d, d_model), got nothing"
    )


def test_a_bias_that_a_library_always_has_is_missed(bert):
    without = {key: array for key, array in bert.items() if key != "self.key.bias"}
    refused(without, "bert", "self.key.bias is missing; expected a tensor '(h d)' = (12,), got")


def test_another_layout_is_recognised_by_its_names(bert):
    message = (
        "in_proj_weight is missing; expected a tensor '(qkv h d) d_model' = (3·3·d, d_model), but the names are"
    )
    refused(bert, "torch", f"{message} those of layout 'bert'")


def test_a_missing_prefix_is_found(bert):
    layers = {f"layer.{i}.{key}": array for i in range(6) for key, array in bert.items()}
    wanted = (
        "self.query.weight is missing; expected a tensor '(h d) d_model' = (3·d, d_model), which stands there with"
    )
    known = "'layer.0.', 'layer.1.', 'layer.2.', 'layer.3.' and 2 more"
    refused(layers, "bert", f"{wanted} prefix {known}")
    assert load(layers, "bert", h=3, prefix="layer.4.").h == 3


def test_a_surplus_key_is_refused_and_known_neighbours_are_not(bert):
    message = (
        "does not know self.key.scale, of shape (12,); if it is no part of the layer, leave it out or pass "
        "ignore=['self.key.scale'], and if it is, this layout cannot hold the layer: it has self.query.weight, "
    )
    refused(bert | {"self.key.scale": np.ones(12)}, "bert", message)
    beside = bert | {"output.LayerNorm.weight": np.ones(12)}
    assert_same(load(beside, "bert", h=3).arrays(), load(bert, "bert", h=3).arrays())


ESM = {"self.rotary_embeddings.inv_freq": (2,), "LayerNorm.weight": (12,), "LayerNorm.bias": (12,)}


@pytest.mark.parametrize(
    "ignore",
    [list(ESM), ["LayerNorm.*", "self.rotary_embeddings.inv_freq"], "*", ["layer.0.LayerNorm.*", "*.inv_freq"]],
)
def test_what_is_no_part_of_the_layer_is_ignored_on_demand(ignore, bert):
    """As under the prefix of ESM's layers, which is that of a block."""
    block = {f"layer.0.{key}": array for key, array in bert.items()}
    block |= {f"layer.0.{key}": np.ones(shape) for key, shape in ESM.items()}
    assert_same(load(block, "bert", 3, prefix="layer.0.", ignore=ignore).arrays(), load(bert, "bert", 3).arrays())
    moved = layouts.convert(block, "bert", "torch", 3, prefix="layer.0.", ignore=ignore)
    assert_same(moved, layouts.convert(bert, "bert", "torch", 3))


def test_all_that_is_in_the_way_is_named_at_once(bert):
    named = ", ".join(f"{key}, of shape {shape}" for key, shape in ESM.items())
    message = f"does not know {named}; if they are no part of the layer, leave them out or pass ignore={list(ESM)}"
    beside = {key: np.ones(shape) for key, shape in ESM.items()}
    refused(bert | beside, "bert", message)
    names = ["LayerNorm.bias", "self.rotary_embeddings.inv_freq", "LayerNorm.weight"]
    left = (
        message.replace(named, "LayerNorm.weight, of shape (12,)")
        .replace("they are", "it is")
        .replace("them", "it")
    )
    refused(bert | beside, "bert", left.replace(str(list(ESM)), str(names)), ignore=names[:2])
    many = {f"norm.{i}": np.ones(2) for i in range(9)}
    refused(
        bert | many, "bert", "does not know norm.0, of shape (2,), norm.1, of shape (2,), norm.2, of shape (2,), "
    )
    with pytest.raises(
        ValueError, match=re.escape("pass ignore=['*'], and if they are, this layout cannot hold the layer")
    ):
        load(bert | many, "bert", 3)


@pytest.mark.parametrize("name", ["self.key.bias", "layer.0.self.key.bias"])
def test_the_layers_own_tensors_are_not_ignored(name, bert):
    block = {f"layer.0.{key}": array for key, array in bert.items()}
    message = "layer.0.self.key.bias is part of the layer and cannot be ignored"
    refused(block, "bert", message, prefix="layer.0.", ignore=[name])
    load(block, "bert", 3, prefix="layer.0.", ignore=["self.*"])  # a pattern leaves them alone


def turned(stored, *keys):
    return stored | {key: stored[key].T for key in keys}


def test_a_matrix_that_lies_on_its_side_is_named(rng):
    """By its own shape, and not the one that no longer fits it; and where another layout fits, that is named."""
    square = ColumnWeights.random(rng, d_model=12, h=3)
    nano = {f"attn.{key}": array for key, array in dump(square, "nanogpt").items()}
    fits = "attn.c_attn.weight must be 'd_model (qkv h d)' = (12, 36), got shape (36, 12), the transpose of it; so"
    also = "so square matrices beside it may be stored transposed too, which no shape tells. Names and shapes are"
    message = f"{fits} {also[3:]} those of layout 'nanogpt'"
    refused(nano, "gpt2", message, prefix="attn.")
    refused(nano, "gpt2", message, None, prefix="attn.")
    unbiased = {key: array for key, array in nano.items() if "weight" in key}
    refused(unbiased, "gpt2", message, prefix="attn.")
    fits = "c_attn.weight must be '(qkv h d) d_model' = (36, 12), got shape (12, 36), the transpose of it; "
    refused(dump(square, "gpt2"), "nanogpt", f"{fits}{also} those of layout 'gpt2'")
    sizes = {"two": 2, "half": 5}
    llama = dump(draw(rng, LAYOUTS["llama"], **sizes), "llama")
    fits = "k_proj.weight must be '(h_kv two half) d_model' = (20, 29), got shape (29, 20), the transpose of it; so"
    refused(turned(llama, "k_proj.weight"), "llama", fits, 6)
    neox = turned(dump(square, "neox"), "query_key_value.weight")
    refused(neox, "neox", "query_key_value.weight must be '(h qkv d) d_model' = (36, 12), got shape (12, 36), the")
    all_of_them = turned(llama, "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")
    with pytest.raises(
        ValueError, match=r"q_proj.* got shape \(29, 60\), and k_proj.* got .*, and v_proj.*, and o_proj"
    ):
        load(all_of_them, "llama", 6)


def test_a_wrong_number_of_heads_is_not_called_a_transpose(rng):
    widths = {"d_query": 18, "d_key": 12, "d_value": 12, "d_model": 12}
    stored = dump(draw(rng, LAYOUTS["linear"], bias=False, h=3, h_kv=3, d_k=4, d_v=4, **widths), "linear")
    refused(stored, "linear", "queries.weight must be '(h d_k) d_query' = (5·d_k, d_query) with h=5 (given)", 5)


def test_shapes_that_fit_in_no_way_are_not_called_transposed(rng):
    stored = dump(ColumnWeights.random(rng, d_model=12, h=3), "gpt2")
    message = "c_attn.weight must be 'd_model (qkv h d)' = (12, 36)"
    with pytest.raises(ValueError, match="must be") as refusal:
        load(stored | {"c_attn.weight": np.ones((36, 13))}, "gpt2", 3)
    assert "transpose" not in str(refusal.value)
    assert message not in str(refusal.value)


def test_half_of_the_biases_are_refused(rng):
    stored = dump(ColumnWeights.random(rng, d_model=12, h=3), "torch")
    out = stored.pop("out_proj.bias")
    message = "out_proj.bias is missing; expected a tensor 'd_model' = (12,), since in_proj_bias (36,) is there"
    refused(stored, "torch", message)
    del stored["in_proj_bias"]
    assert load(stored, "torch", h=3).b_o is None
    message = "in_proj_bias is missing; expected a tensor '(qkv h d)' = (36,), since out_proj.bias (12,) is there"
    refused(stored | {"out_proj.bias": out}, "torch", f"{message}; they are stored together or not at all")


def test_biases_that_come_one_by_one_may_be_missing_one_by_one(rng):
    weights = draw(rng, LAYOUTS["equinox"])
    stored = {key: array for key, array in dump(weights, "equinox").items() if key != "key_proj.bias"}
    loaded = load(stored, "equinox", h=6)
    assert loaded.b_k is None
    assert loaded.b_q is not None
    assert_same(dump(loaded, "equinox"), stored)


def test_types_are_named_and_never_changed(bert):
    integers = bert | {"self.key.weight": np.ones((12, 12), dtype=int)}
    refused(integers, "bert", "self.key.weight must hold floating-point numbers, got int64", error=TypeError)
    eighth = {key: array.astype(ml_dtypes.float8_e5m2) for key, array in bert.items()}
    message = "self.query.weight must hold floating-point numbers, got float8_e5m2"
    refused(eighth, "bert", message, error=TypeError)
    with pytest.raises(TypeError, match=message):
        layouts.convert(eighth, "bert", "torch", h=3)
    mixed = bert | {"self.key.bias": np.ones(12, dtype=np.float32)}
    message = "self.key.bias is float32 but self.query.weight is float64; the tensors of a layer must be of one"
    refused(mixed, "bert", message, error=TypeError)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("weights", [None, {"W_q": np.ones((3, 4, 12))}])
def test_only_weights_can_be_dumped(weights):
    message = f"weights must be ColumnWeights or RowWeights, got {type(weights).__name__}"
    with pytest.raises(TypeError, match=message):
        dump(weights, "torch")


def test_unknown_layouts_are_answered_with_the_known(bert):
    with pytest.raises(
        ValueError, match="there is no layout 'kears'; there are torch, torch-separate, mha-tutorial, linear"
    ):
        load(bert, "kears", h=3)


def dumping_refused(weights, layout, message):
    with pytest.raises(ValueError, match=re.escape(f"layout '{getattr(layout, 'name', layout)}': {message}")):
        dump(weights, layout)


def test_what_a_library_cannot_store_is_refused(rng):
    square = {"d_model": 12, "h": 6}
    shared = ColumnWeights.random(rng, **square, h_kv=2)
    message = "every head has keys and values of its own there, but 6 heads share 2; to give each its copy"
    dumping_refused(shared, "torch", f"{message}, pass repeat_kv=True")
    narrow = ColumnWeights.random(rng, **square, d_k=3, d_v=2)
    fits = (
        "W_v must be 'h d d_model' = (6, 3, 12) with h=6 (W_q), d=3 (W_q), d_model=12 (W_q), got shape (6, 2, 12)"
    )
    dumping_refused(narrow, "torch", fits)
    wide = ColumnWeights.random(rng, **square, d_k=3, d_v=3)
    dumping_refused(wide, "gpt2", "d_model is always h·d there, but d_model=12 (W_q) and h·d=18")
    dumping_refused(
        wide,
        "llama",
        "W_q must be 'h (two half) d_model' = (6, 2·half, d_model) with h=6 (W_q), got shape (6, 3, 12)",
    )


def test_biases_that_a_library_always_or_never_has(rng):
    without = ColumnWeights.random(rng, d_model=12, h=3, bias=False)
    message = "c_attn.bias is always stored there and holds b_q b_k b_v, but the layer has no b_q b_k b_v; zeros in"
    dumping_refused(without, "gpt2", f"{message} its place change nothing: pass zero_biases=True")
    arrays = without.arrays()
    some = ColumnWeights(**arrays, b_q=np.ones((3, 4)), b_o=np.ones(12))
    message = (
        "in_proj_bias is, beside the other biases, stored there and holds b_q b_k b_v, but the layer has no b_k b_v"
    )
    dumping_refused(some, "torch", message)
    never = Layout("plain", "a library without biases", LAYOUTS["linear"].tensors[:4])
    dumping_refused(some, never, "has no place for b_q, b_o, which the layer has")


def test_zeros_stand_in_for_biases_on_demand(rng):
    """A layer with some biases, where the library has all or none: the same layer."""
    arrays = ColumnWeights.random(rng, d_model=12, h=3).arrays()
    some = ColumnWeights(**{name: array for name, array in arrays.items() if name not in ("b_k", "b_o")})
    back = load(dump(some, "torch", zero_biases=True), "torch", 3)
    filled = {"b_k": np.zeros((3, 4)), "b_o": np.zeros(12)}
    assert_same(back.arrays(), some.arrays() | filled)
    moved = layouts.convert(dump(some, "linear"), "linear", "torch", 3, zero_biases=True)
    assert_same(moved, dump(back, "torch"))
    bare = ColumnWeights(*(arrays[name].astype(np.float32) for name in ("W_q", "W_k", "W_v", "W_o")))
    assert set(dump(bare, "torch", zero_biases=True)) == {"in_proj_weight", "out_proj.weight"}
    always = dump(bare, "gpt2", zero_biases=True)
    assert always["c_attn.bias"].dtype == np.float32
    assert not always["c_attn.bias"].any()


def test_heads_get_copies_of_what_they_share_on_demand(rng):
    shared = ColumnWeights.random(rng, d_model=12, h=6, h_kv=2)
    x = rng.normal(size=(2, 5, 12))
    copied = load(dump(shared, "torch", repeat_kv=True), "torch", 6)
    assert copied.h_kv == 6
    assert_close(row.multi_head(x, x, x, copied.T).output, row.multi_head(x, x, x, shared.T).output)
    assert_same(dump(shared, "llama", repeat_kv=True), dump(shared, "llama"))  # which has groups
    bare = ColumnWeights(shared.W_q, shared.W_k, shared.W_v, shared.W_o)
    both = layouts.convert(dump(bare, "llama"), "llama", "gpt2", 6, zero_biases=True, repeat_kv=True)
    assert_close(row.multi_head(x, x, x, load(both, "gpt2", 6).T).output, row.multi_head(x, x, x, bare.T).output)


# --- recognising --------------------------------------------------------------------------------------------------


@each_layout
def test_layouts_are_recognised_by_their_own_names(layout, rng):
    weights = draw(rng, layout)
    stored = dump(weights, layout, "model.layers.7.")
    (match,) = (match for match in identify(stored) if match.layout == layout.name)
    assert match.prefix == "model.layers.7."
    others = [other.layout for other in identify(stored) if other != match]
    namesakes = {"uva": ["qkv-blocks"], "qkv-blocks": ["uva"], "d2l": ["mha-tutorial"]}
    assert others == namesakes.get(layout.name, [])
    assert match.h == (6 if layout.name in HEADS_HAVE_AN_AXIS else None)
    assert match.parameters == weights.parameter_count
    assert match.surplus == ()


def test_sizes_are_told_as_far_as_shapes_tell_them(rng):
    (match,) = identify(dump(draw(rng, LAYOUTS["bert"]), "bert"))
    assert match.sizes == {"h·d": 42, "d_model": 42}
    (match,) = identify(dump(draw(rng, LAYOUTS["flax"]), "flax"))
    assert match.sizes == {"d_query": 17, "h": 6, "d": 7, "d_key": 19, "d_value": 23, "d_model": 29}


def test_square_matrices_do_not_tell_their_layout(rng):
    """Names apart, these shapes fit several layouts that mean different layers by them."""
    square = ColumnWeights.random(rng, d_model=12, h=3, bias=False)

    def alike(layout, weights=square):
        (match,) = identify(dump(weights, layout))
        return match.alike

    assert alike("torch") == ("neox",)
    assert alike("neox") == ("torch", "nanogpt", "qkv-blocks")  # three that read alike
    assert alike("llama") == ("llama-pairs",)
    assert alike("bert", ColumnWeights.random(rng, d_model=12, h=3)) == ("llama-pairs",)
    assert alike("gpt2", ColumnWeights.random(rng, d_model=12, h=3)) == ()  # (in, 3 out): no other stores that
    cube = ColumnWeights(*[rng.normal(size=(5, 5, 5)) for _ in range(4)])
    assert alike("flax", cube) == ("columns",)  # as many heads as features as numbers of a token
    assert alike("columns", cube) == ("keras", "flax")


def test_shapes_that_contradict_the_names_are_no_match(bert):
    assert identify(bert | {"self.key.weight": np.ones((12, 13))}) == []
    assert identify({key: array for key, array in bert.items() if key != "output.dense.bias"}) == []
    assert identify({f"x{key}": array for key, array in bert.items()}) == []  # a prefix ends with a dot or slash
    assert identify({}) == []


def test_every_layer_is_found_and_neighbours_are_named(bert):
    layers = {f"layer.{i}.{key}": array for i in range(3) for key, array in bert.items()}
    layers["layer.1.gate"] = np.ones(3)
    assert [(match.prefix, match.surplus) for match in identify(layers)] == [
        ("layer.0.", ()),
        ("layer.1.", ("gate",)),
        ("layer.2.", ()),
    ]
