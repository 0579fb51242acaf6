"""How much faster a layer gets when loops become array operations. Writes mha_tutorial/results/numpy-layer.json.

python benchmarks/numpy_layer.py
"""

import numpy as np
from harness import ratios, save

from mha_tutorial import MultiHeadAttention, RowWeights
from mha_tutorial.reference import loops, row


def main() -> None:
    rng = np.random.default_rng(0)
    measured = {}
    for label, (b, n, d_model, h), rounds in (
        ("small", (2, 10, 32, 4), 31),
        ("large", (2, 128, 512, 8), 21),
    ):
        weights, x = RowWeights.random(rng, d_model, h), rng.normal(size=(b, n, d_model))
        layer = MultiHeadAttention(weights)
        variants = {
            "one head at a time": lambda x=x, w=weights: one_head_at_a_time(x, w),
            "all heads at once": lambda x=x, layer=layer: layer(x),
        }
        if label == "small":
            variants = {
                "scalar loops": lambda x=x, w=weights.T: loops.multi_head(*[x.mT] * 3, w).output.mT
            } | variants
        expected = row.multi_head(x, x, x, weights).output
        measured[label] = {
            "b, n, d_model, h": [b, n, d_model, h],
            "ratios": ratios(variants, "all heads at once", expected, rounds, rtol=1e-12),
        }
    path = save("numpy-layer", measured)
    for label, result in measured.items():
        print(label, result["b, n, d_model, h"])
        for name, ratio in result["ratios"].items():
            print(f"  {name:20} {ratio['median']:8.2f}  ({ratio['low']:.2f} to {ratio['high']:.2f})")
    print(path)


def one_head_at_a_time(x: np.ndarray, weights: RowWeights) -> np.ndarray:
    """Each text and each head by itself, with matrix products; what the heads write is added up."""
    output = np.zeros_like(x)
    for b in range(len(x)):
        for head in range(weights.h):
            q = x[b] @ weights.W_q[head] + weights.b_q[head]
            k = x[b] @ weights.W_k[head] + weights.b_k[head]
            v = x[b] @ weights.W_v[head] + weights.b_v[head]
            output[b] += row.attention(q, k, v) @ weights.W_o[head]
    return output + weights.b_o


if __name__ == "__main__":
    main()
