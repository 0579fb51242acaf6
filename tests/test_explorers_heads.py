"""The page of all heads: what it takes, what it refuses, what it says without a script, and the command's file."""

import html
import json
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mha_tutorial import cli, models
from mha_tutorial.explorers import base, heads
from mha_tutorial.explorers.heads import view

LAYERS, H, N, M = 3, 5, 4, 7
WORDS = ["She", " sat", " down", "."]
pytestmark = pytest.mark.usefixtures("own_messages")


def softmax(scores):
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.fixture
def attention(rng):
    """Weights of three layers of five heads at four tokens, of which none sees what comes after it."""
    scores = 3 * rng.normal(size=(LAYERS, H, N, N))
    return softmax(np.where(np.tri(N, dtype=bool), scores, -np.inf))


def numbers_of(text: str) -> dict:
    """The JSON of an explorer, from its HTML."""
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def table_of(text: str, layer: int) -> np.ndarray:
    """The percents in the folded table of a layer, (h, n, m)."""
    (folded,) = re.findall(rf"<details><summary>Layer {layer}:.*?</details>", text, re.DOTALL)
    rows = re.findall(r"<tr><th scope=row>\d+<th scope=row>[^<]*((?:<td>\d*)*)", folded)
    return np.array([[int(cell or 0) for cell in row.split("<td>")[1:]] for row in rows])


# --- what may be given --------------------------------------------------------------------------------------------

