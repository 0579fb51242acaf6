"""What heads do: scores of planted heads, contributions, shares of a logit, ablations, circuits."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from mha_tutorial import models, results
from mha_tutorial.analysis import heads
from mha_tutorial.models import Config, Decoder

N, LAYERS, H, H_KV, D_K, D_MODEL, VOCABULARY = 26, 3, 6, 2, 4, 22, 31
CONFIG = Config("llama", VOCABULARY, LAYERS, 64, D_MODEL, H, H_KV, D_K, 37, 10000.0, 1e-5)
EVERY = list(itertools.product(range(LAYERS), range(H)))
IDS = np.tile(np.arange(13), 2)  # thirteen tokens, and the same again
PLACE = (1, 4)


# --- scores of planted heads --------------------------------------------------------------------------------------


def rows(targets, n=N):
    """A head that gives everything to one key for each query, to the first where there is none."""
    attention = np.zeros((n, n))
    for query, key in enumerate(targets):
        attention[query, key if 0 <= key <= query else 0] = 1.0
    return attention


def looks_back(by, n=N):
    return rows([query - by for query in range(n)], n)


def evenly(n=N):
    return np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]


PLANTED = {  # each head finds its own score, and no other
    "previous token": looks_back(1),
    "first token": rows([0] * N),
    "duplicate token": looks_back(13),
    "induction": looks_back(12),
}


@pytest.fixture
def drawn(rng):
    """Attention of heads that look anywhere among what is visible."""
    scores = rng.normal(size=(LAYERS, H, N, N))
    exponentials = np.tril(np.exp(scores))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_head_is_found_among_others(name, drawn):
    drawn[PLACE] = PLANTED[name]
    scores = heads.table(drawn, IDS)[name]
    assert scores.shape == (LAYERS, H)
    assert np.unravel_index(scores.argmax(), scores.shape) == PLACE
    assert scores[PLACE] == 1
    assert np.delete(scores.ravel(), np.ravel_multi_index(PLACE, scores.shape)).max() < 0.4


@pytest.mark.parametrize("other", PLANTED)
@pytest.mark.parametrize("name", ["previous token", "duplicate token", "induction"])
def test_a_planted_decoy_has_little_more_than_even_weights(name, other):
    score = heads.table(PLANTED[other], IDS)[name]
    assert score == 1 if name == other else score <= 1.5 * heads.table(evenly(), IDS)[name]


def test_a_planted_induction_head_rests_on_the_sink_while_nothing_has_occurred_before():
    assert heads.first_token(PLANTED["induction"]) == pytest.approx(12 / 25)


def test_an_induction_decoy_that_looks_back_by_a_fixed_distance_fails_at_another():
    """On one text alone it cannot be told from an induction head; the planted one passes on all."""
    found = {"decoy": [], "planted": []}
    for period in (11, 13, 17):
        ids = np.tile(np.arange(period), 2)
        found["decoy"].append(heads.induction(looks_back(12, 2 * period), ids))
        found["planted"].append(heads.induction(looks_back(period - 1, 2 * period), ids))
    assert max(found["decoy"]) == 1
    assert min(found["decoy"]) == 0
    assert min(found["planted"]) == 1


@pytest.mark.equation("eq-induction-score")
def test_the_induction_score_is_what_is_given_behind_earlier_occurrences(rng):
    ids = rng.integers(5, size=N)  # tokens that occur often, some in pairs
    attention = rng.dirichlet(np.ones(N), size=(H, N))
    expected, asked = np.zeros(H), 0
    for i in range(N):
        behind = [j + 1 for j in range(i) if ids[j] == ids[i] and j + 1 != i]
        asked += bool(behind)
        expected += attention[:, i, behind].sum(axis=-1)
    np.testing.assert_allclose(heads.induction(attention, ids), expected / asked, rtol=1e-12)


def test_a_duplicate_is_counted_wherever_it_occurred():
    ids = np.array([5, 5, 7, 5])
    attention = np.array([[1.0, 0, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 1.0, 0], [0.2, 0.5, 0.1, 0.2]])
    assert heads.duplicate_token(attention, ids) == pytest.approx((0.3 + 0.7) / 2)


def test_entropy_and_distance_of_even_weights():
    n = np.arange(1, N + 1)
    assert heads.entropy(evenly()) == pytest.approx(np.log(n).mean())
    assert heads.distance(evenly()) == pytest.approx(((n - 1) / 2).mean())
    assert heads.entropy(looks_back(1)) == 0
    assert heads.distance(looks_back(3)) == pytest.approx((0 + 1 + 2 + 3 * (N - 3)) / N)


def test_a_sink_scores_by_every_query_but_the_first():
    attention = rows([0] * N)
    attention[5] = rows(range(N))[5]  # one of 25 looks at itself
    assert heads.first_token(attention) == pytest.approx(24 / 25)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    ("attention", "ids", "message"),
    [
        (np.ones(3), None, r"\(\*h, n, n\), a square table .* got \(3,\)"),
        (np.ones((2, 3, 4)), None, r"got \(2, 3, 4\)"),
        (np.ones((1, 1)), None, r"two tokens or more for each head, got \(1, 1\)"),
        (np.ones((3, 3)), np.arange(4), r"ids must be \(3,\), one number for each token .* got \(4,\)"),
        (np.ones((3, 3)), np.arange(3), "no token of this text has a target"),
        (np.ones((3, 3)), np.array([1, 2, 2]), "no token of this text has a target"),
    ],
)
def test_attention_without_a_score_is_refused(attention, ids, message):
    scores = (heads.entropy, heads.distance, heads.first_token) if ids is None else (heads.induction,)
    for score in scores:
        with pytest.raises(ValueError, match=message):
            score(attention) if ids is None else score(attention, ids)


# --- a small decoder ----------------------------------------------------------------------------------------------


def decoder(seed=0, **changes):
    torch.manual_seed(seed)
    model = Decoder(dataclasses.replace(CONFIG, **changes)).double()
    for name, x in model.named_parameters():
        torch.nn.init.normal_(x, mean=float("norm" in name), std=0.3)
    return model


@pytest.fixture(scope="module")
def model():
    return decoder()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


# --- contributions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_contributions_and_bias_are_what_the_layer_adds(bias, ids):
    model = decoder(bias=bias, bias_o=bias)
    trace = model.trace(ids)
    added = heads.contributions(model, trace)
    assert added.shape == (LAYERS, 2, H, 7, D_MODEL)
    for block, layer, parts in zip(model.layers, trace.layers, added, strict=True):
        b_o = block.attention.W_o.bias if bias else 0
        close(parts.sum(dim=1) + b_o, layer.output)


def test_the_contribution_of_a_planted_head_has_a_known_norm(ids):
    model, (layer, head) = decoder(), PLACE
    with torch.no_grad():
        weight = model.layers[layer].attention.W_o.weight.unflatten(1, (H, D_K))
        weight[:, head] = 3 * torch.eye(D_MODEL, D_K)
    trace = model.trace(ids)
    norms = heads.contributions(model, trace).norm(dim=-1)
    close(norms[layer, :, head], 3 * trace.layers[layer].heads[:, head].norm(dim=-1))


@pytest.mark.equation("eq-logit-attribution", "eq-logit-attribution-row")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("against", [None, 3])
def test_contributions_to_a_logit_add_up_to_it(bias, against, ids):
    model = decoder(bias=bias, bias_o=bias)
    trace = model.trace(ids)
    tokens = ids.roll(-1, dims=1)
    other = None if against is None else torch.tensor(against)
    shares = heads.logit_attribution(model, trace, tokens, other)
    logits = trace.logits.gather(-1, tokens[..., None])[..., 0]
    close(shares.sum(), logits - (trace.logits.mean(dim=-1) if against is None else trace.logits[..., against]))
    # by columns: a row of the unembedding, scaled, times what the block of W_o makes of a head
    stream = trace.residual[-1]
    u = model.output.weight[tokens] - (
        model.output.weight.mean(dim=0) if other is None else model.output.weight[other]
    )
    u = u * model.norm.weight / (stream.square().mean(dim=-1, keepdim=True) + model.norm.eps).sqrt()
    for (layer, head), place in itertools.product(EVERY, range(7)):
        W = model.layers[layer].attention.W_o.weight[:, head * D_K : (head + 1) * D_K]
        expected = u[1, place] @ (W @ trace.layers[layer].heads[1, head, place])
        close(shares.heads[layer, 1, head, place], expected)


@torch.no_grad()
def test_contributions_of_the_last_layer_agree_with_ablation_by_a_small_amount(ids):
    """Nothing reads these heads but the last norm, whose scale changes too: that part is known, and not theirs."""
    model, token, step = decoder(), 5, 1e-4
    last = model.layers[-1]
    torch.nn.init.zeros_(last.feed_forward.down.weight)
    trace = model.trace(ids)
    shares = heads.logit_attribution(model, trace, torch.tensor(token), torch.tensor(3)).heads[-1]
    stream = trace.residual[-1]
    added = heads.contributions(model, trace)[-1]
    square = stream.square().mean(dim=-1) + model.norm.eps
    difference = trace.logits[..., token] - trace.logits[..., 3]
    for head in range(H):
        gates, found = torch.ones(LAYERS, H).double(), []
        for gate in (1 + step, 1 - step):
            gates[-1, head] = gate
            with heads.gated(model, gates):
                logits = model(ids)
            found.append(logits[..., token] - logits[..., 3])
        scale = (added[:, head] * stream).mean(dim=-1) / square * difference
        slope = (found[0] - found[1]) / (2 * step)
        torch.testing.assert_close(slope, shares[:, head] - scale, rtol=1e-5, atol=1e-6)


# --- ablation -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_ablation_to_zero_is_a_model_without_these_heads(model, ids):
    for some in ([], [PLACE], [(0, 0), (0, 5), (2, 3)], EVERY):
        with heads.ablated(model, some):
            found = model(ids)
        close(found, model.without(some)(ids))


@torch.no_grad()
def test_ablation_to_the_mean_adds_the_same_to_every_token(ids):
    model = decoder(layers=1)
    means = heads.mean_heads(model, ids)
    close(means[0], torch.stack([model.trace(row[None]).layers[0].heads[0].mean(dim=1) for row in ids]).mean(dim=0))
    (block,) = model.layers
    some = [(0, 1), (0, 4)]
    with heads.ablated(model, some, to=means):
        found = model(ids)
    trace = model.trace(ids)
    added = heads.contributions(model, trace)[0]
    for _, head in some:
        added[:, head] = means[0, head] @ block.attention.W_o.weight[:, head * D_K : (head + 1) * D_K].T
    x = trace.residual[0] + added.sum(dim=1)
    close(found, model.output(model.norm(x + block.feed_forward(block.feed_forward_norm(x)))))


@torch.no_grad()
def test_ablation_leaves_the_model_as_it_was_also_after_an_error(model, ids):
    before, weights = model(ids), [x.clone() for x in model.parameters()]
    with heads.ablated(model, EVERY):
        assert not torch.allclose(model(ids), before)
    with pytest.raises(ValueError, match="tokens have numbers"), heads.ablated(model, EVERY):
        model(ids + VOCABULARY)
    with pytest.raises(ValueError, match="gates must be"), heads.gated(model, torch.ones(2, 2)):
        pass
    assert torch.equal(model(ids), before)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), weights, strict=True))


@torch.no_grad()
def test_ablations_within_each_other_are_both_there_and_end_apart(model, ids):
    with heads.ablated(model, [(0, 1)]):
        alone = model(ids)
        with heads.ablated(model, [PLACE]):
            close(model(ids), model.without([(0, 1), PLACE])(ids))
        assert torch.equal(model(ids), alone)


@torch.no_grad()
def test_half_an_ablation_mixes_a_head_with_its_replacement(model, ids):
    to = torch.randn(LAYERS, H, D_K, generator=torch.Generator().manual_seed(2)).double()
    gates = torch.ones(LAYERS, H).double()
    gates[-1, 2] = 0.25
    with heads.gated(model, gates, to):
        found = model.trace(ids).layers[-1]
    expected = model.trace(ids).layers[-1]
    W = model.layers[-1].attention.W_o.weight[:, 2 * D_K : 3 * D_K]
    close(found.output, expected.output + 0.75 * (to[-1, 2] - expected.heads[:, 2]) @ W.T)
    close(found.heads, expected.heads)  # the trace shows what was computed


@pytest.mark.equation("eq-sensitivity")
@pytest.mark.parametrize("to_mean", [False, True])
def test_sensitivity_agrees_with_ablation_by_a_small_amount(to_mean, model, ids):
    def loss(logits):
        return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    to = heads.mean_heads(model, ids) if to_mean else None
    with torch.no_grad():  # it asks for gradients itself
        found, step = heads.sensitivity(model, ids, loss, to), 1e-5
    assert found.shape == (LAYERS, H)
    assert not found.requires_grad
    for layer, head in EVERY:
        gates, losses = torch.ones(LAYERS, H).double(), []
        for gate in (1 - step, 1 + step):
            gates[layer, head] = gate
            with torch.no_grad(), heads.gated(model, gates, to):
                losses.append(loss(model(ids)))
        torch.testing.assert_close(found[layer, head], (losses[0] - losses[1]) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("head", [(3, 0), (0, 6), (-1, 0), (0, -1)])
def test_ablation_and_circuits_of_a_head_that_is_not_there_are_refused(head, model):
    message = rf"there is no head \({head[0]}, {head[1]}\): layers are 0 to 2, heads 0 to 5"
    with pytest.raises(ValueError, match=message), heads.ablated(model, [head]):
        pass
    for circuit in (heads.ov, heads.qk):
        with pytest.raises(ValueError, match=message):
            circuit(model, *head)


def test_an_ablation_to_another_shape_is_refused(model):
    message = r"to must be \(3, 6, 4\) for this model, got \(3, 6, 5\)"
    with pytest.raises(ValueError, match=message), heads.ablated(model, [PLACE], to=torch.zeros(3, 6, 5)):
        pass


# --- circuits -----------------------------------------------------------------------------------------------------


def normalised(x):
    return x / (x.square().mean(dim=-1, keepdim=True) + CONFIG.eps).sqrt()


@torch.no_grad()
def test_qk_circuits_give_the_scores_of_each_distance(model, ids):
    trace = model.trace(ids)
    for layer, head in EVERY:
        x = normalised(trace.residual[layer])
        scores = trace.layers[layer].scores[:, head]
        for distance in range(7):
            circuit = heads.qk(model, layer, head, distance)
            found = torch.einsum("bnd,de,bne->bn", x[:, distance:], circuit, x[:, : 7 - distance])
            torch.testing.assert_close(found, scores.diagonal(-distance, -2, -1), rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_ov_circuits_give_the_contributions(model, ids):
    trace = model.trace(ids)
    added = heads.contributions(model, trace)
    for layer, head in EVERY:
        x = normalised(trace.residual[layer])
        found = trace.layers[layer].attention[:, head].double() @ x @ heads.ov(model, layer, head)
        torch.testing.assert_close(found, added[layer, :, head], rtol=1e-6, atol=1e-6)


def test_heads_whose_queries_are_normalised_have_no_qk_circuit():
    with pytest.raises(ValueError, match="normalises queries and keys"):
        heads.qk(decoder(norm_heads=True), 0, 0)


@pytest.mark.equation("eq-copying")
@torch.no_grad()
def test_copying_is_read_off_the_eigenvalues_of_the_matrix_between_tokens(model):
    found = heads.copying(model)
    for layer, head in EVERY:
        between = (
            model.embedding.weight @ heads.ov(model, layer, head) @ (model.output.weight * model.norm.weight).T
        )
        values = np.linalg.eigvals(between.numpy())
        assert found[layer, head] == pytest.approx(values.real.sum() / abs(values).sum(), rel=1e-6)


@torch.no_grad()
def test_a_planted_head_that_copies_is_told_from_one_that_suppresses():
    model, (layer, head) = decoder(tied=True), PLACE
    attention = model.layers[layer].attention
    W_v = (
        attention.W_v.weight.unflatten(0, (H_KV, D_K))[head // (H // H_KV)]
        * model.layers[layer].attention_norm.weight
    )
    for sign in (1, -1):
        attention.W_o.weight[:, head * D_K : (head + 1) * D_K] = sign * W_v.T
        model.norm.weight.fill_(1.0)  # then W_v E' E W_v' is symmetric, with no negative eigenvalue
        assert heads.copying(model)[layer, head] == pytest.approx(sign)


# --- the trained model --------------------------------------------------------------------------------------------

NAMED = {  # what the chapter calls them, and their scores on 32 random tokens and the same again
    "previous token": {(16, 0): 0.90, (11, 1): 0.84, (2, 1): 0.72, (1, 2): 0.72, (19, 3): 0.69},
    "duplicate token": {(14, 3): 0.72, (8, 0): 0.65},
    "induction": {(18, 6): 0.89, (17, 4): 0.65, (17, 3): 0.63, (17, 5): 0.61},
    "first token": {(18, 8): 1.00, (23, 6): 0.97},
}


@pytest.fixture(scope="module")
def trained(model_file):
    return models.load(model_file)


def copies(seed):
    once = torch.randint(1000, 40_000, (1, 32), generator=torch.Generator().manual_seed(seed))
    return torch.cat([once, once], dim=1)


def second_copy(model, ids):
    with torch.no_grad():
        return cross_entropy(model(ids)[0, 32:-1], ids[0, 33:]).item()


def test_named_heads_of_the_trained_model_have_their_scores(trained):
    ids = copies(0)
    with torch.no_grad():
        attention = trained.trace(ids).attention[:, 0].numpy()
    scores = heads.table(attention, ids[0].numpy())
    for name, of_heads in NAMED.items():
        order = np.argsort(-scores[name], axis=None)[: len(of_heads)]
        assert {divmod(int(i), 9) for i in order} == set(of_heads)
        for head, score in of_heads.items():
            assert scores[name][head] == pytest.approx(score, abs=0.006)


def test_recorded_ablations_of_the_trained_model_are_found_again(trained):
    record = results.read("heads")["measured"]
    repeats = record["repeats"]
    top = [tuple(head) for head in record["induction heads"]["heads"]]
    ids = copies(0)
    assert second_copy(trained, ids) == pytest.approx(repeats["all heads"]["second"][0], abs=2e-3)
    for some, expected in {
        ((18, 6),): repeats["without one"]["18, 6"],
        tuple(top[:6]): repeats["best"]["6"]["second"][0],
        tuple(map(tuple, repeats["six anywhere"][3]["heads"])): repeats["six anywhere"][3]["second"][0],
    }.items():
        with heads.ablated(trained, some):
            assert second_copy(trained, ids) == pytest.approx(expected, abs=2e-3)


def test_without_the_previous_token_head_before_them_induction_heads_lose_their_scores(trained):
    ids, found = copies(0), {}
    for source in ((16, 0), (11, 1)):
        with torch.no_grad(), heads.ablated(trained, [source]):
            attention = trained.trace(ids).attention[:, 0].numpy()
        found[source] = heads.induction(attention, ids[0].numpy())
    assert found[16, 0][17].max() < 0.05
    assert found[16, 0][18, 6] == pytest.approx(0.22, abs=0.01)
    assert found[11, 1][17, 4] == pytest.approx(0.65, abs=0.01)


def test_what_the_chapter_says_of_recorded_ablations():
    record = results.read("heads")["measured"]
    repeats, growing = record["repeats"], record["growing"]
    alone = sorted(repeats["without one"].items(), key=lambda item: -item[1])
    assert [head for head, _ in alone].index("18, 6") == 6
    assert tuple(record["induction heads"]["heads"][0]) == (18, 6)

    def rise(entry):
        return np.mean(np.subtract(entry["second"], repeats["all heads"]["second"]))

    six = rise(repeats["best"]["6"])
    assert six == pytest.approx(7.7, abs=0.05)
    assert rise(repeats["best at their means"]["6"]) == pytest.approx(6.3, abs=0.05)
    anywhere = sorted(map(rise, repeats["six anywhere"]))
    assert anywhere[-3] < 1 < anywhere[-2] < anywhere[-1] < six
    assert len(anywhere) == len(repeats["six of the same layers"]) == 10
    assert max(map(rise, repeats["six of the same layers"])) < 0.6
    assert growing["all heads"] == pytest.approx(3.72, abs=0.005)
    zero, mean = growing["least needed first"][-1], growing["least needed first, at their means"][-1]
    assert (zero, mean) == (pytest.approx(10.4, abs=0.05), pytest.approx(5.8, abs=0.05))
