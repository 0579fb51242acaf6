"""Decoding with a cache: at every position the result of one causal pass over the whole text."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mha_tutorial
from mha_tutorial import Causal, Documents, Padding, Prefix, RowWeights, Trace, Window
from mha_tutorial.analysis import counting
from mha_tutorial.examples import decoding
from mha_tutorial.reference import column, row
from mha_tutorial.torch import KVCache, MultiHeadAttention, fused, naive
from mha_tutorial.torch.positions import Rotary
from tests.helpers import D_K, D_MODEL, D_V, GROUPS, assert_close
from tests.torch_helpers import BLOCKED, array, one_thread, tensors  # noqa: F401

B, N = 2, 13
CHUNKS = {"one by one": [1] * N, "a prompt, then tokens": [7] + [1] * 6, "chunks": [3, 1, 0, 5, 4]}
compiling = pytest.mark.filterwarnings(
    "ignore:.*script_method.*:DeprecationWarning", "ignore:.*should not be instantiated:DeprecationWarning"
)


def turn(queries, keys, positions):
    """Depends on the place of each token and on each of its numbers; for arrays and for tensors."""

    def turned(x):
        cos = np.cos(np.asarray(positions)[..., None, :, None] + np.arange(x.shape[-1]))
        return x * (cos if isinstance(x, np.ndarray) else torch.tensor(cos))

    return turned(queries), turned(keys)


def draw(rng, h=6, h_kv=2):
    return RowWeights.random(rng, D_MODEL, h, h_kv, d_k=D_K, d_v=D_V)


def some_tokens(rng, b=B, n=N):
    return rng.normal(size=(b, n, D_MODEL))


def cut(x, sizes, axis=-2):
    """The chunks of a text, and how many tokens are read with each of them."""
    ends = np.cumsum(sizes).tolist()
    return [(x.narrow(axis, end - size, size), end) for size, end in zip(sizes, ends, strict=True)]


def read(layer, x, cache, sizes, **options):
    """All chunks through the cache, one after the other, as one text."""
    return torch.cat([layer(part, cache=cache, **options) for part, _ in cut(x, sizes)], dim=-2)


def caches(layer, b=B, **options):
    """A cache with room for more than the text, and one of just the size."""
    return [KVCache.for_layer(layer, b, capacity=capacity, **options) for capacity in (N + 5, N)]


# --- a cached pass is the whole pass ------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("kernel", BLOCKED)
def test_cache_is_the_whole_pass(kernel, h, h_kv, sizes, rng):
    weights, x = draw(rng, h, h_kv), some_tokens(rng)
    layer = MultiHeadAttention.from_weights(weights, kernel=BLOCKED[kernel])
    expected = row.multi_head(x, x, x, weights, visible=Causal()).output
    for cache in caches(layer):
        assert_close(array(read(layer, tensors(x), cache, sizes)), expected)
        assert cache.stored == N


OPTIONS = {
    "nothing": {},
    "prepare": {"prepare": turn},
    "scale": {"scale": -0.3},
    "extra keys": {"extra_keys": True},
    "all of them": {"prepare": turn, "scale": 2.5, "extra_keys": True},
}
RULES = {
    "none": None,
    "causal": Causal("bottom-right"),
    "window": Window(4) & Causal(),
    "documents": Documents([6, 2, 5]) & Causal(),
    "near or far": (Window(2) | ~Window(4)) & Causal(),
    "array": "array",
}


@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["capacity", "ring"])
def test_cache_takes_every_option(kind, options, rule, sizes, rng):
    """The mask, the bias and the positions that a pass over the whole text takes, cut to what is read so far."""
    weights, x, bias = draw(rng), some_tokens(rng), rng.normal(size=(6, N, N))
    given, visible = dict(OPTIONS[options]), RULES[rule]
    if "extra_keys" in given:
        given["extra_keys"] = rng.normal(size=(2, 3, D_K)), rng.normal(size=(2, 3, D_V))
    if rule == "array":
        visible = rng.random((B, 1, N, N)) < 0.6
        visible[:, :, 4] = False
    whole = (Window(4) & Causal() if kind == "ring" else Causal()).rows(N, N)
    if visible is not None:
        whole = whole & (visible if rule == "array" else visible.rows(N, N))
    expected = mha_tutorial.MultiHeadAttention(weights, **given)(x, visible=whole, bias=bias)
    if "extra_keys" in given:
        given["extra_keys"] = tensors(*given["extra_keys"])
    layer = MultiHeadAttention.from_weights(weights, **given)
    cache = KVCache.for_layer(layer, B, **({"window": 4, "chunk": 7} if kind == "ring" else {"capacity": N}))
    for part, end in cut(tensors(x), sizes):
        n = part.shape[1]
        seen = torch.tensor(visible[..., end - n : end, :end]) if rule == "array" else visible
        output = layer(part, visible=seen, bias=tensors(bias[:, end - n : end, :end]), cache=cache)
        assert_close(array(output), expected[:, end - n : end])


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
def test_cache_with_any_batch_axes(batch, rng):
    layer, x = MultiHeadAttention.from_weights(draw(rng), prepare=turn), rng.normal(size=(*batch, 5, D_MODEL))
    visible = (rng.random((*batch, 1, 5, 5)) < 0.6) & np.tri(5, dtype=bool)
    bias = rng.normal(size=(6, 5, 5))
    given = {"visible": torch.tensor(visible), "bias": tensors(bias)}
    expected = layer.trace(tensors(x), **given)
    trace = layer.trace(tensors(x), **given, cache=KVCache.for_layer(layer, math.prod(batch), capacity=5))
    for step in Trace._fields:
        assert_close(array(getattr(trace, step)), array(getattr(expected, step)))
    lengths = rng.integers(2, 6, size=batch)
    cache = KVCache.for_layer(layer, math.prod(batch), capacity=5)
    output = array(layer(tensors(x), visible=Padding(lengths), cache=cache))
    assert cache.lengths.tolist() == lengths.reshape(-1).tolist()
    expected = array(layer(tensors(x), visible=Causal()))
    for entry in np.ndindex(*batch):
        assert_close(output[entry][: lengths[entry]], expected[entry][: lengths[entry]])


def test_cache_traces_what_is_stored(rng):
    """Keys are stored as `prepare` left them; what the trace holds is not written over."""
    layer, x = MultiHeadAttention.from_weights(draw(rng), prepare=turn), tensors(some_tokens(rng))
    whole, cache = layer.trace(x, visible=Causal()), KVCache.for_layer(layer, B, capacity=N)
    first, second = (layer.trace(part, cache=cache) for part, _ in cut(x, [9, 4]))
    for step in ("keys", "values"):
        assert_close(array(getattr(second, step)), array(getattr(whole, step)))
    assert torch.equal(cache.keys, second.keys)
    assert_close(array(second.attention), array(whole.attention[..., 9:, :]))
    cache.keys.zero_()
    assert_close(array(first.keys), array(whole.keys[..., :9, :]))


def test_cache_positions_of_ones_own(rng):
    layer, x = MultiHeadAttention.from_weights(draw(rng), prepare=turn), tensors(some_tokens(rng))
    places = torch.arange(N) * 3 + torch.tensor([[0], [5]])
    expected, cache = layer(x, visible=Causal(), positions=places), KVCache.for_layer(layer, B, capacity=N)
    for part, end in cut(x, [6, 1, 6]):
        first = end - part.shape[1]
        output = layer(part, positions=places[:, first:end], cache=cache)
        assert_close(array(output), array(expected[:, first:end]))


@pytest.mark.parametrize("room", [{"capacity": N}, {"window": 4, "chunk": 7}], ids=["capacity", "ring"])
def test_cache_turns_each_key_once(room, rng):
    """Rotary positions, which go on from the tokens stored, in groups and in every chunk."""
    weights, x = RowWeights.random(rng, D_MODEL, 6, 2, d_k=4, d_v=D_V), tensors(some_tokens(rng))
    layer = MultiHeadAttention.from_weights(weights, prepare=Rotary(base=100.0))
    expected = layer(x, visible=Causal() if "capacity" in room else Window(4) & Causal())
    for sizes in CHUNKS.values():
        assert_close(array(read(layer, x, KVCache.for_layer(layer, B, **room), sizes)), array(expected))


def test_cache_records_no_gradient(rng):
    layer = MultiHeadAttention.from_weights(draw(rng))
    cache, x = KVCache.for_layer(layer, B, capacity=N), tensors(some_tokens(rng)).requires_grad_()
    assert not layer(x[:, :4], cache=cache).requires_grad
    assert not layer.trace(x[:, 4:], cache=cache).output.requires_grad
    assert not cache.keys.requires_grad


# --- texts of unequal lengths -------------------------------------------------------------------------------------

FEEDS = {  # how many tokens of each text are read at a time
    "a prompt, then tokens": [(5, 2, 4), (1, 1, 1), (1, 1, 1), (1, 1, 1)],
    "padded chunks": [(3, 1, 4), (0, 3, 2), (1, 1, 1), (2, 4, 1), (1, 1, 1)],
}
ROOMS = {"capacity": {"capacity": 12}, "ring": {"window": 3, "chunk": 5}}


def fed(texts, feed, side):
    """For each pass the tokens of all texts, padded with NaN, and how many of each are real; and where they end."""
    ends = np.cumsum(feed, axis=0)
    for lengths, last in zip(np.array(feed), ends, strict=True):
        padded = np.full((len(texts), lengths.max(), D_MODEL), np.nan)
        for entry, (text, length, end) in enumerate(zip(texts, lengths, last, strict=True)):
            part = text[end - length : end]
            padded[entry, :length] = part
            if side == "left":
                padded[entry] = np.roll(padded[entry], len(padded[entry]) - length, axis=0)
        yield padded, lengths, last


@pytest.mark.parametrize("kernel", ["naive", "fused", "online"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("feed", FEEDS.values(), ids=FEEDS)
@pytest.mark.parametrize("room", ROOMS)
def test_cache_of_unequal_lengths(room, feed, side, kernel, rng):
    """Each text gets what it gets alone; padding, NaN here, is not stored and takes no position."""
    layer = MultiHeadAttention.from_weights(draw(rng), kernel=BLOCKED[kernel], prepare=turn)
    texts = rng.normal(size=(3, 12, D_MODEL))
    visible = Causal() if room == "capacity" else Window(3) & Causal()
    alone = [array(layer(tensors(text), visible=visible)) for text in texts]
    cache = KVCache.for_layer(layer, 3, **ROOMS[room])
    for padded, lengths, ends in fed(texts, feed, side):
        n = padded.shape[1]
        if (lengths == n).all():
            output = array(layer(tensors(padded), cache=cache))
        else:
            output = array(layer(tensors(padded), visible=Padding(lengths, side) & Causal(), cache=cache))
        for entry, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            real = output[entry, n - length :] if side == "left" else output[entry, :length]
            assert_close(real, alone[entry][end - length : end])
        assert cache.lengths.tolist() == ends.tolist()
        assert cache.stored == ends.max()


@pytest.mark.parametrize("room", ROOMS)
def test_cache_of_unequal_lengths_with_masks(room, rng):
    """Columns of masks and biases are positions of each text."""
    layer, texts = MultiHeadAttention.from_weights(draw(rng)), rng.normal(size=(3, 12, D_MODEL))
    bias, mask = rng.normal(size=(3, 6, 12, 12)), rng.random((3, 1, 12, 12)) < 0.6
    visible = torch.tensor(mask & (Causal() if room == "capacity" else Window(3) & Causal()).rows(12, 12))
    alone = array(layer(tensors(texts), visible=visible, bias=tensors(bias)))
    cache = KVCache.for_layer(layer, 3, **ROOMS[room])
    for number, (padded, lengths, ends) in enumerate(fed(texts, FEEDS["a prompt, then tokens"], "right")):
        n, total = padded.shape[1], cache.stored + padded.shape[1]
        rows = (ends - lengths)[:, None] + np.arange(n)  # of each text
        entry = np.arange(3)[:, None]
        options = {"bias": tensors(bias[entry, :, rows, :total].swapaxes(1, 2))}
        if number:  # structured masks and arrays do not mix
            options["visible"] = torch.tensor(mask[entry, :, rows, :total].swapaxes(1, 2))
        else:
            options["bias"] = options["bias"].masked_fill(
                torch.tensor(~mask[entry, :, rows, :total].swapaxes(1, 2)), -torch.inf
            )
            options["visible"] = Padding(lengths)
        output = array(layer(tensors(padded), cache=cache, **options))
        for text, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            assert_close(output[text, :length], alone[text, end - length : end])


# --- a ring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3, 20])
@pytest.mark.parametrize("chunk", [1, 4])
def test_cache_of_a_window_is_a_ring(window, chunk, rng):
    layer, x = MultiHeadAttention.from_weights(draw(rng), prepare=turn), tensors(rng.normal(size=(B, 40, D_MODEL)))
    cache = KVCache.for_layer(layer, B, window=window, chunk=chunk)
    assert cache.keys.shape[2] == cache.values.shape[2] == window + chunk - 1
    output = read(layer, x, cache, [chunk] * 5 + [1] * 3 + [chunk] * ((40 - 3) // chunk - 5))
    expected = layer(x, visible=Window(window) & Causal())[:, : output.shape[1]]
    assert_close(array(output), array(expected))


# --- going back, and other beams ----------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [{"capacity": 13}, {"window": 4, "chunk": 5}], ids=["capacity", "ring"])
def test_cache_forgets_rejected_tokens(room, rng):
    layer, x = MultiHeadAttention.from_weights(draw(rng), prepare=turn), tensors(some_tokens(rng))
    rejected = torch.full((B, 3, D_MODEL), torch.nan, dtype=torch.float64)
    visible = Causal() if "capacity" in room else Window(4) & Causal()
    expected, cache = layer(x, visible=visible), KVCache.for_layer(layer, B, **room)
    for part, end in cut(x, [4, 1, 3, 2]):
        assert_close(array(layer(part, cache=cache)), array(expected[:, end - part.shape[1] : end]))
        layer(rejected, cache=cache)
        cache.rollback(2)
        cache.rollback(1)
        assert cache.stored == end
    layer(x[:, 10:], cache=cache)
    cache.rollback([0, 2])
    assert cache.lengths.tolist() == [13, 11]
    cache.rollback([2, 0])
    assert cache.missing is None
    assert_close(array(layer(x[:, 11:], cache=cache)), array(expected[:, 11:]))
    if "capacity" in room:
        cache.rollback(13)
        assert_close(array(layer(x, cache=cache)), array(expected))


def test_cache_of_a_ring_goes_back_as_far_as_its_chunk(rng):
    layer, x = MultiHeadAttention.from_weights(draw(rng)), tensors(some_tokens(rng))
    cache = KVCache.for_layer(layer, B, window=4, chunk=3)
    read(layer, x, cache, [3, 3, 3])
    with pytest.raises(ValueError, match=r"forget \[4, 4\] tokens: the next one would see 3 before it"):
        cache.rollback(4)
    cache.rollback(3)
    with pytest.raises(ValueError, match=r"forget \[1, 0\] tokens: .* chunk=3 can go back 3 tokens"):
        cache.rollback([1, 0])
    expected = layer(x, visible=Window(4) & Causal())
    assert_close(array(layer(x[:, 6:9], cache=cache)), array(expected[:, 6:9]))


@pytest.mark.parametrize("room", ROOMS)
def test_cache_follows_beams(room, rng):
    layer, x = MultiHeadAttention.from_weights(draw(rng), prepare=turn), tensors(rng.normal(size=(3, 9, D_MODEL)))
    cache = KVCache.for_layer(layer, 3, **ROOMS[room])
    visible = Causal() if room == "capacity" else Window(3) & Causal()
    layer(x[:, :5], visible=Padding([5, 3, 4]), cache=cache)
    beams = [2, 0, 0]
    cache.reorder(torch.tensor(beams))
    assert cache.lengths.tolist() == [4, 5, 5]
    output = layer(x[:, 5:], cache=cache)
    for entry, beam in enumerate(beams):
        text = torch.cat([x[beam, : [5, 3, 4][beam]], x[entry, 5:]])
        assert_close(array(output[entry]), array(layer(text, visible=visible)[-4:]))
    cache.reorder([1, 1, 2])
    assert cache.missing is None
    before = cache.keys.clone()
    cache.reorder([2, 0, 1])
    used = slice(cache.stored if room == "capacity" else None)
    assert torch.equal(cache.keys[:, :, used], before[[2, 0, 1]][:, :, used])


# --- what does not matter -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 1e300])
@pytest.mark.parametrize("kernel", BLOCKED)
@pytest.mark.parametrize("room", ROOMS)
def test_cache_slots_not_written_do_not_matter(room, kernel, garbage, rng):
    layer, x = MultiHeadAttention.from_weights(draw(rng), kernel=BLOCKED[kernel]), tensors(some_tokens(rng, 3, 8))
    clean, dirty = (KVCache.for_layer(layer, 3, **ROOMS[room]) for _ in range(2))
    dirty.keys.fill_(garbage)
    dirty.values.fill_(garbage)
    first, again = (layer(x[:, :4], visible=Padding([4, 3, 1]), cache=cache) for cache in (clean, dirty))
    for entry, length in enumerate((4, 3, 1)):
        assert_close(array(again[entry, :length]), array(first[entry, :length]))
    for part, _ in cut(x[:, 4:], [1, 3]):
        assert_close(array(layer(part, cache=dirty)), array(layer(part, cache=clean)))


# --- what a step costs --------------------------------------------------------------------------------------------


class Moved(TorchDispatchMode):
    """Counts the numbers that operations make or write meanwhile; views make none."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given, found = ([x for x in tree_leaves(some) if isinstance(x, torch.Tensor)] for some in (args, result))
        there = {x.untyped_storage().data_ptr() for x in given}
        made = [x for x in found if x.untyped_storage().data_ptr() not in there]
        written = given[1:] if function._schema.is_mutable else made  # into a part of what there is
        self.numbers += sum(x.numel() for x in written)
        return result


