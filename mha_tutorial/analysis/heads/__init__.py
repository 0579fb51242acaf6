"""What the heads of a model do: where they look, what they add, and what is missing without them.

The scores need the attention of any model, as an array; the rest a `mha_tutorial.models.Decoder`.
"""

from ..._extras import require

require("mha_tutorial.analysis.heads", "torch")

from ...explorers.heads import view  # noqa: E402
from .ablation import ablated, gated, mean_heads, sensitivity  # noqa: E402
from .attribution import Attribution, contributions, logit_attribution  # noqa: E402
from .circuits import copying, ov, qk  # noqa: E402
from .scores import distance, duplicate_token, entropy, first_token, induction, previous_token, table  # noqa: E402

__all__ = [
    "Attribution",
    "ablated",
    "contributions",
    "copying",
    "distance",
    "duplicate_token",
    "entropy",
    "first_token",
    "gated",
    "induction",
    "logit_attribution",
    "mean_heads",
    "ov",
    "previous_token",
    "qk",
    "sensitivity",
    "table",
    "view",
]
