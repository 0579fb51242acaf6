"""The checker names the fault that was put in, and has nothing against what is right."""

import importlib
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from mha_tutorial import FastMultiHeadAttention, MultiHeadAttention, RowWeights, cli
from mha_tutorial.check import FAULTS, PROPERTIES, adapters, check
from mha_tutorial.check.imitations import IMITATIONS
from mha_tutorial.check.problems import Problem, some_visible, triangle
from mha_tutorial.check.steps import Setting, run
from mha_tutorial.check.subject import UNKNOWN, weights_of
from mha_tutorial.examples import faults, plain_numpy, plain_torch
from mha_tutorial.positions import Pairs
from mha_tutorial.positions.row import Rotary
from mha_tutorial.reference import column, row
from mha_tutorial.testing import assert_attention
from mha_tutorial.torch import KERNELS, guarded
from mha_tutorial.torch import MultiHeadAttention as TorchAttention
from mha_tutorial.torch import Rotary as TorchRotary
from tests.helpers import assert_close
from tests.torch_helpers import one_thread  # noqa: F401

LEAKS = ["hidden NaN reaches nothing", "hidden inf reaches nothing", "hidden huge numbers reach nothing"]
INTEGERS = "a mask of integers is refused"


def kernel(attend, **options):
    return lambda q, k, v, visible=None: attend(q, k, v, visible=visible, **options)


def weights(**options):
    return RowWeights.random(np.random.default_rng(1), d_model=12, h=6, **options)


OURS = {
    "row": lambda: check(kernel(row.attention)),
    "column": lambda: check(kernel(column.attention), convention="column"),
    "row, online": lambda: check(lambda q, k, v, visible=None: row.online_attention(q, k, v, visible=visible)[0]),
    "naive": lambda: check(kernel(KERNELS["naive"])),
    "fused": lambda: check(kernel(KERNELS["fused"])),
    "online": lambda: check(kernel(KERNELS["online"], block=3)),
    "guarded": lambda: check(kernel(guarded(KERNELS["fused"]))),
    "layer": lambda: check(MultiHeadAttention(weights(h_kv=2, d_k=5, d_v=7))),
    "fast layer": lambda: check(FastMultiHeadAttention(weights()), weights=weights()),
    "torch layer": lambda: check(TorchAttention(12, 6, h_kv=2, d_k=5, d_v=7)),
    "torch layer without bias, rotary": lambda: check(
        TorchAttention(12, 6, d_k=4, bias=False, prepare=TorchRotary(10000.0)), prepare=Rotary(10000.0)
    ),
    "a layer of matrices nobody knows": lambda: check(
        lambda q, k, v, visible=None: MultiHeadAttention(weights())(q, k, v, visible=visible), d_model=12
    ),
}


@pytest.mark.parametrize("checked", OURS.values(), ids=OURS)
def test_nothing_against_our_own(checked):
    report = checked()
    assert not report.failures, report
    assert not report.remarks, report


THEIRS = {
    "scaled_dot_product_attention": (lambda: check(scaled_dot_product_attention), [*LEAKS, INTEGERS]),
    "is_causal": (
        lambda: check(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), causal="top-left"),
        [],
    ),
    "nn.MultiheadAttention": (lambda: check(nn.MultiheadAttention(12, 3, batch_first=True)), LEAKS),
    "nn.MultiheadAttention, tokens first": (lambda: check(nn.MultiheadAttention(12, 3)), LEAKS),
}


@pytest.mark.parametrize(("checked", "remarks"), THEIRS.values(), ids=THEIRS)
def test_remarks_alone_on_torchs_own(checked, remarks):
    report = checked()
    assert not report.failures, report
    assert sorted(finding.name for finding in report.remarks) == sorted(remarks)


@pytest.mark.parametrize("of", faults.RIGHT)
def test_nothing_against_the_plain_code_that_is_broken_below(of):
    report = faults.right_report(of)
    assert not report.failures, report


MISSED = {  # the only ones where another fault is named first
    ("packed layer", "split-without-transpose"): "merge-without-transpose",  # any change spreads the same way
}


@pytest.mark.parametrize("faulty", faults.FAULTY, ids=lambda faulty: f"{faulty.of}: {faulty.fault}")
def test_the_right_fault_is_named_first(faulty):
    expected = MISSED.get((faulty.of, faulty.fault), faulty.fault)
    assert faults.verdict(faulty) == expected