@pytest.mark.parametrize("padded", [False, True])
def test_cache_steps_cost_the_same_whatever_is_preallocated(padded, rng):
    """The kernel gets the tokens stored, as views, and no operation makes more numbers in a larger cache."""
    sizes, x = [], tensors(some_tokens(rng))

    def watched(q, k, v, **options):
        sizes.append((k.shape[2], v.shape[2]))
        assert k.untyped_storage().data_ptr() == cache.keys.untyped_storage().data_ptr()
        return naive(q, k, v, **options)

    moved, layer = [], MultiHeadAttention.from_weights(draw(rng), kernel=watched)
    for capacity in (N, 10_000):
        cache = KVCache.for_layer(layer, B, capacity=capacity)
        layer(x[:, :9], cache=cache, visible=Padding([9, 7]) if padded else None)
        with Moved() as counted:
            layer(x[:, 9:10], cache=cache)
        moved.append(counted.numbers)
    assert sizes == [(9, 9), (10, 10)] * 2
    assert moved[0] == moved[1]
    assert moved[0] > 10 * B * D_MODEL  # it did count


def test_cache_steps_of_a_ring_cost_the_same_however_long_the_text(rng):
    layer, x, moved = MultiHeadAttention.from_weights(draw(rng)), tensors(some_tokens(rng, n=60)), []
    cache = KVCache.for_layer(layer, B, window=4, chunk=2)
    for part, _ in cut(x, [1] * 60):
        with Moved() as counted:
            layer(part, cache=cache)
        moved.append(counted.numbers)
    assert len(set(moved)) == 1


