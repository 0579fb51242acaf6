"""The faults that the checker can name: what one sees, what it is, and the one line that decides."""

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault that people have met.

    Parameters
    ----------
    sign
        What one sees of it.
    what
        What is wrong.
    decides
        One line that tells it from others.
    page
        The chapter of the book that explains the step.
    """

    sign: str
    what: str
    decides: str
    page: str


SCORE, MASKS, HEADS = "attention/scaled-dot-product", "tensors/masks", "heads/multi-head"
SHAPES, LAYOUTS, OUTPUT = "tensors/shapes", "practice/layouts", "heads/output-projection"
FLASH, TORCH, GRADIENTS = "torch/flash", "torch/layer", "tensors/gradients"
DECODING, POSITIONS, AVERAGE = "model/decoding", "model/positions", "attention/weighted-average"

FAULTS = {
    # scores
    "scale-missing": Fault(
        "weights near zero and one, the more so the wider a head",
        "the scores are not divided by sqrt(d_k)",
        "f(q / d_k**0.5, k, v) is right",
        SCORE,
    ),
    "scale-d-model": Fault(
        "weights more even than they should be",
        "the scores are divided by the root of the model's width, sqrt(h * d_k)",
        "f(q * h**0.5, k, v) is right; of a layer: with W_q and b_q times h**0.5",
        SCORE,
    ),
    "scale-twice": Fault(
        "weights nearly uniform",
        "the scores are divided by d_k: scaled twice, or without the root",
        "f(q * d_k**0.5, k, v) is right",
        SCORE,
    ),
    "scale-heads": Fault(
        "right with d_k heads only",
        "the scores are divided by the root of the number of heads",
        "f(q * (h / d_k)**0.5, k, v) is right",
        SCORE,
    ),
    "scale-values": Fault(
        "right while d_v = d_k",
        "the scores are divided by the root of the values' width",
        "f(q, k, v[..., :d_k]) is right",
        SCORE,
    ),
    "scale-tokens": Fault(
        "the same text in longer company gives other weights",
        "the scores are divided by the root of the number of keys",
        "repeat all keys and values: the output must not change",
        SCORE,
    ),
    "scale-inverted": Fault(
        "one weight is one, all others zero",
        "the scores are multiplied by sqrt(d_k)",
        "f(q / d_k, k, v) is right",
        SCORE,
    ),
    "scale-other": Fault(
        "weights too sharp or too even",
        "the factor of the scores is not 1/sqrt(d_k)",
        "weights of two keys: log(a1 / a2) / (q @ (k1 - k2)) is the factor",
        SCORE,
    ),
    "queries-and-keys-exchanged": Fault(
        "right for symmetric scores alone",
        "queries and keys have changed places",
        "f(k, q, v) is right where n = m",
        SCORE,
    ),
    "keys-as-values": Fault(
        "changing the values changes nothing",
        "the keys are averaged in place of the values",
        "f(q, k, v) == f(q, k, 2 * v)",
        AVERAGE,
    ),
    # softmax
    "softmax-over-queries": Fault(
        "one query's result depends on the other queries",
        "the softmax runs over the queries, not over the keys",
        "attention.sum(-1) is not 1, attention.sum(-2) is; the code says dim=-2 or axis=-2",
        AVERAGE,
    ),
    "softmax-over-heads": Fault(
        "one head's result depends on the others",
        "the softmax runs over the heads",
        "attention.sum(1) is 1",
        AVERAGE,
    ),
    "softmax-over-batch": Fault(
        "a text's result depends on which others are in the batch",
        "the softmax runs over the sequences",
        "f(x[:1]) != f(x)[:1]",
        AVERAGE,
    ),
    "softmax-over-all": Fault(
        "outputs shrink as queries are added",
        "one softmax runs over queries and keys together",
        "attention.sum((-2, -1)) is 1",
        AVERAGE,
    ),
    "softmax-missing": Fault(
        "outputs grow with the number of keys",
        "scores are used as weights: there is no softmax",
        "some weights are negative",
        AVERAGE,
    ),
    "softmax-not-normalised": Fault(
        "outputs grow with the number of keys",
        "the exponentials are not divided by their sum",
        "f(q, k, ones) is not 1",
        AVERAGE,
    ),
    "softmax-twice": Fault(
        "weights nearly uniform, whatever the scale",
        "the softmax is taken of weights",
        "no weight exceeds e / (e + m - 1)",
        AVERAGE,
    ),
    "softmax-overflow": Fault(
        "NaN once scores exceed 88 (float32) or 709 (float64)",
        "no maximum is subtracted before the exponential",
        "f(1000 * q, k, v) is NaN",
        SCORE,
    ),
    # masks
    "mask-inverted": Fault(
        "a model that trains far too well, or not at all",
        "the mask is read the other way: True means ignore here, and attend there",
        "f(..., ~mask) is right",
        MASKS,
    ),
    "mask-ignored": Fault(
        "with and without a mask the output is the same",
        "the mask has no effect: it is not passed on, the result of masked_fill is thrown away, or 1e-9 is added "
        "where -1e9 was meant",
        "f(q, k, v, mask) == f(q, k, v)",
        MASKS,
    ),
    "mask-added": Fault(
        "masked keys lose a little weight",
        "a mask of zeros and ones is added to the scores and hides nothing",
        "add log(mask) in place of mask",
        MASKS,
    ),
    "mask-multiplied": Fault(
        "masked keys keep the weight of a score of zero",
        "scores are multiplied by the mask: a score of zero is not hidden",
        "zero queries give the plain mean of all values",
        MASKS,
    ),
    "mask-after-softmax": Fault(
        "rows sum to less than one where something is hidden",
        "weights are set to zero after the softmax, when hidden keys have taken their share",
        "f(q, k, ones, mask) is less than 1",
        MASKS,
    ),
    "mask-finite-fill": Fault(
        "a hidden key wins where all visible scores are very low",
        "hidden scores get a finite number, and visible ones can lie below it",
        "make every visible score lower than the fill",
        MASKS,
    ),
    "mask-transposed": Fault(
        "queries and keys have changed places in the mask",
        "the mask is transposed",
        "f(..., mask.mT) is right where n = m",
        MASKS,
    ),
    "mask-head-order": Fault(
        "right for one sequence, or for one head",
        "a mask for sequences and heads is read head by head: repeat in place of repeat_interleave",
        "index of (sequence i, head j) is i * h + j",
        MASKS,
    ),
    "mask-of-first-sequence": Fault(
        "right for one sequence alone",
        "every sequence gets the mask of the first",
        "f(x, mask)[1:] != f(x[1:], mask[1:])",
        MASKS,
    ),
    "mask-of-first-head": Fault(
        "right for masks that are the same for all heads",
        "every head gets the mask of the first",
        "give heads masks of their own",
        MASKS,
    ),
    "causal-built-in": Fault(
        "without a mask the first query sees the first key alone",
        "the function hides the future although no mask was given; if it is meant to, pass causal=True",
        "changing the last key leaves the first output as it was",
        MASKS,
    ),
    "causal-peeks": Fault(
        "the loss falls to nearly nothing",
        "the triangle starts one key too late, and each token sees the next",
        "changing token t + 1 changes output t",
        MASKS,
    ),
    "causal-hides-itself": Fault(
        "the first token is NaN or zero",
        "the triangle leaves out the diagonal: no token sees itself",
        "the first output is not its own value",
        MASKS,
    ),
    "causal-upside-down": Fault(
        "tokens see the future and not the past",
        "the upper triangle is kept, not the lower one",
        "the last output is its own value",
        MASKS,
    ),
    "causal-top-left": Fault(
        "right for whole texts, wrong with a cache",
        "with fewer queries than keys the triangle starts at the first key, not at the last",
        "one query and m keys: it sees the first alone",
        MASKS,
    ),
    "causal-missing": Fault(
        "generated text disagrees with training, or the loss is too good",
        "the future is not hidden",
        "changing the last token changes the first output",
        MASKS,
    ),
    "hidden-leaks": Fault(
        "NaN or inf in padding reaches real tokens",
        "what is hidden is multiplied by zero, and 0 * NaN is NaN",
        "put NaN into a hidden key and value",
        MASKS,
    ),
    "blind-nan": Fault(
        "NaN for padded rows, then NaN in every gradient",
        "a query that sees nothing is given the softmax of nothing",
        "f with a row of the mask all False",
        MASKS,
    ),
    "blind-average": Fault(
        "padded rows look like real ones",
        "a query that sees nothing gets the average of what is hidden from it",
        "f with a row of the mask all False",
        MASKS,
    ),
    "mask-of-integers": Fault(
        "a tokenizer's mask of zeros and ones gives other numbers than its .bool()",
        "an integer mask is accepted and read otherwise than a boolean one",
        "f(..., mask.bool()) != f(..., mask)",
        MASKS,
    ),
    # heads
    "split-without-transpose": Fault(
        "order of tokens matters though there are no positions",
        "tokens are cut into heads by a reshape alone: view(b, h, n, d), not view(b, n, h, d).transpose(1, 2)",
        "permute the tokens: the output must permute",
        SHAPES,
    ),
    "merge-without-transpose": Fault(
        "a token's output holds pieces of other tokens",
        "heads are joined by a reshape alone, without transpose(1, 2) before it",
        "shuffle the tokens of x, without a mask: the outputs are not shuffled alike",
        SHAPES,
    ),
    "heads-innermost": Fault(
        "right for one head",
        "features are dealt out to the heads in turn: (d h) in place of (h d)",
        "one head agrees, two do not",
        SHAPES,
    ),
    "heads-reversed": Fault(
        "right for one head",
        "the heads meet the blocks of W_o in another order",
        "compare head by head",
        OUTPUT,
    ),
    "heads-averaged": Fault(
        "too small by the number of heads",
        "what the heads write is averaged, not summed",
        "output without bias times h is right",
        OUTPUT,
    ),
    "head-lost": Fault(
        "nearly right",
        "the last head does not reach the output",
        "change W_v of the last head",
        OUTPUT,
    ),
    "groups-strided": Fault(
        "right where every head has keys of its own",
        "query heads take turns with key-value heads: 0 1 0 1, not 0 0 1 1",
        "the code says repeat or tile, not repeat_interleave",
        HEADS,
    ),
    "groups-first": Fault(
        "right where every head has keys of its own",
        "every query head reads the first key-value head",
        "change the last key-value head: something must change",
        HEADS,
    ),
    "batch-first": Fault(
        "a text's result depends on which others are in the batch",
        "sequences are taken for tokens: batch first against tokens first",
        "f(x[:1]) != f(x)[:1]",
        SHAPES,
    ),
    "heads-and-tokens-exchanged": Fault(
        "heads attend to heads",
        "the axes of heads and tokens have changed places: (b, n, h, d) against (b, h, n, d)",
        "change one head: no other may change",
        SHAPES,
    ),
    # projections
    "output-projection-missing": Fault(
        "each head writes to its own features only",
        "W_o is not applied",
        "doubling W_o changes nothing",
        OUTPUT,
    ),
    "output-transposed": Fault(
        "every shape fits, nothing agrees",
        "W_o is transposed, which its square shape allows",
        "load W_o.T",
        LAYOUTS,
    ),
    "weights-transposed": Fault(
        "every shape fits, nothing agrees",
        "all matrices are stored (in, out) and read (out, in), or the reverse",
        "load every matrix transposed",
        LAYOUTS,
    ),
    "output-bias-missing": Fault(
        "off by the same vector at every token",
        "the output bias is not added",
        "(found - right) is one vector for all tokens",
        OUTPUT,
    ),
    "output-bias-repeated": Fault(
        "off by the same vector at every token",
        "the output bias is added more than once, as by every rank before an all-reduce",
        "(found - right) is a multiple of b_o",
        "torch/devices",
    ),
    "value-bias-missing": Fault(
        "off by the same vector at every token",
        "the bias of the values is not added",
        "(found - right) is b_v through W_o",
        HEADS,
    ),
    "query-bias-missing": Fault(
        "right while the bias is zero, as it is at first",
        "the bias of the queries is not added",
        "set b_q to zero: found equals right",
        HEADS,
    ),
    "keys-from-value-matrix": Fault(
        "every shape fits, nothing agrees",
        "keys are projected by the matrix of the values: the wrong third of a packed matrix",
        "rows 0:E are the queries', E:2E the keys', 2E:3E the values'",
        LAYOUTS,
    ),
    "values-from-key-matrix": Fault(
        "every shape fits, nothing agrees",
        "values are projected by the matrix of the keys",
        "one key: the output must be its value",
        LAYOUTS,
    ),
    "keys-and-values-swapped": Fault(
        "every shape fits, nothing agrees",
        "the matrices of keys and values have changed places",
        "exchange W_k and W_v",
        LAYOUTS,
    ),
    "queries-and-keys-swapped": Fault(
        "every shape fits, nothing agrees",
        "the matrices of queries and keys have changed places",
        "exchange W_q and W_k",
        LAYOUTS,
    ),
    "fused-head-by-head": Fault(
        "every shape fits, nothing agrees; right for one head",
        "a fused matrix that is stored head by head is read in three blocks",
        "load it with the layout that is named as alike",
        LAYOUTS,
    ),
    "fused-in-blocks": Fault(
        "every shape fits, nothing agrees; right for one head",
        "a fused matrix that is stored in three blocks is read head by head",
        "load it with the layout that is named as alike",
        LAYOUTS,
    ),
    "residual-inside": Fault(
        "the output resembles the input",
        "the tokens are added to the output: that is the block's step, not the layer's",
        "output - input is right",
        "model/block",
    ),
    # positions
    "positions-inside": Fault(
        "order of keys matters",
        "the function knows where keys stand; if it is meant to, as with rotary positions, pass prepare=",
        "permute keys and values together",
        POSITIONS,
    ),
    "rotary-pairs": Fault(
        "fluent nonsense; right for one token",
        "rotary pairs are neighbours on one side and half a head apart on the other",
        "prepare=Rotary(order=...) with the other order agrees",
        POSITIONS,
    ),
    "rotary-keys-left": Fault(
        "nearby tokens are treated as far ones",
        "queries are rotated and keys are not",
        "shift all positions: the scores must not change",
        POSITIONS,
    ),
    "rotary-values": Fault(
        "right for the first token only",
        "the values are rotated too",
        "one key at place 5: the output must be its value",
        POSITIONS,
    ),
    "rotary-opposite": Fault(
        "right on the diagonal only",
        "the angle has the other sign for queries or keys",
        "shift all positions: the scores must not change",
        POSITIONS,
    ),
    "rotary-twice": Fault(
        "distances count double",
        "keys and queries are rotated twice, as where a cache holds rotated keys",
        "positions // 2 gives what positions should",
        POSITIONS,
    ),
    # kernels
    "block-not-rescaled": Fault(
        "right for short texts",
        "what earlier blocks summed is not rescaled when the maximum grows",
        "as many keys as a block holds: right; one more: wrong",
        FLASH,
    ),
    "block-hidden": Fault(
        "zeros or NaN where the first block is hidden",
        "the running maximum starts at 0 or at a finite number, or minus infinity is subtracted from itself",
        "hide the first blocks and make visible scores very low",
        FLASH,
    ),
    "block-lost": Fault(
        "right where the length is a multiple of the block",
        "keys beyond the last whole block are left out",
        "change the last key of 131",
        FLASH,
    ),
    "dense-read": Fault(
        "garbage for transposed views, right for their copies",
        "memory is read as if it were densely packed",
        "f(q.contiguous(), ...) is right",
        TORCH,
    ),
    # state and types
    "dropout-in-eval": Fault(
        "two calls differ",
        "dropout acts in evaluation too",
        "f(x) != f(x)",
        TORCH,
    ),
    "state-kept": Fault(
        "the second call differs from the first",
        "something is kept from call to call: a cache, or a matrix scaled in place",
        "f(x) != f(x) though nothing is random",
        TORCH,
    ),
    "input-changed": Fault(
        "what comes after the layer computes with other inputs",
        "an input is changed in place",
        "compare the input with a copy of it",
        TORCH,
    ),
    "train-differs": Fault(
        "train() and eval() disagree with all dropout off",
        "the two modes take different paths, and one of them has a fault",
        "layer.train()(x) != layer.eval()(x) with p = 0",
        TORCH,
    ),
    "dtype-changed": Fault(
        "memory doubles, or the next layer complains of types",
        "the output has another type than the inputs, as where a NumPy scalar made float64 of float32",
        "output.dtype != q.dtype",
        SCORE,
    ),
    "sixteen-bit-scores": Fault(
        "near keys get the same weight in float16 and bfloat16",
        "scores are rounded to 16 bits before the softmax",
        "scores 184 and 184.5 give weights of one half",
        SCORE,
    ),
    "values-as-wide-as-keys": Fault(
        "an error where d_v is not d_k",
        "sizes of the values are taken from the keys",
        "f with d_v != d_k",
        SHAPES,
    ),
    "square-only": Fault(
        "an error where n is not m",
        "keys are taken to be as many as queries",
        "f with n != m",
        SHAPES,
    ),
    "wrong-shape": Fault(
        "the output has other axes than the queries",
        "the output is not shaped like the queries: axes were exchanged or joined",
        "print the shape",
        SHAPES,
    ),
    "gradient-detached": Fault(
        "loss falls slowly: some matrices never change",
        "no gradient reaches an input: detach, .data, a no_grad block, or a copy through NumPy",
        "x.grad is None or zero",
        GRADIENTS,
    ),
    "gradient-wrong": Fault(
        "forward right, training worse",
        "a hand-written backward pass is wrong",
        "gradcheck in float64",
        GRADIENTS,
    ),
    "gradient-leaks": Fault(
        "hidden tokens learn",
        "a gradient reaches hidden keys or values",
        "k.grad at a hidden place is not zero",
        GRADIENTS,
    ),
    "gradient-nan": Fault(
        "forward finite, every gradient NaN",
        "a query that sees nothing makes gradients NaN, even where its row is dropped later",
        "backward with a row of the mask all False",
        GRADIENTS,
    ),
    # other ways to the same output
    "compiled-differs": Fault(
        "eager right, compiled wrong",
        "the compiled function gives other numbers",
        "torch.compile(f, backend='eager') first, then 'aot_eager'",
        TORCH,
    ),
    "cache-differs": Fault(
        "generated text drifts from what a full pass would say",
        "a step with a cache gives another output than the full pass: positions or mask forget what is cached",
        "step by step against all at once, token by token",
        DECODING,
    ),
    "weights-path-differs": Fault(
        "asking for the weights changes the output",
        "the slow way to the output, which returns weights, is not the same computation",
        "f(x) != f(x, need_weights=True)[0]",
        MASKS,
    ),
    "weights-after-dropout": Fault(
        "returned weights do not sum to one",
        "the weights that are returned are not those of the softmax: after dropout, or without the mask",
        "weights.sum(-1)",
        TORCH,
    ),
    "differs": Fault(
        "the output is not the formula's",
        "something that no known fault gives number by number",
        "compare step by step with the trace of the package's layer",
        HEADS,
    ),
}
