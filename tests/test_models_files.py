"""Models from files: what is computed from every family's files, and what is refused by name."""

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from mha_tutorial import Causal, Padding, models
from mha_tutorial.models import Config, config, tokenizer
from tests.helpers import assert_close
from tests.model_helpers import (
    CONTEXT,
    D_K,
    FAMILIES,
    LAYERS,
    VOCABULARY,
    H,
    draw_tensors,
    logits_by_hand,
    write_folder,
    write_gguf,
)
from tests.model_helpers import config as fields_of

N = 11


@pytest.fixture(params=FAMILIES)
def files(request, rng):
    fields = fields_of(request.param)
    return fields, draw_tensors(rng, fields)


@pytest.fixture
def llama(rng):
    fields = fields_of("llama")
    return fields, draw_tensors(rng, fields)


@pytest.fixture
def folder(llama, tmp_path):
    return write_folder(tmp_path / "llama", *llama)


@pytest.fixture
def model(folder):
    return models.load(folder, dtype=torch.float64)


@pytest.fixture
def some_ids(rng):
    return rng.integers(VOCABULARY, size=N)


def logits(model, ids, **options):
    return model(torch.as_tensor(np.atleast_2d(ids)), **options).double().numpy()


# --- the families -------------------------------------------------------------------------------------------------


def test_logits_are_those_of_plain_numpy(files, some_ids, tmp_path):
    model = models.load(write_folder(tmp_path, *files, shards=2), dtype=torch.float64)
    assert_close(logits(model, some_ids)[0], logits_by_hand(*files, some_ids), rtol=1e-6)  # frequencies of 32 bits
    narrow = models.load(tmp_path)
    assert narrow.embedding.weight.dtype == torch.float32
    assert_close(logits(narrow, some_ids)[0], logits_by_hand(*files, some_ids), rtol=1e-4)


def test_cached_tokens_are_those_of_one_pass(files, some_ids, tmp_path):
    model = models.load(write_folder(tmp_path, *files), dtype=torch.float64)
    caches, ids = model.caches(1, N), torch.as_tensor(some_ids)[None]
    parts = [model(ids[:, :4], caches=caches), *(model(ids[:, [i]], caches=caches) for i in range(4, N))]
    assert_close(torch.cat(parts, dim=1).numpy(), logits(model, some_ids))
    assert_close(model(ids, last=True).numpy(), logits(model, some_ids)[:, -1:])


def test_a_gguf_gives_the_logits_of_the_folder(llama, model, some_ids, tmp_path):
    from_gguf = models.load(write_gguf(tmp_path / "small.gguf", llama[1]), dtype=torch.float64)
    assert from_gguf.config.eps == pytest.approx(1e-5)  # of 32 bits there
    assert replace(from_gguf.config, eps=1e-5) == model.config
    assert_close(logits(from_gguf, some_ids), logits(model, some_ids), rtol=1e-9)
    assert from_gguf.output.weight is from_gguf.embedding.weight
    untied = llama[1] | {"lm_head.weight": -llama[1]["model.embed_tokens.weight"]}
    opposite = models.load(write_gguf(tmp_path / "untied.gguf", untied), dtype=torch.float64)
    assert_close(logits(opposite, some_ids), -logits(model, some_ids), rtol=1e-9)


def test_left_padding_changes_nothing(files, rng, tmp_path):
    model = models.load(write_folder(tmp_path, *files), dtype=torch.float64)
    texts = [rng.integers(VOCABULARY, size=n) for n in (5, N, 8)]
    padded = np.stack([np.pad(text, (N - len(text), 0)) for text in texts])
    padding = Padding([len(text) for text in texts], side="left")
    together, caches = logits(model, padded, visible=padding), model.caches(3, N)
    in_caches = logits(model, padded, visible=padding, caches=caches)
    for i, text in enumerate(texts):
        for found in (together, in_caches):
            assert_close(found[i, N - len(text) :], logits(model, text)[0], rtol=1e-5)  # angles of 32 bits


def test_a_trace_holds_every_step(model, some_ids):
    ids = torch.as_tensor(some_ids)[None]
    trace = model.trace(ids)
    assert torch.equal(trace.logits, model(ids))
    assert trace.attention.shape == (LAYERS, 1, H, N, N)
    assert_close(trace.attention.sum(-1).numpy(), np.ones((LAYERS, 1, H, N)))
    assert torch.equal(trace.residual[0], model.embedding(ids))
    x = trace.residual[1]
    block = model.blocks[1]
    steps = block.attention.trace(block.attention_norm(x), visible=Causal())
    assert_close(trace.layers[1].scores.numpy(), steps.scores.numpy())
    assert_close(trace.residual[2].numpy(), block(x, visible=Causal()).numpy())
    assert_close(model.output(model.norm(trace.residual[-1])).numpy(), trace.logits.numpy())