@compiling
@pytest.mark.no_cover
@pytest.mark.parametrize("prompt", ["none", "eager", "padded", "compiled"])
@pytest.mark.parametrize("room", [{"capacity": 100}, {"window": 4, "chunk": 5}], ids=["capacity", "ring"])
def test_cache_compiled_once_for_64_steps(room, prompt, rng):
    torch._dynamo.reset()
    layer, x = MultiHeadAttention.from_weights(draw(rng)), tensors(some_tokens(rng, n=70))
    graphs = []

    def counting_backend(graph, inputs):
        graphs.append(graph)
        backend = "aot_eager" if prompt == "none" else "eager"  # the slower one sees to what is written in place
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(layer, fullgraph=True, backend=counting_backend)
    eager, cache = (KVCache.for_layer(layer, B, **room) for _ in range(2))
    first = 1 if prompt == "none" else 5
    for either, run in ((eager, layer), (cache, compiled if prompt in ("none", "compiled") else layer)):
        run(x[:, :first], cache=either, visible=Padding([5, 3]) if prompt == "padded" else None)
    before = len(graphs)
    for end in range(first + 1, first + 65):
        part = x[:, end - 1 : end]
        assert_close(array(compiled(part, cache=cache)), array(layer(part, cache=eager)))
    assert len(graphs) - before == (0 if "window" in room and prompt == "none" else 1)  # a ring is as long as ever
    assert cache.stored == first + 64


