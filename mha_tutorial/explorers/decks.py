"""The cards: for each deck, by a name of its own, what is asked and what is the answer. Tokens are rows."""

SYMBOLS = {
    "n": ("n", "How many queries there are: the rows of Q."),
    "m": ("m", "How many keys there are, and as many values: the rows of K and of V."),
    "d_model": ("d_model", "The width of a token's vector, as it goes into the layer and comes out of it."),
    "d_k": ("d_k", "The width of a query and of a key within one head. Its root divides the scores."),
    "d_v": ("d_v", "The width of a value within one head, and so of the head's result. It need not be d_k."),
    "H": ("H, and in code `h`", "How many heads there are. In formulas h counts through them."),
    "h_kv": ("H_kv", "How many heads keys and values have. Where it is less than H, query heads share them."),
    "X": ("X", "The tokens: n × d_model, a row for each."),
    "Q": ("Q: two meanings", "In Attention the queries, n × d_k. In MultiHead the tokens that ask, n × d_model."),
    "W_q": ("W_h^Q", "The query projection of head h: d_model × d_k."),
    "W_v": ("W_h^V", "The value projection of head h: d_model × d_v."),
    "S": ("S", "The scores, before softmax: a row for each query, a column for each key."),
    "A": ("A", "The attention weights, softmax of the scores. Each row sums to one."),
    "W_o": ("W^O", "The output projection, H d_v × d_model. W_h^O is the block of rows that head h meets."),
    "b_o": ("b^O", "The output bias: one for the whole layer, added once, after the sum over heads."),
    "visible": ("`visible`", "The mask: which query may attend to which key. True means it may."),
    "R": ("R_i", "The rotation by position i that RoPE applies to queries and keys: d_k × d_k."),
    "L": ("L", "In flash attention, the logarithm of a query's sum of exponentials."),
}

SHAPES = {
    "scores": ("The scores of one head: Q is n × d_k and K is m × d_k", "n × m, from Q Kᵀ."),
    "head": ("The result of one head: A is n × m and V is m × d_v", "n × d_v, from A V."),
    "concat": ("All heads of each token side by side", "n × H d_v."),
    "batch-scores": ("The scores of a batch: (b, n, d_model) in H heads", "(b, H, n, n)."),
    "split": ("(b, n, d_model), split into H heads", "(b, H, n, d_model / H): a reshape, then a transpose."),
    "output": ("The output of a layer: n queries, m keys, H heads", "n × d_model. Neither m nor H is in it."),
    "W_o": ("W^O for 8 heads with d_v = 64 and d_model = 512", "512 × 512: H d_v rows."),
    "packed": ("W^Q of 4 heads of width 6, packed, for tokens of width 20", "20 × 24: the heads side by side."),
    "linear": ("The weight of `nn.Linear(512, 64)`", "(64, 512), that is (out, in): the transpose is applied."),
    "in_proj": ("`in_proj_weight` of `nn.MultiheadAttention(512, 8)`", "(1536, 512): queries, keys, values."),
    "cross": ("Attention weights of one head, 3 English tokens asking 4 German ones", "3 × 4."),
    "padding": ("A padding mask of Hugging Face, as the scores (b, H, n, m) want it", "(b, 1, 1, m)."),
    "causal": ("A causal mask, as the scores (b, H, n, n) want it", "(n, n): text and head do not matter."),
    "grouped": ("Keys of a layer with 32 heads that share 8, width 128, m tokens", "(8, m, 128)."),
    "cache": (
        "Numbers kept for one token in one layer: 8 key-value heads, d_k = d_v = 128",
        "8 · (128 + 128) = 2,048.",
    ),
    "ov": ("OV of a head, and its rank", "d_model × d_model, and at most d_v."),
}

EQUATIONS = {
    "attention": ("Attention(Q, K, V), with a score f", "Softmax(f(Q, K)) V. In columns: V Softmax(f(Q, K))."),
    "softmax": ("Softmax of the scores S, entry i, j", "e^{S_ij} / Σ_l e^{S_il}: over the keys l of one query i."),
    "scaled": ("The scaled dot product", "Q Kᵀ / √d_k. In columns: Kᵀ Q / √d_k."),
    "variance": ("Var(q · k), for independent entries of mean 0 and variance 1", "d_k."),
    "shift": ("Softmax(S + c)", "Softmax(S): a number added to all scores of a query changes nothing."),
    "jacobian": ("∂A_j / ∂S_l, for the weights of one query", "A_j (δ_jl − A_l)."),
    "head": ("head_h", "Attention(Q W_h^Q, K W_h^K, V W_h^V)."),
    "multi-head": ("MultiHead(Q, K, V), in two forms", "[head_1 … head_H] W^O = Σ_h head_h W_h^O, plus b^O once."),
    "residual": ("The sum around the layer", "X + MultiHead(X, X, X)."),
    "pre-norm": ("The attention part of a pre-norm block", "X + MultiHead(RMSNorm(X))."),
    "qk": ("QK_h, which says where a head looks", "W_h^Q (W_h^K)ᵀ. The score of tokens i and j is x_i QK_h x_jᵀ."),
    "ov": ("OV_h, which says what a head writes", "W_h^V W_h^O."),
    "parameters": ("Parameters of a layer of the usual widths, without biases", "4 d_model², whatever H is."),
    "work": (
        "Multiply-adds of self-attention, usual widths",
        "4 n d_model² + 2 n² d_model; equal at n = 2 d_model.",
    ),
    "rope": ("The score of a query at i and a key at j, with RoPE", "q_i R_{i−j} k_jᵀ: the distance alone enters."),
    "alibi": ("The bias of ALiBi, and the slope of head h of H", "−s_h |i − j|, with s_h = 2^{−8h/H}."),
    "online": (
        "A new block raises the maximum from μ to μ'. What happens to the sums?",
        "Both are multiplied by e^{μ−μ'}.",
    ),
    "merge": (
        "Two results over different keys, with log-sums L_1 and L_2",
        "They are averaged with weights e^{L_1} to e^{L_2}.",
    ),
    "cache": ("Bytes of a KV cache", "b · layers · m · H_kv · (d_k + d_v) · bytes per number."),
    "gradient": (
        "The gradient with respect to a score",
        "A_ij (Ā_ij − Σ_l A_il Ā_il): weight times excess over the mean.",
    ),
    "norm": ("RMSNorm(x)", "x divided by the root of the mean of its squares, times a gain."),
    "transposed": (
        "From columns to rows",
        "Transpose tokens, matrices and mask. Every product is reversed, and every step transposed.",
    ),
}

DECKS: dict[str, dict[str, tuple[str, str]]] = {"symbols": SYMBOLS, "shapes": SHAPES, "equations": EQUATIONS}