def test_the_table_of_faults_is_long_and_the_misses_are_few():
    visible = [faulty for faulty in faults.FAULTY if faulty.fault is not None]
    assert len(faults.FAULTY) >= 60
    assert len(MISSED) <= 0.1 * len(visible)
    assert {(faulty.of, faulty.fault) for faulty in visible} >= set(MISSED)


@pytest.fixture
def uncompiled_flex(monkeypatch):
    """Let `flex` run the operations of its graph one by one, without making code of them."""
    module = importlib.import_module("mha_tutorial.torch.kernels.flex")
    monkeypatch.setattr(module, "_compiled", lambda: torch.compile(flex_attention, backend="eager"))
    yield
    torch._dynamo.reset()


@pytest.mark.no_cover
def test_nothing_against_flex(uncompiled_flex):
    report = check(kernel(KERNELS["flex"]), m=5, n=5)
    assert not report.failures, report
    assert [finding.name for finding in report.remarks] == []


def test_steps_are_those_of_the_reference(rng):
    """What is right for the checker is what the reference gives."""
    own = weights(h_kv=2, d_k=5, d_v=7)
    Q, K, V = (rng.normal(size=(2, n, 12)) for n in (5, 7, 7))
    visible = some_visible(5, 7)
    for mask in (None, visible):
        found = run(Problem(Q, K, V, mask), Setting(own))
        assert_close(found, row.multi_head(Q, K, V, own, visible=mask).output)
    q, k, v = (rng.normal(size=(2, 3, n, d)) for n, d in ((5, 4), (7, 4), (7, 11)))
    k[:, :, -1], v[:, :, -1], visible[:, -1] = np.nan, np.inf, False
    with np.errstate(invalid="ignore"):
        assert_close(run(Problem(q, k, v, visible), Setting()), row.attention(q, k, v, visible=visible))
    causal = run(Problem(q, k[:, :, :-1], v[:, :, :-1], visible[:, :-1]), Setting(causal="bottom-right"))
    expected = row.attention(q, k[:, :, :-1], v[:, :, :-1], visible=visible[:, :-1] & triangle(5, 6))
    assert_close(causal, expected)


def unscaled(q, k, v, visible=None):
    return plain_numpy.attention(q * q.shape[-1] ** 0.5, k, v, visible)


def test_a_report_says_what_and_where_and_why():
    report = check(unscaled)
    text = str(report)
    assert text.startswith("6 of 34 properties fail, 4 remarks, 10 not tested")
    assert "One fault explains every number:\n    scale-missing: the scores are not divided by sqrt(d_k)" in text
    assert "[0] is 1, and should be 0.7071" in text
    assert "K (1, 1, 2, 2) = [[1.1, -1.4], [-0.9, -0.3]]" in text
    assert (
        "- hidden NaN reaches nothing. a hidden key and value of nan: nan, and should be 1.9\n  (hidden-leaks)"
        in text
    )
    finding = report.failures[0]
    assert finding.page == "attention/scaled-dot-product"
    assert (finding.found, finding.right) == pytest.approx((1, 2**-0.5))


class Unread(plain_torch.PackedLayer):
    """A layer with a parameter more than its matrices, so that nobody knows these."""

    def __init__(self):
        super().__init__(15, 3)
        self.gain = nn.Parameter(torch.ones(1))


def test_a_report_lists_what_is_likely_once():
    class Inverted(Unread):
        def forward(self, x, visible=None):
            return super().forward(x, None if visible is None else ~visible)

    text = str(check(Inverted()))
    assert "  likely:\n    mask-inverted: the mask is read the other way" in text
    assert text.count("mask-ignored:") == 1
    assert "x (1, 2, 15)" in text