# --- bad input ----------------------------------------------------------------------------------------------------


def of_another_size(**sizes):
    return KVCache(**{"b": 2, "h_kv": 2, "d_k": D_K, "d_v": D_V, "capacity": 6, "dtype": torch.float64} | sizes)


X = torch.zeros(2, 3, D_MODEL, dtype=torch.float64)
REFUSED = {
    "no cache": ({"cache": 7}, TypeError, "cache must be a KVCache, got int"),
    "keys": ({"keys": X.clone()}, ValueError, "keys and values are left out with it"),
    "values": ({"values": X.clone()}, ValueError, "keys and values are left out with it"),
    "texts": (
        {"cache": of_another_size(b=3)},
        ValueError,
        r"holds 3 texts, got 2, with tokens of shape \(2, 3, 11\)",
    ),
    "heads": (
        {"cache": of_another_size(h_kv=1)},
        ValueError,
        "holds keys of 1 heads of width 13, got 2 of width 13",
    ),
    "width": (
        {"cache": of_another_size(d_v=5)},
        ValueError,
        "holds values of 2 heads of width 5, got 2 of width 17",
    ),
    "type": (
        {"cache": of_another_size(dtype=torch.float32)},
        TypeError,
        r"holds keys in torch\.float32, got torch\.float64",
    ),
    "device": ({"cache": of_another_size(device="meta")}, ValueError, "holds keys on meta, got some on cpu"),
    "overflow": ({}, ValueError, "3 new tokens do not fit behind 4 stored: the capacity is 6 tokens"),
    "ring": (
        {"cache": of_another_size(capacity=None, window=4, chunk=2)},
        ValueError,
        "3 new tokens are more than the 2 that this ring takes at a time",
    ),
    "tokens": ({"queries": X[..., 1:]}, ValueError, r"queries must be \(\.\.\., tokens, 11\)"),
    "visible": (
        {"queries": X[:, :2], "visible": torch.ones(2, 2).bool()},
        ValueError,
        r"does not broadcast .* 2, 6\)",
    ),
    "bias": (
        {"queries": X[:, :2], "bias": torch.ones(2, 5)},
        ValueError,
        r"bias of shape \(2, 5\) does not broadcast",
    ),
    "bias type": (
        {"queries": X[:, :2], "bias": torch.ones(2, 6).bool()},
        TypeError,
        "bias must be a floating tensor",
    ),
    "mask type": (
        {"queries": X[:, :2], "visible": torch.ones(2, 6)},
        TypeError,
        "visible must be a boolean tensor",
    ),
    "mask kind": (
        {"queries": X[:, :2], "visible": "causal"},
        TypeError,
        "visible must be a boolean tensor .* got str",
    ),
    "padding": (
        {"queries": X[:, :2], "visible": Padding([3, 2])},
        ValueError,
        "lengths must not exceed the 2 keys",
    ),
    "two": ({"queries": X[:, :2], "visible": Padding(2) & Padding(1)}, ValueError, "Padding must be given once"),
    "not": ({"queries": X[:, :2], "visible": Causal() & ~Padding(2)}, ValueError, "joined to masks by & only"),
    "prefix": ({"queries": X[:, :2], "visible": Causal() | Prefix(2)}, ValueError, "Prefix lets a token see later"),
    "window": (
        {"cache": of_another_size(capacity=None, window=4, chunk=3), "visible": Window(5) & Causal()},
        ValueError,
        r"Window\(size=5, align=None\) sees more than the 4 tokens",
    ),
    "prepare": (
        {"queries": X[:, :2], "prepare": lambda q, k, _: (q, k[..., 1:])},
        ValueError,
        "must return keys of",
    ),
    "kernel": ({"queries": X[:, :2], "kernel": lambda *_, **__: 1 / 0}, ZeroDivisionError, "division"),
}


