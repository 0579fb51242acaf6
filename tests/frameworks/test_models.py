"""Language models from files: what transformers says of the same files, we say."""

from pathlib import Path

import pytest
import torch

from mha_tutorial import Padding, models
from mha_tutorial.models import generation

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
transformers = pytest.importorskip("transformers", reason="not installed; `make test-frameworks` installs it")

TEXTS = [
    "The capital of France is",
    "She deposited the money at the bank because it was safe there.",
    "The animal didn't cross the street because it was too tired",
    "When Mary and John went to the store, John gave a drink to",
    "def factorial(n):\n    return 1 if n == 0 else n * factorial(n - 1)\n",
    "1, 2, 3, 5, 8, 13, 21,",
    "Die Bank am Fluss ist grün, die Bank in der Stadt ist grau.",
    "a",
    "<|im_start|>user\nWhat is attention?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a little girl who lived near the woods with her grandmother. " * 4,
]
PROMPTS = TEXTS[:5]
TOKENS = 64


@pytest.fixture(scope="module")
def ours(model_file):
    return models.load(model_file)


@pytest.fixture(scope="module")
def theirs(model_file):
    pytest.importorskip("accelerate", reason="not installed; `make test-frameworks` installs it")
    return transformers.AutoModelForCausalLM.from_pretrained(
        model_file.parent, gguf_file=model_file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module")
def their_words(model_file):
    return transformers.AutoTokenizer.from_pretrained(model_file.parent, gguf_file=model_file.name)


def rows(ours, text):
    return torch.tensor([ours.tokenizer.encode(text)])


# --- the trained model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@torch.inference_mode()
def test_logits_and_attention_are_the_librarys(text, ours, theirs):
    ids = rows(ours, text)
    expected = theirs(ids, output_attentions=True)
    trace = ours.trace(ids)
    assert torch.equal(trace.logits.argmax(-1), expected.logits.argmax(-1))
    torch.testing.assert_close(trace.logits, expected.logits, rtol=0, atol=2e-4)
    torch.testing.assert_close(ours(ids), expected.logits, rtol=0, atol=2e-4)
    torch.testing.assert_close(trace.attention, torch.stack(expected.attentions), rtol=0, atol=2e-5)


@torch.inference_mode()
def test_texts_of_several_lengths_together_are_each_as_alone(ours, theirs):
    texts = [rows(ours, text)[0] for text in TEXTS[:4]]
    n = max(map(len, texts))
    lengths = [len(text) for text in texts]
    ids = torch.stack([torch.nn.functional.pad(text, (n - len(text), 0)) for text in texts])
    mask = torch.stack([torch.arange(n) >= n - length for length in lengths])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    together = ours(ids, visible=Padding(lengths, side="left"))
    expected = theirs(ids, attention_mask=mask.long(), position_ids=positions).logits
    for i, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        for other in (ours(text[None])[0], theirs(text[None]).logits[0], expected[i, n - length :]):
            torch.testing.assert_close(together[i, n - length :], other, rtol=0, atol=2e-4)


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_greedy_text_is_the_librarys(prompt, ours, theirs):
    ids = rows(ours, prompt)
    options = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": 49_151}  # a token that never comes
    expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :]
    assert len(expected) == TOKENS
    found = torch.tensor(list(generation.continued(ours, ids, TOKENS)))
    assert torch.equal(found, expected)


# --- its tokenizer ------------------------------------------------------------------------------------------------

LOST = ["a  2", "a ½", " ١٢", "  7"]  # the library does not cut digits off first, so that spaces go with them


@pytest.mark.parametrize("text", [*TEXTS, "Grüße, 世界! 🙂", "tab\tand\r\n line", "a  b   c ", "7 days, 1999"])
def test_tokens_are_the_librarys(text, ours, their_words):
    assert ours.tokenizer.encode(text) == their_words(text)["input_ids"]


@pytest.mark.parametrize("text", LOST)
def test_what_the_library_loses_of_the_files_rules(text, ours, their_words):
    assert ours.tokenizer.encode(text) != their_words(text)["input_ids"]
    assert ours.tokenizer.decode(ours.tokenizer.encode(text)) == text


def test_a_conversation_is_put_as_the_library_puts_it(ours, their_words):
    messages = [{"role": "user", "content": "What is attention?"}]
    expected = their_words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.tokenizer.chat("What is attention?") == expected


def test_the_tokenizer_of_a_folder_is_the_librarys(ours, tmp_path):
    ours.tokenizer.library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    library, own = transformers.AutoTokenizer.from_pretrained(tmp_path), models.tokenizer.from_folder(tmp_path)
    for text in [*TEXTS, *LOST]:
        assert own.encode(text) == library(text)["input_ids"]


# --- small random models of every family --------------------------------------------------------------------------

SIZES = {
    "vocab_size": 101,
    "hidden_size": 42,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "intermediate_size": 37,
    "max_position_embeddings": 97,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SMALL = {
    "Llama": {},
    "Llama with biases": {"attention_bias": True},
    "SmolLM": {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    "Mistral": {"sliding_window": 5},
    "Qwen2": {},
    "Qwen3": {},
}
CLASSES = {"SmolLM": "Llama", "Llama with biases": "Llama"}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("shard", ["50GB", "20KB"])
@torch.inference_mode()
def test_small_models_are_the_librarys(name, shard, tmp_path):
    family = CLASSES.get(name, name)
    options = {**SIZES, **SMALL[name]}
    if family == "Qwen2":
        del options["head_dim"]  # which it takes from the others
        options["hidden_size"] = 48
    config = getattr(transformers, f"{family}Config")(**options, attn_implementation="eager")
    torch.manual_seed(0)
    library = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for x in library.parameters():
        torch.nn.init.normal_(x, mean=float(x.ndim == 1), std=0.1)
    library.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(Path(tmp_path).glob("*.safetensors"))) > 1) == (shard == "20KB")
    model, ids = models.load(tmp_path), torch.randint(101, (2, 17), generator=torch.Generator().manual_seed(1))
    expected = library(ids, output_attentions=True)
    found = model.trace(ids)
    scale = expected.logits.abs().max().item()
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=2e-6 * scale)
    torch.testing.assert_close(found.attention, torch.stack(expected.attentions), rtol=0, atol=2e-6)