@pytest.mark.parametrize(
    ("wrapped", "options"),
    {
        "true means ignore": (
            lambda q, k, v, mask=None: plain_numpy.attention(q, k, v, None if mask is None else ~mask),
            {"visible": "true-means-ignore"},
        ),
        "numbers": (
            lambda q, k, v, mask=None: plain_numpy.attention(q, k, v, None if mask is None else mask == 0),
            {"visible": "additive"},
        ),
        "numbers, in torch": (
            lambda q, k, v, mask=None: plain_torch.attention(q, k, v, None if mask is None else mask == 0),
            {"visible": "additive", "library": "torch"},
        ),
        "columns, in torch": (
            lambda q, k, v, visible=None: (
                plain_torch.attention(q.mT, k.mT, v.mT, None if visible is None else visible.mT).mT
            ),
            {"convention": "column", "library": "torch"},
        ),
        "a scale of its own": (
            lambda q, k, v, visible=None: plain_numpy.attention(q * q.shape[-1] ** 0.5 * 0.3, k, v, visible),
            {"scale": 0.3},
        ),
        "a tuple": (lambda q, k, v, visible=None: (plain_numpy.attention(q, k, v, visible), 1), {}),
        "any arguments": (lambda *tokens: plain_numpy.attention(*tokens), {}),
        "a fourth place": (lambda q, k, v, which=None: plain_numpy.attention(q, k, v, which), {}),
        "no mask": (lambda q, k, v, dropout=0.0: plain_numpy.attention(q, k, v), {}),
        "float32 alone": (
            lambda q, k, v: plain_torch.attention(q, k, v.view(v.shape).mul(torch.ones((), dtype=torch.float32))),
            {"library": "torch"},
        ),
        "other sizes": (plain_numpy.attention, {"n": 2, "m": 3, "d_k": 5, "d_v": 5}),
    }.values(),
)
def test_every_way_to_call_is_found(wrapped, options):
    report = check(wrapped, **options)
    assert not report.failures, report


def test_what_cannot_be_called_is_refused_with_what_it_said():
    def attention(q):
        raise RuntimeError("out of luck")

    with pytest.raises(
        TypeError, match=r"no way was found to call.*lambda.*\n  numpy float64: RuntimeError: out of"
    ):
        check(attention)
    with pytest.raises(ValueError, match="the width of the layer's tokens is not known: pass d_model="):
        check(Nothing())


class Nothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.gain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"convention": "rows"}, "convention must be one of 'row', 'column', got 'rows'"),
        ({"visible": True}, "visible must be one of 'true-means-attend', .* got True"),
        ({"causal": "lower"}, "causal must be one of True, False, .* got 'lower'"),
    ],
)
def test_words_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        check(plain_numpy.attention, **options)


def test_masks_that_differ_are_given_one_by_one_to_a_layer_nobody_knows():
    class FirstMask(Unread):
        def forward(self, x, visible=None):
            return super().forward(x, visible[:1] if visible is not None and visible.ndim > 2 else visible)

    report = check(FirstMask())
    assert report.faults[:2] == ["mask-head-order", "mask-of-first-sequence"]


def test_compiled_is_compared():
    assert check(plain_numpy.attention, compiled=unscaled).faults[0] == "compiled-differs"
    assert not check(plain_numpy.attention, compiled=plain_numpy.attention).failures


def test_steps_of_a_function_that_takes_a_mask():
    def step(q, k, v, cache):
        if cache is not None:
            k, v = (np.concatenate(pair, axis=-2) for pair in zip(cache, (k, v), strict=True))
        return plain_numpy.attention(q, k, v), (k, v)

    report = check(plain_numpy.attention, step=step)
    assert "steps with a cache are the full pass" in report.held
    causal = check(plain_numpy.causal_attention, causal=True, step=step)
    assert "steps with a cache are the full pass" in causal.held


def test_a_layer_of_a_mask_and_no_gradient():
    report = check(lambda q, k, v: plain_torch.attention(q, k, v).detach(), library="torch")
    assert report.faults[0] == "gradient-detached"


def test_integers_taken_for_a_mask():
    def attention(q, k, v, visible=None):
        added = 0 if visible is None else np.where(visible, 0, -np.inf) if visible.dtype == bool else visible
        return plain_numpy.attention(q, k, v, None if visible is None else added == 0)

    assert "mask-of-integers" in check(attention).faults


def test_rotary_pairs_are_told_apart_in_both_orders():
    for right, wrong in ((Pairs.HALVES, Pairs.INTERLEAVED), (Pairs.INTERLEAVED, Pairs.HALVES)):

        def attention(q, k, v, visible=None, order=wrong):
            places = np.arange(q.shape[-2]), np.arange(k.shape[-2])
            return plain_numpy.attention(*Rotary(10000.0, order)(q, k, places), v, visible)

        report = check(attention, prepare=Rotary(10000.0, right), d_k=10)
        assert report.explained == ["rotary-pairs"]