@pytest.mark.parametrize(("given", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_cache_is_as_it_was_after_an_error(given, error, message, rng):
    layer, x = MultiHeadAttention.from_weights(draw(rng)), tensors(some_tokens(rng))
    own, expected = KVCache.for_layer(layer, B, capacity=6), layer(x, visible=Causal())
    layer(x[:, :4], cache=own)
    given = {"queries": X, "cache": own} | given
    layer.prepare = given.pop("prepare", None)
    layer.kernel = given.pop("kernel", layer.kernel)
    with pytest.raises(error, match=message):
        layer(**given)
    layer.prepare, layer.kernel = None, fused
    assert own.stored == 4
    assert_close(array(layer(x[:, 4:6], cache=own)), array(expected[:, 4:6]))


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ({"capacity": None}, ValueError, "give capacity, .* or window, .* got capacity=None and window=None"),
        ({"window": 3}, ValueError, "got capacity=6 and window=3"),
        ({"capacity": 0}, ValueError, "KVCache: capacity must be at least 1, got 0"),
        ({"capacity": None, "window": 2.0}, TypeError, r"KVCache: window must be a whole number, got 2\.0"),
        ({"capacity": None, "window": 2, "chunk": 0}, ValueError, "KVCache: chunk must be at least 1"),
        ({"b": True}, TypeError, "KVCache: b must be a whole number"),
        ({"d_v": -1}, ValueError, "KVCache: d_v must be at least 1"),
    ],
)
def test_cache_sizes_that_make_none(sizes, error, message):
    with pytest.raises(error, match=message):
        of_another_size(**sizes)