def test_without_a_head_its_rows_of_the_output_count_for_nothing(files, some_ids, tmp_path):
    fields, tensors = files
    model = models.load(write_folder(tmp_path, *files), dtype=torch.float64)
    before = logits(model, some_ids)
    changed = model.without([(2, 5), (0, 0), (2, 1)])
    cut = {name: x.copy() for name, x in tensors.items()}
    for layer, head in ((2, 5), (0, 0), (2, 1)):
        cut[f"model.layers.{layer}.self_attn.o_proj.weight"][:, head * D_K : (head + 1) * D_K] = 0
    assert_close(logits(changed, some_ids)[0], logits_by_hand(fields, cut, some_ids), rtol=1e-6)
    assert np.array_equal(logits(model, some_ids), before)
    own = {id(x) for x in changed.parameters()} - {id(x) for x in model.parameters()}
    assert len(own) == 2  # the two matrices that were changed


@pytest.mark.parametrize("head", [(LAYERS, 0), (0, H), (-1, 0), (0, -1)])
def test_a_head_that_is_not_there_is_refused(head, model):
    with pytest.raises(
        ValueError, match=rf"there is no head \({head[0]}, {head[1]}\): layers are 0 to 2, heads 0 to 5"
    ):
        model.without([head])


# --- what is given to a model -------------------------------------------------------------------------------------

WRONG = {
    "no integers": (torch.ones(1, 3), TypeError, r"ids must be a tensor of integers, .*got torch.float32"),
    "a list": ([[1, 2]], TypeError, "ids must be a tensor of integers, .*got list"),
    "one axis": (torch.tensor([1, 2]), ValueError, r"ids must be \(b, n\) with one token or more, got \(2,\)"),
    "none": (torch.zeros(1, 0, dtype=torch.long), ValueError, r"one token or more, got \(1, 0\)"),
    "too many": (torch.zeros(1, CONTEXT + 1, dtype=torch.long), ValueError, "54 tokens are more than the 53 that"),
    "unknown": (torch.tensor([[3, VOCABULARY]]), ValueError, "tokens have numbers from 0 to 66, got 3 to 67"),
    "negative": (torch.tensor([[3, -1]]), ValueError, "tokens have numbers from 0 to 66, got -1 to 3"),
}


@pytest.mark.parametrize(("ids", "kind", "message"), WRONG.values(), ids=WRONG)
def test_wrong_tokens_are_refused(ids, kind, message, model):
    for way in (model, model.trace):
        with pytest.raises(kind, match=message):
            way(ids)


def test_a_text_in_caches_ends_where_the_model_ends(model):
    caches = model.caches(1, CONTEXT + 3)
    model(torch.zeros(1, CONTEXT, dtype=torch.long), caches=caches)
    with pytest.raises(ValueError, match="54 tokens are more than the 53 that this model can read"):
        model(torch.zeros(1, 1, dtype=torch.long), caches=caches)


def test_a_model_without_a_tokenizer_reads_no_text(model):
    assert model.tokenizer is None
    with pytest.raises(ValueError, match="loaded without a tokenizer, and cannot read a text"):
        model.generate("the")


# --- what is refused by name --------------------------------------------------------------------------------------

FIELDS = {
    "another architecture": (
        {"model_type": "gpt2"},
        "the architecture 'gpt2' is none of llama, mistral, qwen2, qwen3",
    ),
    "none": ({"model_type": None}, "the architecture None is none of"),
    "longer texts": (
        {"rope_scaling": {"type": "linear"}},
        r"rope_scaling = \{'type': 'linear'\} is not known here",
    ),
    "other positions": (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        "rope_parameters = .*'yarn'.* are not known here",
    ),
    "a part of the width": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "rope_parameters = .*partial_rotary_factor.* are not known here",
    ),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not known here, only 'silu'"),
    "an unknown field": (
        {"attn_logit_softcapping": 50.0},
        "the field 'attn_logit_softcapping' = 50.0 is not known",
    ),
    "quantised": ({"quantization_config": {}}, r"quantization_config = \{\} is not known here, only None"),
    "layers of two kinds": (
        {"layer_types": ["sliding_attention"]},
        "layer_types of sliding_attention are not known in a",
    ),
    "a missing field": ({"rms_norm_eps": None}, "the field 'rms_norm_eps' is missing"),
}


@pytest.mark.parametrize(("changes", "message"), FIELDS.values(), ids=FIELDS)
def test_a_field_that_would_change_the_result_is_refused(changes, message, folder):
    (folder / "config.json").write_text(json.dumps(fields_of("llama", **changes)))
    with pytest.raises(ValueError, match=f"config.json: {message}"):
        models.load(folder)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window = True is not known here, only False"),
        ("qwen2", {"attention_bias": True}, "attention_bias = True is not known in a qwen2"),
        ("qwen3", {"head_dim": None}, "the field 'head_dim' is missing"),
        ("mistral", {"num_key_value_heads": None}, "the field 'num_key_value_heads' is missing"),
    ],
)
def test_a_family_has_rules_of_its_own(family, changes, message):
    with pytest.raises(ValueError, match=message):
        config.from_json(fields_of(family, **changes))