FORMS = {
    "a list of layers": list,
    "a tuple of layers": tuple,
    "layers with one text": lambda a: [x[None] for x in a],
    "tensors with one text, as transformers return": lambda a: tuple(torch.tensor(x)[None] for x in a),
    "tensors that need gradients": lambda a: [torch.tensor(x, requires_grad=True) for x in a],
    "one array of layers with one text, as ModelTrace.attention": lambda a: torch.tensor(a)[:, None],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_layers_may_come_in_many_forms(form, attention):
    shown = view(form(attention), WORDS)
    np.testing.assert_array_equal(shown.attention, attention)
    assert (shown.queries, shown.keys) == (WORDS, WORDS)
    assert repr(shown) == "<explorer: 15 heads at one text>"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_floating_type_will_do(dtype, attention):
    given = torch.tensor(attention, dtype=dtype)
    shown = view([given[0]], WORDS)
    np.testing.assert_array_equal(shown.attention[0], given[0].double().numpy())


def test_one_layer_may_stand_alone(attention):
    for given in (attention[0], attention[0][None], torch.tensor(attention[0])):
        np.testing.assert_array_equal(view(given, WORDS).attention, attention[:1])


def test_the_heads_of_a_module_of_pytorch():
    """As the docstring says to call it; with its other settings there is nothing to be seen."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(10, H, batch_first=True)
    x, memory = torch.randn(1, N, 10), torch.randn(1, M, 10)
    _, weights = module(x, memory, memory, need_weights=True, average_attn_weights=False)
    shown = view(weights, (WORDS, list("abcdefg")))
    assert shown.attention.shape == (1, H, N, M)
    assert (shown.queries, shown.keys) == (WORDS, list("abcdefg"))
    _, none = module(x, memory, memory, need_weights=False)
    with pytest.raises(TypeError, match=r"call nn\.MultiheadAttention with need_weights=True"):
        view(none, WORDS)
    _, averaged = module(x[0], memory[0], memory[0])
    with pytest.raises(ValueError, match=r"\(4, 7\); of averaged heads nothing can be told apart"):
        view(averaged, WORDS)


ONE = np.full((2, N, N), 0.25)
REFUSED = {
    "nothing": (
        None,
        WORDS,
        TypeError,
        "fused kernels, such as PyTorch's scaled_dot_product_attention, never write",
    ),
    "no layers": ((), WORDS, TypeError, 'load the model with attn_implementation="eager"'),
    "layers without weights": ([None, None], WORDS, TypeError, "there are no attention weights"),
    "a text": ("abc", WORDS, TypeError, "arrays or tensors; attention is str"),
    "lists of numbers": ([[0.5]], WORDS, TypeError, r"attention\[0\] is list"),
    "integers": (
        [ONE.astype(int)],
        WORDS,
        TypeError,
        r"attention\[0\] must hold floating-point numbers, got int64",
    ),
    "several texts": (np.stack([ONE, ONE, ONE]), WORDS, ValueError, r"3 texts, or as many layers\? Pass one text"),
    "several texts in a layer": (
        [np.stack([ONE, ONE])],
        WORDS,
        ValueError,
        r"attention\[0\] has shape \(2, 2, 4, 4\)",
    ),
    "two axes": ([ONE[0]], WORDS, ValueError, r"attention\[0\] has shape \(4, 4\); of averaged heads"),
    "six axes": (
        np.ones((1,) * 6),
        WORDS,
        ValueError,
        r"\(1, h, n, m\).*; attention has shape \(1, 1, 1, 1, 1, 1\)",
    ),
    "no heads": (ONE[:0], WORDS, ValueError, r"attention is empty: its shape is \(0, 4, 4\)"),
    "different layers": ([ONE, ONE[:1]], WORDS, ValueError, r"has \(2, 4, 4\), attention\[1\] has \(1, 4, 4\)"),
    "scores": ([ONE - 1], WORDS, ValueError, "from -0.75 to -0.75; are these scores, before softmax"),
    "what is not finite": ([ONE * np.nan], WORDS, ValueError, "numbers from 0 to 1, got numbers from nan"),
    "large numbers": ([ONE * 4.1], WORDS, ValueError, "numbers from 0 to 1, got numbers from 1.02 to 1.02"),
    "one text for tokens": (
        ONE,
        "abcd",
        TypeError,
        "a list of texts, one for each token, got one text of 4 letters",
    ),
    "numbers for tokens": (ONE, [3, 1, 4, 1], TypeError, "make texts of numbers with the tokenizer"),
    "too few tokens": (ONE, WORDS[:3], ValueError, "attention has 4 queries, and there are 3 tokens"),
    "one list for two": (
        ONE[:, :3],
        WORDS,
        ValueError,
        "3 queries, and there are 4 tokens; where queries and keys",
    ),
    "a pair that does not fit": (ONE, (WORDS, ["a"]), ValueError, "attention has 4 keys, and there are 1 tokens"),
    "too much": (np.full((100, 65, 65), 1 / 65), ["a"] * 65, ValueError, r"422,500 numbers.*\(here 63 tokens\)"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_shown_is_refused(case):
    attention, tokens, kind, message = case
    with pytest.raises(kind, match=message):
        view(attention, tokens)


def test_contributions_must_be_like_the_weights(attention):
    with pytest.raises(ValueError, match=r"of the shape of attention, \(3, 5, 4, 4\), got \(2, 5, 4, 4\)"):
        view(list(attention), WORDS, list(attention[:2]))
    with pytest.raises(ValueError, match="contributions must be finite numbers"):
        view(list(attention), WORDS, list(np.full_like(attention, np.inf)))
    with pytest.raises(TypeError, match=r"contributions\[0\] must hold floating-point"):
        view(list(attention), WORDS, [ONE.astype(int)])


# --- what is in the page ------------------------------------------------------------------------------------------


def test_numbers_for_the_script_are_the_weights_in_thousandths(attention):
    """Rows end with their last number that is not zero, so that what comes after a query takes no room."""
    numbers = numbers_of(view(list(attention), WORDS, list(20 * attention)).html())
    assert numbers["queries"] == numbers["keys"] == WORDS
    for name, scale, tolerance in (("weights", 1000, 0.5), ("contributions", 20, 20 * 0.005)):
        for index in np.ndindex(LAYERS, H, N):
            layer, head, query = index
            row = numbers[name][layer][head][query]
            assert len(row) <= query + 1
            padded = [*row, *[0] * (N - len(row))]
            np.testing.assert_allclose(padded, scale * attention[index], atol=tolerance)
    assert view(list(attention), WORDS).states()["contributions"] is None


def test_a_contribution_keeps_three_digits():
    shown = view(ONE, WORDS, np.full((2, N, N), 1234.5678))
    assert shown.states()["contributions"][0][1][0] == [1230] * N
    assert view(ONE, WORDS, ONE * 0.0123456).states()["contributions"][0][0][0] == [0.00309] * N


def test_without_a_script_every_weight_stands_in_a_table(attention):
    still = view(list(attention), WORDS).still()
    for layer in range(LAYERS):
        expected = np.rint(100 * attention[layer]).reshape(H * N, N)
        np.testing.assert_array_equal(table_of(still, layer), expected)


def test_without_a_script_every_head_is_drawn(attention):
    """Cells of at least five percent, each once, where its layer, head, query and key say, darker where more."""
    still = view(list(attention), WORDS).still()
    darkness = np.zeros((LAYERS * (N + 2), H * (N + 2)))
    for path, opacity in re.findall(r'<path d="([^"]*)" stroke-opacity="([^"]*)"/>', still):
        for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            cells = darkness[int(y), int(x) : int(x) + int(length)]
            assert not cells.any()
            cells[:] = float(opacity)
    for index in np.ndindex(*attention.shape):
        layer, head, query, key = index
        drawn = darkness[layer * (N + 2) + query, head * (N + 2) + key]
        darknesses = [dark for bound, dark in heads.SHADES if attention[index] >= bound]
        assert drawn == (darknesses[-1] if darknesses else 0)
    (label,) = re.findall(r'role="img" aria-label="([^"]*)"', still)
    assert label.startswith("3 rows of 5 squares")


HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&amp;<b>", "\x1b[2J\n\t\u2028 "]


def test_tokens_cannot_become_markup():
    shown = view(ONE, HOSTILE)
    assert numbers_of(shown.html())["keys"] == HOSTILE  # the numbers end where they should
    text = shown.html()
    assert "<img" not in text
    assert "<b>" not in text
    assert text.count("<script") == text.count("</script>") == 1
    assert not re.search("[\x00-\x09\x0b-\x1f\u2028]", re.sub("<script.*?</script>", "", text, flags=re.DOTALL))
    assert html.escape(HOSTILE[0]) in text


def test_a_token_of_spaces_is_seen():
    assert "<th scope=col>␣" in view(ONE, ["a", " b", "  ", ""]).still()
    assert "<th scope=col>b" in view(ONE, ["a", " b", "  ", ""]).still()


def test_the_same_heads_are_the_same_text(attention):
    assert view(list(attention), WORDS).page() == view(list(attention), WORDS).page()


# --- a notebook, and a page ---------------------------------------------------------------------------------------


def test_a_notebook_gets_the_script_unless_the_page_links_to_it(attention, monkeypatch):
    shown = view(list(attention), WORDS)
    monkeypatch.setenv("MHA_EXPLORERS", "linked")
    assert shown._repr_html_() == shown.html()
    monkeypatch.delenv("MHA_EXPLORERS")
    whole = shown._repr_html_()
    assert whole.startswith(shown.html())
    assert base.script() in whole
    assert base.style() in whole


def test_the_script_is_small_and_can_stand_within_a_page():
    assert len(base.script().encode()) <= 60_000
    for forbidden in ("</script", "<!--", "import ", "require(", "fetch(", "XMLHttpRequest", "innerHTML", "eval("):
        assert forbidden not in base.script(), forbidden
    assert "</style" not in base.style()
    assert "url(" not in base.style()


def test_a_page_is_whole_and_forbids_requests(attention, tmp_path):
    shown = view(list(attention), WORDS)
    shown.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text == shown.page()
    assert text.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in text
    assert "<title>15 heads at one text</title>" in text
    assert not re.search(r"""(?:src|href)\s*=\s*["']""", text)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_page_is_not_written_over_something_unless_that_is_asked_for(attention, tmp_path):
    shown, path = view(list(attention), WORDS), tmp_path / "page.html"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="is there already and was not overwritten"):
        shown.save(path)
    assert path.read_text() == "precious"
    shown.save(path, overwrite=True)
    assert path.read_text(encoding="utf-8") == shown.page()
    with pytest.raises(FileExistsError):
        shown.save(tmp_path, overwrite=True)
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        shown.save(tmp_path / "nowhere" / "page.html")


