"""The trained model: what it reads, says and writes, and the commands that run it."""

import numpy as np
import pytest
import torch

from mha_tutorial import cli, models
from mha_tutorial.models import generation

FRANCE = "The capital of France is"


@pytest.fixture(scope="module")
def model(model_file):
    return models.load(model_file)


# --- the file -----------------------------------------------------------------------------------------------------


def test_the_model_is_what_it_is_said_to_be(model):
    assert model.config == models.Config(
        "llama", 49152, 30, 8192, 576, 9, 3, 64, 1536, 100000.0, pytest.approx(1e-5), tied=True
    )
    assert sum(x.numel() for x in model.parameters()) == 134_515_008
    assert not any(x.requires_grad for x in model.parameters())


# how the file's own rules cut them: digits one by one, and a space goes with the word behind it
CUT = {
    "She deposited the money": ["She", " deposited", " the", " money"],
    "a  2": ["a", "  ", "2"],
    "1234": ["1", "2", "3", "4"],
    "x½": ["x", "½"],
    "don't": ["don", "'t"],
    "<|im_start|>user": ["<|im_start|>", "user"],
}


@pytest.mark.parametrize(("text", "tokens"), CUT.items(), ids=CUT)
def test_texts_are_cut_as_the_file_says(text, tokens, model):
    assert model.tokenizer.tokens(text) == tokens


def test_every_text_comes_back_but_for_signs_that_the_vocabulary_lacks(model):
    text = "Grüße, 世界! ١٢ and ½\n\ttabs 🙂  " + "".join(chr(i) for i in range(0x250))
    lost = dict.fromkeys([0x04, 0x06, 0x13, 0x14, 0x16, 0x1D])  # control characters, for which there is no byte
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text.translate(lost)


# --- text out of it -----------------------------------------------------------------------------------------------


def test_a_text_is_continued(model):
    assert model.generate(FRANCE, n=1) == " Paris"
    pieces = list(model.stream(FRANCE, n=5))
    assert len(pieces) == 5
    assert "".join(pieces) == model.generate(FRANCE, n=5)


def test_greedy_text_is_what_one_pass_over_it_says(model):
    ids = model.tokenizer.encode(FRANCE)
    found = list(generation.continued(model, torch.tensor([ids]), 7))
    logits = model(torch.tensor([ids + found[:-1]]))[0, len(ids) - 1 :]
    assert logits.argmax(-1).tolist() == found


def test_a_question_is_answered_and_ended(model):
    asked = model.tokenizer.chat("What is the capital of France?")
    assert asked.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    answer = model.generate("What is the capital of France?", n=24, chat=True)
    assert "Paris" in answer
    assert len(model.tokenizer.encode(answer)) < 24
    assert "<|" not in answer


def test_a_seed_gives_one_text_and_another_seed_another(model):
    drawn = [model.generate(FRANCE, n=4, temperature=1.5, top_p=0.9, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_few_tokens_that_are_likely_enough_are_the_likeliest(model):
    assert model.generate(FRANCE, n=3, temperature=1.0, top_p=1e-6, seed=3) == model.generate(FRANCE, n=3)


# --- what cannot be continued -------------------------------------------------------------------------------------

REFUSED = {
    "an empty prompt": (("",), {}, "the prompt is empty; a model continues one token or more"),
    "half a character": (("caf\udce9",), {}, r"no valid Unicode: at 3 stands '\\udce9', which UTF-8 lacks"),
    "a long prompt": (
        ("a " * 8192,),
        {},
        r"the prompt has \d+ tokens, and leaves no room for another: this model can read 8192",
    ),
    "no tokens": ((FRANCE, 0), {}, "n must be at least 1, temperature at least 0, .*got n=0"),
    "a negative temperature": ((FRANCE,), {"temperature": -1.0}, "temperature at least 0, .*temperature=-1.0"),
    "nothing to draw from": ((FRANCE,), {"top_p": 0.0}, "top_p above 0 and at most 1, .*top_p=0.0"),
}


@pytest.mark.parametrize(("given", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_continued_is_refused_before_anything_is_computed(given, options, message, model):
    with pytest.raises(ValueError, match=message):
        model.stream(*given, **options)  # nobody has asked for a piece yet


@pytest.mark.equation("eq-temperature")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_divides_the_logits(temperature):
    found = models.probabilities(torch.tensor([2.0, 1.0, 0.0]), temperature)
    exponentials = np.exp(np.array([2.0, 1.0, 0.0]) / temperature)
    np.testing.assert_allclose(found, exponentials / exponentials.sum(), rtol=1e-6)


def test_top_p_keeps_the_likeliest_that_reach_it():
    likely = models.probabilities(torch.tensor([2.0, 1.0, 0.0]))
    kept = models.probabilities(torch.tensor([2.0, 1.0, 0.0]), top_p=0.7)
    np.testing.assert_allclose(kept[:2], likely[:2] / likely[:2].sum(), rtol=1e-6)
    assert kept[2] == 0


@pytest.mark.parametrize(
    ("temperature", "top_p", "message"),
    [(0.0, 1.0, "temperature must be positive here, got 0.0"), (1.0, 1.1, "top_p must be above 0 .*, got 1.1")],
)
def test_a_softmax_needs_a_temperature(temperature, top_p, message):
    with pytest.raises(ValueError, match=message):
        models.probabilities(torch.zeros(3), temperature, top_p)


def test_a_text_ends_where_there_is_no_room(model, monkeypatch):
    ids = torch.tensor([model.tokenizer.encode(FRANCE)])
    small = models.Config(**vars(model.config) | {"context": ids.shape[1] + 2})
    monkeypatch.setattr(model, "config", small)
    assert len(list(generation.continued(model, ids, 64))) == 2


# --- the commands -------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(model, monkeypatch):
    """The commands get the model that is loaded already."""
    monkeypatch.setattr(models, "load", lambda path: model)


def test_generate_prints_text_and_what_comes_next(loaded, model, capsys):
    assert cli.main(["generate", FRANCE, "--tokens", "3"]) == 0
    assert capsys.readouterr().out == FRANCE + model.generate(FRANCE, n=3) + "\n"
    options = ["--temperature", "0.9", "--top-p", "0.8", "--seed", "4", "--chat", "-n", "3"]
    assert cli.main(["generate", "Hello", *options]) == 0
    answer = model.generate("Hello", 3, temperature=0.9, top_p=0.8, seed=4, chat=True)
    assert capsys.readouterr().out == answer + "\n"


def test_generate_says_what_is_wrong(loaded, capsys):
    assert cli.main(["generate", ""]) == 2
    assert capsys.readouterr().err == (
        "mha-tutorial: error: the prompt is empty; a model continues one token or more\n"
    )