def test_what_is_left_out_is_what_the_library_takes():
    fields = fields_of("llama")
    for name in ("num_key_value_heads", "head_dim", "tie_word_embeddings"):
        del fields[name]
    fields["hidden_size"] = 24
    found = config.from_json(fields)
    assert (found.h_kv, found.d_k, found.base, found.tied) == (6, 4, 10000.0, False)
    fields = fields_of("mistral")
    del fields["sliding_window"]
    assert config.from_json(fields).window == 4096


TENSORS = {
    "left over": (
        {"model.layers.0.self_attn.sinks": (H,)},
        "the tensor 'model.layers.0.self_attn.sinks' is not known",
    ),
    "outside": ({"score.weight": (2, 2)}, "the tensor 'score.weight' is not known in a llama"),
    "of another shape": ({"model.norm.weight": (3,)}, r"norm.weight is expected to be \(22,\), and is \(3,\)"),
    "a second matrix": (
        {"lm_head.weight": (VOCABULARY, 22)},
        "tie_word_embeddings is true, but there is another matrix",
    ),
}


@pytest.mark.parametrize(("added", "message"), TENSORS.values(), ids=TENSORS)
def test_a_tensor_that_does_not_fit_is_refused(added, message, llama, tmp_path):
    fields, tensors = llama
    tensors = tensors | {name: np.ones(shape, np.float32) for name, shape in added.items()}
    with pytest.raises(ValueError, match=message):
        models.load(write_folder(tmp_path, fields, tensors))


def test_frequencies_of_older_files_are_passed_over(llama, folder, some_ids, model, tmp_path):
    fields, tensors = llama
    tensors = tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(5, np.float32)}
    older = models.load(write_folder(tmp_path / "older", fields, tensors), dtype=torch.float64)
    assert_close(logits(older, some_ids), logits(model, some_ids))


def test_a_tensor_that_is_missing_is_named(llama, tmp_path):
    fields, tensors = llama
    del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.embed_tokens.weight"]
    with pytest.raises(
        ValueError, match=r"is incomplete: 3 tensors are missing, blocks.1.feed_forward.up.weight among"
    ):
        models.load(write_folder(tmp_path, fields, tensors))


def test_numbers_that_are_none_are_refused(llama, tmp_path):
    fields, tensors = llama
    tensors["model.norm.weight"][3] = np.nan
    with pytest.raises(ValueError, match=r"is corrupt: norm.weight holds what is not a finite number"):
        models.load(write_folder(tmp_path, fields, tensors))


# --- files that are no models -------------------------------------------------------------------------------------


def test_nothing_there_says_which_ways_there_are(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"there is no model at .*nowhere: `make model` .*`hf download`"):
        models.load(tmp_path / "nowhere")
    monkeypatch.setenv("MHA_CACHE", str(tmp_path / "empty"))
    with pytest.raises(
        FileNotFoundError, match=r"the model is not in .*empty: `make model` .*a GGUF.*Hugging Face"
    ):
        models.load()


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "picture.gguf").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(
        ValueError, match=r"picture.gguf is neither a GGUF, which begins with b'GGUF' and not b'.*PNG'"
    ):
        models.load(tmp_path / "picture.gguf")
    with pytest.raises(
        FileNotFoundError, match=r"has no config.json: a model's folder is one as `hf download` makes"
    ):
        models.load(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe"])
def test_a_config_that_cannot_be_read_is_refused(content, folder):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config.json cannot be read"):
        models.load(folder)


def test_a_folder_needs_safe_tensors(folder):
    for path in folder.glob("*.safetensors"):
        path.rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"holds no .safetensors file; pickles \(.bin\) are never read"):
        models.load(folder)


def test_a_cut_file_of_tensors_is_refused(folder):
    (path,) = folder.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is corrupt or cut off"):
        models.load(folder)


@pytest.mark.parametrize("kept", [4, 23, 300, 900, 0.5, 0.99])
def test_a_cut_gguf_is_refused(kept, llama, tmp_path):
    path = write_gguf(tmp_path / "cut.gguf", llama[1])
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(ValueError, match=r"cut.gguf is corrupt or cut off"):
        models.load(path)


