"""The weights that transformers hands out can be seen, and where it hands out none, it is said why."""

import numpy as np
import pytest
import torch

from mha_tutorial.explorers.heads import view

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
transformers = pytest.importorskip("transformers", reason="not installed; `make test-frameworks` installs it")

WORDS = ["She", " sat", " down", "."]
SIZES = {
    "BertModel": {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 14},
    "GPT2Model": {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16},
}


def attention_of(name, kernel):
    """What a small random model hands out for four tokens."""
    torch.manual_seed(0)
    config = getattr(transformers, name).config_class(vocab_size=29, **SIZES[name])
    model = getattr(transformers, name)._from_config(config, attn_implementation=kernel).eval()
    with torch.inference_mode():
        return model(torch.tensor([[3, 1, 4, 15]]), output_attentions=True).attentions


@pytest.mark.parametrize("name", SIZES)
def test_eager_models_can_be_seen(name):
    attention = attention_of(name, "eager")
    shown = view(attention, WORDS)
    assert shown.attention.shape == (2, 3, 4, 4)
    for layer, expected in zip(shown.attention, attention, strict=True):
        np.testing.assert_array_equal(layer, expected[0].double().numpy())


@pytest.mark.parametrize("name", SIZES)
def test_fused_models_have_none_to_be_seen(name):
    with pytest.raises(TypeError, match='attn_implementation="eager"'):
        view(attention_of(name, "sdpa"), WORDS)