@pytest.mark.parametrize(
    ("method", "given", "error", "message"),
    [
        ("rollback", 3, ValueError, r"cannot forget \[3, 3\] tokens of texts of which \[2, 2\] are stored"),
        ("rollback", [0, -1], ValueError, r"cannot forget \[0, -1\] tokens"),
        ("rollback", [1, 1, 1], ValueError, r"one number for each of 2 texts, got shape \(3,\)"),
        ("rollback", 1.0, TypeError, r"rollback: expected whole numbers, got torch\.float32"),
        ("reorder", [0, 2], ValueError, r"texts are numbered 0 to 1, got \[0, 2\]"),
        ("reorder", [-1, 0], ValueError, r"texts are numbered 0 to 1"),
        ("reorder", 0, ValueError, r"reorder: expected one number for each of 2 texts, got shape \(\)"),
        ("reorder", torch.tensor([True, False]), TypeError, r"expected whole numbers, got torch\.bool"),
    ],
)
def test_cache_methods_refuse(method, given, error, message, rng):
    layer = MultiHeadAttention.from_weights(draw(rng))
    cache = KVCache.for_layer(layer, B, capacity=6)
    layer(X[:, :2], cache=cache)
    with pytest.raises(error, match=message):
        getattr(cache, method)(given)
    assert cache.lengths.tolist() == [2, 2]