def test_against_a_source_whose_matrices_nobody_knows():
    """What explains the other's output from our matrices, in reverse, is the fault of loading."""
    torch.manual_seed(0)
    source = plain_torch.Layer(15, 5)
    for parameter in source.parameters():
        nn.init.normal_(parameter)
    loaded = plain_torch.Layer(15, 5)
    loaded.load_state_dict(source.state_dict())
    fused = torch.cat([source.W_q.weight, source.W_k.weight, source.W_v.weight]).detach()
    bias = torch.cat([source.W_q.bias, source.W_k.bias, source.W_v.bias]).detach()
    by_head = [x.unflatten(0, (3, 5, 3)).transpose(0, 1).flatten(0, 2).chunk(3) for x in (fused, bias)]
    for name, W, b in zip("qkv", *by_head, strict=True):
        loaded.get_submodule(f"W_{name}").weight.data, loaded.get_submodule(f"W_{name}").bias.data = W, b
    unknown = nn.ModuleDict({"inner": source, "extra": nn.Linear(1, 1)})
    unknown.forward = source.double().forward
    for other in (source, unknown):
        report = check(loaded, against=other)
        assert report.explained == ["fused-head-by-head"]
        assert report.failures[0].name == "the output is that of the other layer"
    assert check(plain_torch.PackedLayer(15, 5), against=plain_torch.PackedLayer(15, 5)).faults[0] == "differs"


def test_a_layer_and_given_matrices():
    layer = TorchAttention(12, 6)
    own = layer.to_weights()
    for given in (own, own.T, lambda module: module.to_weights()):
        assert not check(layer, weights=given).failures
    assert "differs" in check(layer, weights=weights()).faults


def test_layers_whose_heads_nobody_counts_are_tested_for_what_holds_of_any():
    class Uncounted(plain_torch.Layer):
        pass

    layer = Uncounted(15, 3)
    layer.n, layer.h = layer.h, 2.5  # no number of heads
    layer.split = lambda tokens, h: tokens.unflatten(-1, (-1, 5)).transpose(1, 2)
    layer.h = layer.h_kv
    layer.h = 4  # does not divide
    layer.h_kv = 4
    report = check(layer)
    assert "pass weights=" in report.untested["the output is the formula's"]
    assert not report.failures


def test_faults_that_cannot_be_in_a_layer_are_left_out():
    """A layer without biases, whose matrices are not square, and whose own scale is wrong."""
    report = check(MultiHeadAttention(weights(h_kv=2, d_k=5, d_v=7, bias=False), scale=1.0))
    assert report.explained == ["scale-missing"]


def test_a_module_without_a_mask():
    class Unmasked(plain_torch.PackedLayer):
        def forward(self, x):
            return super().forward(x)

    report = check(Unmasked(15, 3))
    assert not report.failures, report
    assert "train() and eval() agree" in report.held


def test_a_function_without_a_mask_has_no_steps_to_be_compared():
    report = check(lambda q, k, v: plain_numpy.attention(q, k, v), step=lambda *tokens: None)
    assert report.untested["steps with a cache are the full pass"] == "it takes no mask"


def test_without_torch_arrays_alone_are_tried(monkeypatch):
    def attention(q, k, v):
        raise RuntimeError("no luck")

    monkeypatch.delitem(sys.modules, "torch")
    assert str(check(kernel(row.attention))) == "0 of 34 properties fail, 0 remarks, 10 not tested"
    with pytest.raises(TypeError, match=r"numpy float32: RuntimeError: no luck$"):
        check(attention)


def test_assert_attention_fails_with_the_report():
    assert_attention(plain_numpy.attention)
    with pytest.raises(AssertionError, match="One fault explains every number:\\n    scale-missing"):
        assert_attention(unscaled)
    names = tuple(finding.name for finding in check(unscaled).failures)
    assert_attention(unscaled, allow=names)