def test_a_page_that_comes_in_between_is_kept(attention, tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    link = os.link
    monkeypatch.setattr(os, "link", lambda *names: path.write_text("precious") and link(*names))
    with pytest.raises(FileExistsError, match="is there already and was not overwritten"):
        view(list(attention), WORDS).save(path)
    assert path.read_text() == "precious"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_a_full_disk_leaves_the_old_page(attention, tmp_path, monkeypatch):
    def full(path, text, encoding):
        raise OSError("No space left on device")

    path = tmp_path / "page.html"
    path.write_text("precious")
    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="No space left"):
        view(list(attention), WORDS).save(path, overwrite=True)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("page.html", b"precious")]


# --- our decoder, and the command ---------------------------------------------------------------------------------


class Letters:
    """A tokenizer that makes a token of each letter."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids):
        return "".join(chr(ord("a") + i) for i in ids)

    def tokens(self, text):
        return list(text)


@pytest.fixture
def model():
    torch.manual_seed(1)
    return models.Decoder(models.Config("llama", 26, 2, 70, 24, 6, 2, 4, 40, 10000.0, 1e-5), Letters()).eval()


def test_heads_of_a_decoder_and_what_they_write(model):
    """Each contribution is the length of a vector, and the vectors of all keys add up to what the head writes."""
    shown = heads.from_model(model, "tested")
    trace = model.trace(torch.tensor([Letters().encode("tested")]))
    assert shown.keys == list("tested")
    np.testing.assert_array_equal(shown.attention, trace.attention[:, 0].detach().double().numpy())
    for index in np.ndindex(2, 6):
        layer, head = index
        W_o = torch.as_tensor(model.blocks[layer].attention.to_weights().W_o[head])
        values = trace.layers[layer].values[0, head // 3]
        terms = trace.layers[layer].attention[0, head][..., None] * (values @ W_o)  # (n, m, d_model)
        torch.testing.assert_close(terms.sum(dim=1), trace.layers[layer].heads[0, head] @ W_o)
        expected = terms.norm(dim=-1).detach().double().numpy()
        np.testing.assert_allclose(shown.contributions[index], expected, rtol=1e-5, atol=1e-6 * expected.max())


def test_what_comes_next_without_a_head_is_what_the_model_without_it_says(model):
    following = heads.from_model(model, "tested", switch_off=True).following
    ids = torch.tensor([Letters().encode("tested")])
    assert heads.from_model(model, "tested").following is None

    def expected(other):
        shares, found = other(ids)[0, -1].softmax(dim=-1).topk(5)
        return [Letters().decode([i]) for i in found.tolist()], shares.tolist()

    words, shares = expected(model)
    assert following.words == words
    np.testing.assert_allclose(following.shares, shares, rtol=1e-4)
    changed = set()
    for layer, head in np.ndindex(2, 6):
        words, shares = expected(model.without([(layer, head)]))
        assert following.words_without[layer][head] == words
        np.testing.assert_allclose(following.shares_without[layer][head], shares, rtol=1e-4)
        changed.add(tuple(shares))
    assert len(changed) == 12


def test_what_comes_next_is_in_the_page_with_and_without_a_script(model):
    shown = heads.from_model(model, "tested", switch_off=True)
    following, numbers = shown.following, numbers_of(shown.html())["following"]
    rows = re.findall(r"<tr><th scope=row>(all heads|without[^<]*)((?:<td>[^<\n]*)*)", shown.still())
    given = [("all heads", following.words, following.shares, numbers["all"])]
    for layer, head in np.ndindex(2, 6):
        of_head = (
            part[layer][head] for part in (following.words_without, following.shares_without, numbers["without"])
        )
        given.append((f"without layer {layer}, head {head}", *of_head))
    for (name, words, shares, pairs), (row, cells) in zip(given, rows, strict=True):
        assert row == name
        assert cells.split("<td>")[1:] == [f"{w} {100 * s:.0f}" for w, s in zip(words, shares, strict=True)]
        assert [numbers["words"][word] for word, _ in pairs] == words
        np.testing.assert_allclose([share for _, share in pairs], 1000 * np.array(shares), atol=0.51)


def test_some_of_the_layers_keep_their_numbers(model):
    whole = heads.from_model(model, "tested", switch_off=True)
    upper = heads.from_model(model, "tested", switch_off=True, layers=[1])
    assert upper.title == "6 heads at one text"
    for given in ("attention", "contributions"):
        np.testing.assert_array_equal(getattr(upper, given), getattr(whole, given)[1:])
    assert upper.following.words == whole.following.words
    assert upper.following.words_without == whole.following.words_without[1:]
    assert upper.following.shares_without == whole.following.shares_without[1:]
    assert "layers" not in numbers_of(whole.html())
    assert numbers_of(upper.html())["layers"] == [1]
    assert re.findall(r"<summary>(Layer \d+)", upper.still()) == ["Layer 1"]
    without = re.findall(r"<th scope=row>(without[^<]*)", upper.still())
    assert without == [f"without layer 1, head {head}" for head in range(6)]
    turned = heads.from_model(model, "tested", switch_off=True, layers=(1, 0))
    np.testing.assert_array_equal(turned.attention, whole.attention[::-1])
    assert turned.following.shares_without == whole.following.shares_without[::-1]


@pytest.mark.parametrize("layers", [[], [2], (0, -1)])
def test_layers_that_a_decoder_does_not_have_are_refused(model, layers):
    with pytest.raises(ValueError, match="the layers of this model are 0 to 1, got layers="):
        heads.from_model(model, "tested", layers=layers)


def test_a_decoder_needs_a_text_that_fits(model):
    with pytest.raises(ValueError, match="the text is empty; attention needs one token or more"):
        heads.from_model(model, "")
    with pytest.raises(ValueError, match="more than the 70 that this model can read"):
        heads.from_model(model, "a" * 71)
    with pytest.raises(
        ValueError, match="the text has 183 tokens, and a page holds the heads of this model at 182"
    ):
        heads.from_model(model, "a" * 183)
    with pytest.raises(ValueError, match="without a tokenizer"):
        heads.from_model(SimpleNamespace(tokenizer=None), "a")


@pytest.fixture
def folder(model, tmp_path, monkeypatch):
    """An empty folder, and a command that gets the small model."""
    asked = []
    monkeypatch.setattr(models, "load", lambda path: asked.append(path) or model)
    monkeypatch.chdir(tmp_path)
    return SimpleNamespace(path=tmp_path, asked=asked)


def test_the_command_writes_a_page(folder, model, capsys):
    assert cli.main(["heads", "tested", "-o", "page.html", "--model", "a.gguf"]) == 0
    assert capsys.readouterr().out == "page.html: 12 heads at one text, 6 tokens; open it in a browser\n"
    assert (folder.path / "page.html").read_text(encoding="utf-8") == heads.from_model(model, "tested").page()
    assert [str(path) for path in folder.asked] == ["a.gguf"]
    assert cli.main(["heads", "tested", "-o", "more.html", "--switch-off"]) == 0
    expected = heads.from_model(model, "tested", switch_off=True).page()
    assert (folder.path / "more.html").read_text(encoding="utf-8") == expected


def test_the_command_overwrites_only_if_it_is_told_to(folder, capsys):
    (folder.path / "page.html").write_text("precious")
    assert cli.main(["heads", "tested", "-o", "page.html"]) == 2
    assert capsys.readouterr().err == ("mha-tutorial: error: page.html is there already and was not overwritten\n")
    assert (folder.path / "page.html").read_text() == "precious"
    assert cli.main(["heads", "tested", "-o", "page.html", "--force"]) == 0
    assert (folder.path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["", "-o", "page.html"], "the text is empty; attention needs one token or more"),
        (["tested", "-o", "nowhere/page.html"], "nowhere is not a folder, so nothing can be written there"),
    ],
)
def test_the_command_says_what_is_wrong(words, message, folder, capsys):
    assert cli.main(["heads", *words]) == 2
    assert capsys.readouterr().err == f"mha-tutorial: error: {message}\n"
    assert list(folder.path.iterdir()) == []