def test_a_corrupt_gguf_is_refused(llama, tmp_path):
    path = write_gguf(tmp_path / "corrupt.gguf", llama[1])
    content = path.read_bytes()
    path.write_bytes(content.replace(b"llama.block_count", b"llama.\xff\xfeock_count"))
    with pytest.raises(ValueError, match=r"corrupt.gguf is corrupt or cut off"):
        models.load(path)
    path.write_bytes(content.replace(b"llama.block_count", b"llama.clock_count"))
    with pytest.raises(ValueError, match=r"GGUF: the field 'block_count' is missing"):
        models.load(path)


GGUFS = {
    "architecture": ({"architecture": "phi2"}, "the architecture 'phi2' is not known here, only 'llama'"),
    "rotary width": ({"rope.dimension_count": 6}, "llama.rope.dimension_count = 6 is not known here, only 10"),
    "unknown field": (
        {"expert_count": 8},
        "the field 'llama.expert_count' = 8 might change the result, and is not known",
    ),
    "rules of cutting": ({"pre": "llama-bpe"}, "the tokenizer 'gpt2' with the rules 'llama-bpe' is not known here"),
}


@pytest.mark.parametrize(("changes", "message"), GGUFS.values(), ids=GGUFS)
def test_a_gguf_that_would_be_computed_otherwise_is_refused(changes, message, llama, tmp_path):
    path = write_gguf(tmp_path / "other.gguf", llama[1], **changes)
    with pytest.raises(ValueError, match=message):
        models.load(path)


def test_a_type_of_number_that_cannot_be_read_is_refused(llama, tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "other.gguf", llama[1])

    def unknown(data, kind):
        raise NotImplementedError("which is not implemented")

    monkeypatch.setattr(gguf, "dequantize", unknown)
    with pytest.raises(
        ValueError, match=r"other.gguf: token_embd.weight is of the type F32, which is not implemented"
    ):
        models.load(path)


# --- tokenizers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def words(llama, tmp_path):
    return models.load(write_gguf(tmp_path / "small.gguf", llama[1])).tokenizer


def test_a_tokenizer_of_a_gguf_cuts_as_the_file_says(words):
    assert words.tokens("the 42the<|end|> th") == ["the", " ", "4", "2", "the", "<|end|>", " ", "th"]
    assert words.decode(words.encode("the 42<|end|>a")) == "the 42a"
    assert words.ends == {0}


def test_a_tokenizer_of_a_folder_is_the_one_of_its_file(words, folder):
    words.library.save(str(folder / "tokenizer.json"))
    text = "the 7 of the"
    alone = models.load(folder).tokenizer
    assert (alone.encode(text), alone.ends, alone.template) == (words.encode(text), set(), None)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 3]}))
    told = {"chat_template": "{{ messages[0]['content'] }}{{ bos_token }}", "bos_token": {"content": "<|end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    full = models.load(folder).tokenizer
    assert (full.ends, full.chat("a")) == ({0, 3}, "a<|end|>")
    (folder / "chat_template.jinja").write_text(
        "{{ messages[0]['role'] }}{% if add_generation_prompt %}:{% endif %}"
    )
    assert models.load(folder).tokenizer.chat("a") == "user:"
    (folder / "config.json").write_text(json.dumps(fields_of("llama", eos_token_id=5)))
    (folder / "generation_config.json").unlink()
    assert models.load(folder).tokenizer.ends == {5}


def test_a_tokenizer_file_that_is_none_is_refused(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json cannot be read"):
        models.load(folder)


def test_a_first_token_is_added_where_it_is_asked_for(words):
    begun = tokenizer.Tokenizer(words.library, begin=7)
    assert begun.encode("the") == [7, *words.encode("the")]


def test_a_conversation_needs_a_template(words):
    with pytest.raises(ValueError, match="no template for conversations; leave chat out"):
        words.chat("the")
    for template in ("{{ messages[0] ", "{{ messages.nothing.at.all }}"):
        broken = tokenizer.Tokenizer(words.library, template=template)
        with pytest.raises(ValueError, match="the model's template for conversations cannot be used"):
            broken.chat("the")


def test_half_a_character_is_refused(words):
    with pytest.raises(ValueError, match=r"no valid Unicode: at 4 stands '\\udcff', which UTF-8 lacks"):
        words.encode("the \udcff")


def test_a_character_of_several_tokens_comes_when_it_is_whole():
    library = pytest.importorskip("tokenizers")
    letters = {"Ã": 0, "©": 1, "a": 2}  # as the bytes of é are written
    made = library.Tokenizer(library.models.BPE(letters, []))
    made.decoder = library.decoders.ByteLevel()
    assert list(tokenizer.Tokenizer(made).pieces([2, 0, 1, 2])) == ["a", "é", "a"]


def test_sizes_of_a_model_are_plain_to_see():
    made = models.Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5, tied=True))
    block = 24 * 4 * (6 + 2 + 2 + 6) + 3 * 24 * 40 + 2 * 24
    assert sum(x.numel() for x in made.parameters()) == 17 * 24 + 2 * block + 24
