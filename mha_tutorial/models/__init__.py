"""A decoder of the Llama family on the layer of this package, with trained weights."""

from .._extras import require

require("mha_tutorial.models", "torch")

from .config import Config  # noqa: E402
from .decoder import Decoder, ModelTrace  # noqa: E402
from .fetching import fetch, path  # noqa: E402
from .generation import probabilities  # noqa: E402
from .loading import load  # noqa: E402
from .tokenizer import Tokenizer  # noqa: E402

__all__ = ["Config", "Decoder", "ModelTrace", "Tokenizer", "fetch", "load", "path", "probabilities"]