class Wrapped(torch.nn.Module):
    """A layer in a module with a parameter more, so that no layout fits it."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.gain = inner, torch.nn.Parameter(torch.ones(1))

    def forward(self, x, visible=None):
        return self.inner(x, x, x, visible)


def matrices(wrapped):
    return weights_of(wrapped.inner)


def test_what_other_matrices_would_make_up_for_is_seen_where_these_are_known():
    wrapped = Wrapped(faults.broken(faults.find("scale-d-model", "layer"))["Layer"](d_model=15, h=3))
    report = check(wrapped)
    assert not report.failures
    assert report.untested["the output is the formula's"] == UNKNOWN
    assert "a wrong scale, or a wrong order of heads or of\ngroups, cannot be seen" in str(report)
    report = check(wrapped, weights=matrices)
    assert report.faults[0] == "scale-d-model"
    assert "cannot be seen" not in str(report)


def test_the_check_of_the_command_line(tmp_path, monkeypatch, capsys):
    source = (
        "import numpy as np\n"
        "from mha_tutorial import layouts\n"
        "from mha_tutorial.examples import plain_numpy, plain_torch\n"
        "def attend(q, k, v, mask=None):\n"
        "    return plain_numpy.attention(q, k, v, None if mask is None else ~mask)\n"
        "class Layer(plain_torch.PackedLayer):\n"
        "    def __init__(self):\n"
        "        super().__init__(15, 3)\n"
        "class Twice(Layer):\n"
        "    def forward(self, x, visible=None):\n"
        "        return 2 * super().forward(x, visible)\n"
        "def matrices(layer):\n"
        "    packed, last = layer.packed, layer.last\n"
        "    stored = {'in_proj_weight': packed.weight, 'in_proj_bias': packed.bias}\n"
        "    stored |= {'out_proj.weight': last.weight, 'out_proj.bias': last.bias}\n"
        "    return layouts.load(stored, 'torch', layer.h)\n"
    )
    (tmp_path / "mine_to_check.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert cli.main(["check", "mine_to_check:attend", "--ignore"]) == 0
    assert capsys.readouterr().out.startswith("0 of 34 properties fail")
    assert cli.main(["check", "mine_to_check:Layer", "--weights", "mine_to_check:matrices"]) == 0
    assert "cannot be seen" not in capsys.readouterr().out
    assert cli.main(["check", "mine_to_check:Twice"]) == 0  # its output projection could be twice as large
    assert "cannot be seen" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        cli.main(["check", "mine_to_check:Twice", "--weights", "mine_to_check:matrices"])
    assert "✗ one key gives its value" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        cli.main(["check", "mine_to_check:attend"])
    assert "mask-inverted" in capsys.readouterr().out
    assert cli.main(["check", "mine_to_check:missing"]) == 2
    assert "mine_to_check has no missing" in capsys.readouterr().err
    assert cli.main(["check", "mine_to_check"]) == 2
    assert "must be a module and a name in it" in capsys.readouterr().err


def test_the_checker_does_not_import_torch():
    code = (
        "import sys, numpy as np\n"
        "from mha_tutorial.check import check\n"
        "from mha_tutorial.examples.plain_numpy import attention\n"
        "report = check(attention)\n"
        "assert not report.failures, report\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_adapters_lay_masks_out_as_the_libraries_want_them():
    q, k, v = (np.full((2, n, 4), 1.0) for n in (3, 5, 5))
    visible, seen = np.ones((3, 5), bool), []

    def layer(*tokens, **masks):
        seen.append((*tokens, *masks.values()))
        return torch.ones(1)

    for adapter in (adapters.keras, adapters.flax, adapters.equinox):
        adapted = adapter(layer)
        adapted(q, k, v, visible)
        adapted(q, k, v)
    shapes = [[None if x is None else x.shape for x in call] for call in seen]
    assert shapes[0] == [(2, 3, 4), (2, 5, 4), (2, 5, 4), (2, 3, 5)]
    assert shapes[2] == [(2, 3, 4), (2, 5, 4), (2, 5, 4), (1, 1, 3, 5)]
    assert shapes[4] == shapes[5] == [(3, 4), (5, 4), (5, 4), (3, 5)]
    assert shapes[1][3] is shapes[3][3] is shapes[6][3] is None


def test_attention_of_transformers_gets_an_additive_mask():
    class Attention(plain_torch.PackedLayer):
        config = SimpleNamespace(num_attention_heads=3, hidden_size=15)
        alone = False

        def forward(self, hidden_states, attention_mask, places):
            assert attention_mask.shape[-2:] == (hidden_states.shape[1],) * 2
            assert places == hidden_states.shape
            output = super().forward(hidden_states, attention_mask == 0)
            return output if self.alone else (output, None)

    for alone in (False, True):
        layer = Attention(15, 3)
        layer.alone = alone
        report = check(adapters.transformers(layer, places=lambda x: x.shape))
        assert not report.failures, report


def test_every_fault_that_is_named_is_described():
    named = {name for one in PROPERTIES for name in one.faults} | {name.split()[0] for name in IMITATIONS}
    named |= {faulty.fault for faulty in faults.FAULTY} - {None}
    assert named <= set(FAULTS)
    for fault in FAULTS.values():
        assert all(fault)


def test_a_fault_that_nobody_has_is_not_found():
    with pytest.raises(ValueError, match="no faulty version has the fault 'scale-missing'"):
        faults.find("scale-missing", "causal")


def test_a_line_that_is_not_there_breaks_nothing():
    with pytest.raises(ValueError, match=re.escape("plain_numpy has no 'no such line'")):
        faults.broken(faults.Faulty("attention", "no such line", "", None))


# --- matrices with names of their own -----------------------------------------------------------------------------


class Own(nn.Module):
    """A right layer, with names of its own, its three inputs in any order, in one matrix or in three."""

    def __init__(self, order="qkv", fused=False, bias=True, d_model=30, h=6, h_kv=6):
        super().__init__()
        self.heads, self.order, self.fused, self.d = h, order, fused, d_model // h
        self.rows = {"q": h * self.d, "k": h_kv * self.d, "v": h_kv * self.d}
        if fused:
            self.first = nn.Linear(d_model, sum(self.rows.values()), bias=bias)
        else:
            self.each = nn.ModuleList([nn.Linear(d_model, self.rows[name], bias=bias) for name in order])
        self.last = nn.Linear(h * self.d, d_model, bias=bias)

    def forward(self, x, visible=None):
        parts = self.first(x).chunk(3, dim=-1) if self.fused else [one(x) for one in self.each]
        split = {
            name: y.unflatten(-1, (-1, self.d)).transpose(1, 2) for name, y in zip(self.order, parts, strict=True)
        }
        k, v = (self.shared(split[name]) for name in "kv")
        scores = self.scores(split["q"], k)
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        return self.last((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(-2))

    def shared(self, x):
        return x.repeat_interleave(self.heads // x.shape[1], dim=1)

    def scores(self, q, k):
        return q @ k.mT / self.d**0.5


class Strided(Own):
    def shared(self, x):
        return x.repeat(1, self.heads // x.shape[1], 1, 1)


class ScaledByTheModel(Own):
    def scores(self, q, k):
        return q @ k.mT / (self.heads * self.d) ** 0.5


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("order", ["qkv", "kqv", "vkq"])
def test_matrices_of_any_order_are_recognised_and_nothing_is_said_against_them(order, fused, bias):
    report = check(Own(order, fused, bias))
    assert not report.failures, report
    assert "the output is the formula's" in report.held
    names = {"q": "queries", "k": "keys", "v": "values"}
    assert report.reading.endswith(", ".join(names[one] for one in order))
    assert f"Its matrices were recognised: {report.reading}." in str(report)


def test_matrices_of_shared_heads_are_recognised():
    report = check(Own(h_kv=2))
    assert not report.failures
    assert report.reading == "layout 'mha-tutorial', queries, keys, values"


@pytest.mark.parametrize(
    ("made", "fault"), [(Strided(h_kv=3), "groups-strided"), (ScaledByTheModel(), "scale-d-model")]
)
def test_a_fault_is_named_though_nobody_says_which_matrix_is_which(made, fault):
    report = check(made)
    assert report.explained == [fault]
    assert report.faults[0] == fault


def test_matrices_that_no_reading_explains_stay_unknown():
    class Odd(Own):
        def scores(self, q, k):
            return torch.tanh(q @ k.mT)

    report = check(Odd())
    assert not report.reading
    assert not report.failures
    assert "cannot be seen" in str(report)


def test_a_function_for_the_matrices_that_fails_says_so():
    with pytest.raises(
        ValueError, match=r"weights= could not take the matrices: AttributeError: .* no attribute 'qkv'"
    ):
        check(Own(), weights=lambda layer: layer.qkv)