def test_cache_says_what_it_is():
    assert repr(of_another_size()) == "KVCache(b=2, h_kv=2, d_k=13, d_v=17, stored=0, capacity=6)"
    ring = of_another_size(capacity=None, window=4, chunk=2, d_v=None)
    assert repr(ring) == "KVCache(b=2, h_kv=2, d_k=13, d_v=13, stored=0, window=4, chunk=2)"
    assert (
        KVCache.for_layer(MultiHeadAttention(12, 3), 1, capacity=1, dtype=torch.bfloat16).keys.dtype
        == torch.bfloat16
    )


# --- the readable version, and what is kept -----------------------------------------------------------------------


@pytest.mark.equation("eq-cache", "eq-cache-row")
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_cache_to_read_is_the_whole_pass_in_both_conventions(h, h_kv, sizes, rng):
    weights, x = draw(rng, h, h_kv), some_tokens(rng)
    by_columns, kept = weights.T, decoding.nothing(weights, B)
    whole = row.multi_head(x, x, x, weights, visible=Causal()).output
    K, V = (
        column.project(W, x.mT, b) for W, b in ((by_columns.W_k, by_columns.b_k), (by_columns.W_v, by_columns.b_v))
    )
    ends = np.cumsum(sizes)
    for size, end in zip(sizes, ends, strict=True):
        before, new = kept, x[:, end - size : end]
        output, kept = decoding.cached_step(new, kept, weights)
        assert_close(output, whole[:, end - size : end])
        assert before.keys.shape[-2] == end - size
        assert_close(kept.keys, K[..., :end].mT)
        Q = column.project(by_columns.W_q, new.mT, by_columns.b_q)
        keys, values = (by_columns.repeat_kv(kept_then[..., :end]) for kept_then in (K, V))
        heads = column.attention(Q, keys, values, visible=Causal("bottom-right"))
        assert_close(column.summed_output(by_columns, heads).mT, output)


@pytest.mark.equation("eq-cache-bytes")
def test_cache_takes_the_bytes_that_are_counted(rng):
    for h_kv in (1, 2, 6):
        weights = draw(rng, 6, h_kv)
        layer = MultiHeadAttention.from_weights(weights)
        for room, m in (({"capacity": 9}, 9), ({"window": 4, "chunk": 3}, 4 + 3 - 1)):
            cache = KVCache.for_layer(layer, 1, **room)
            found = cache.keys.nbytes + cache.values.nbytes
            assert found == counting.cache_bytes(weights, m) == 8 * m * h_kv * (D_K + D_V)
            numpy_kept = decoding.nothing(weights)
            _, numpy_kept = decoding.cached_step(rng.normal(size=(m, D_MODEL)), numpy_kept, weights)
            assert sum(x.nbytes for x in numpy_kept) == found
