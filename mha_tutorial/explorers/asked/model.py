"""Questions on the part Inside a language model."""

import math

import numpy as np

from ...analysis import counting
from ...block import layer_norm, rms_norm
from ...positions import alibi_slopes
from ...reference import row
from .record import Choice, Number, Slip, right, wrong


def quarter_turns(i: int, j: int) -> float:
    """The score of a query (1, 2) at position i and a key (3, 0) at position j, turned a quarter for each."""
    q, k = (complex(*vector) * 1j**place for vector, place in (((1, 2), i), ((3, 0), j)))
    return (q * k.conjugate()).real


def third_token(kept: int = 3) -> float:
    """Keys 0, 1, 0 and values 6, 2, 4, of which the new query ln 3 sees so many."""
    keys, values = np.array([[0.0], [1.0], [0.0]]), np.array([[6.0], [2.0], [4.0]])
    return float(row.attention(np.log([[3.0]]), keys[:kept], values[:kept])[0, 0])


def cache_mib(h_kv: int = 8, layers: int = 40) -> float:
    """A cache of 4,096 tokens in 16 bits, with heads of width 128."""
    sizes = counting.shape_only_weights(5120, h=40, h_kv=h_kv, d_k=128, d_v=128, dtype=np.float16)
    return layers * counting.cache_bytes(sizes, 4096) / 2**20


def drawn(logits: list, **options: float) -> float:
    """The probability with which the first token is drawn."""
    import torch

    from ...models import probabilities

    return float(probabilities(torch.tensor(logits, dtype=torch.float64), **options)[0])


def normed(norm) -> float:
    """The last number of the token (1, 3, 5) after a norm."""
    return float(norm(np.array([1.0, 3.0, 5.0]))[2])


def feed_forward(d_hidden: int) -> int:
    attention = counting.shape_only_weights(96, h=3, bias=False)
    return counting.decoder_parameters(attention, d_hidden=d_hidden, layers=1, vocabulary=1, tied=True)[
        "feed-forward"
    ]


def places(distance: int) -> int:
    """At how many of 32 places of a text that repeats at that distance there is something to predict."""
    import torch

    from ...examples import copying

    texts = copying.draw(torch.Generator().manual_seed(0), b=1, n=32, distances=(distance, distance))
    return int((texts.targets != copying.UNKNOWN).sum())


def enlarged(queries: int, keys: int) -> float:
    """How many times as large a score is if queries and keys are so many times as large."""
    one = np.ones((1, 2))
    return float((row.dot_product(queries * one, keys * one) / row.dot_product(one, one))[0, 0])


def repeated(score: str) -> float:
    """A score of the head whose weights the question on A B C A B gives."""
    from ...analysis.heads import scores

    attention = np.zeros((5, 5))
    attention[3, :4] = 0.1, 0.6, 0.2, 0.1
    attention[4] = 0.0, 0.3, 0.5, 0.1, 0.1
    return float(getattr(scores, score)(attention, np.array([0, 1, 2, 0, 1])))


POSITIONS = {
    "turned": Number(
        "A query (1, 2) and a key (3, 0) are turned by a quarter of a circle for each position, as by hand in this "
        "chapter. What is their score when the query is at position 3 and the key at position 2?",
        lambda: quarter_turns(3, 2),
        "The query, turned three times, is (2, −1), the key, turned twice, (−3, 0), and 2 · (−3) = −6.",
        [
            Slip(
                lambda: quarter_turns(1, 2),
                "That is for a query one place *before* its key. The sign of the distance counts.",
            ),
            Slip(lambda: quarter_turns(0, 0), "Nothing was turned, as if both were at the same position."),
            Slip(lambda: quarter_turns(1, 3), "That is for a key two places after the query."),
        ],
    ),
    "slope": Number(
        "With ALiBi and eight heads, a query has equal inner products with two keys: its own, and that of the "
        "token four places before. In the *first* head, how many times the weight of the near key does the far "
        "one get?",
        lambda: math.exp(-4 * alibi_slopes(8)[0]),
        "The slope is ½, so the scores differ by 2, and the weights by a factor of e^{−2}.",
        [
            Slip(
                lambda: alibi_slopes(8)[0] ** 4,
                "½ is subtracted from the score for each step. It is not the weight that is halved.",
            ),
            Slip(lambda: math.exp(-alibi_slopes(8)[0]), "That is one step of distance. There are four."),
            Slip(lambda: math.exp(-4 * alibi_slopes(8)[1]), "That is the second head, with the slope ¼."),
        ],
        digits=2,
    ),
    "moved": Choice(
        "A rotary layer reads one text. Which change of its positions 0, 1, 2, … changes its outputs?",
        [
            wrong("All are raised by 100", "Differences stay, and nothing else enters the scores."),
            right("All are doubled", "Every distance is now twice as large."),
            wrong(
                "They begin at 5, as after five tokens of hidden padding",
                "The same shift for all: the distances between the tokens of the text stay.",
            ),
            wrong("All are lowered by 3", "A shift in the other direction. Negative positions turn the other way."),
        ],
    ),
    "pairs": Choice(
        "A checkpoint is stored for interleaved pairs and read by a program that pairs halves. Which scores of "
        "the first layer are right?",
        [
            wrong(
                "All: a score is a sum over features, in any order",
                "True without positions. The *turns* pair them.",
            ),
            wrong("None", "At one distance the turns of query and key cancel, whatever the pairs."),
            right("Those of each token with itself", "At distance zero both are turned by the same angles."),
            wrong(
                "Those of each token with the one before it",
                "At distance one, each pair is turned by its own angle.",
            ),
        ],
    ),
    "padding": Choice(
        "Texts are padded on the left, and positions are counted from the first place of the row, padding "
        "included. Which kind of model gets other outputs than it should, in exact arithmetic?",
        [
            right(
                "One with learned positions", "The text begins at a row of the table that it was not trained with."
            ),
            wrong("One with RoPE", "Only differences of positions enter, and they are right."),
            wrong("One with ALiBi", "Distances between query and key are what they were."),
            wrong(
                "Every kind: padding must not be counted",
                "It should not be. But some kinds look at distances alone.",
            ),
        ],
    ),
}

BLOCK = {
    "norm": Number(
        "A token is (1, 3, 5). What is the last number of its RMS norm, with a gain of one and ε = 0?",
        lambda: normed(lambda x: rms_norm(x, np.ones(3), eps=0.0)),
        "The mean square is (1 + 9 + 25) / 3, its root 3.416, and 5 / 3.416.",
        [
            Slip(
                lambda: normed(lambda x: layer_norm(x, np.ones(3), np.zeros(3), eps=0.0)),
                "That is layer norm, which subtracts the mean first.",
            ),
            Slip(
                lambda: normed(lambda x: x / np.linalg.norm(x)),
                "Divided by the length, the root of the *sum* of squares, 5.916. It is the root of their mean.",
            ),
            Slip(
                lambda: normed(lambda x: x / np.square(x).mean()),
                "Divided by the mean square. The root is missing.",
            ),
        ],
        digits=3,
    ),
    "stream": Number(
        "A pre-norm model has 12 blocks. Counting each part's output as one term, of how many terms is the stream"
        " at its end the sum?",
        lambda: 1 + 2 * 12,
        "The embedding, and from each block what attention and what the feed-forward part wrote.",
        [
            Slip(lambda: 12, "A block has two parts, and each adds to the stream."),
            Slip(lambda: 2 * 12, "The embedding is missing, with which the stream begins."),
            Slip(lambda: 1 + 12, "A block has two parts, attention and feed-forward."),
        ],
    ),
    "gated": Number(
        "How many parameters does the feed-forward part (SwiGLU, no biases) have with d_model = 96 and a hidden "
        "width of 256?",
        lambda: feed_forward(256),
        "Three matrices of 96 · 256: gate, up and down.",
        [
            Slip(lambda: 2 * 96 * 256, "Two matrices, as in the first transformer. The gate has one of its own."),
            Slip(lambda: feed_forward(4 * 96), "The hidden width was taken to be 4 d_model. It is given."),
            Slip(lambda: 96 * 256, "That is one of the three matrices."),
        ],
    ),
    "wiring": Choice(
        "Which line is the attention part of a pre-norm block?",
        [
            wrong(
                "`x = norm(x + attention(x), gain)`",
                "That is post-norm: the stream itself goes through the norm.",
            ),
            wrong(
                "`x = norm(x, gain) + attention(norm(x, gain))`",
                "The normalised copy has taken the place of the stream, whose size is lost.",
            ),
            wrong(
                "`x = x + norm(attention(x), gain)`",
                "Here what is *written* is normalised. Pre-norm normalises what the part reads.",
            ),
            right(
                "`x = x + attention(norm(x, gain))`",
                "The part reads a normalised copy, and the stream is left alone but for the sum.",
            ),
        ],
    ),
}

DECODING = {
    "third": Number(
        "Keys 0 and 1 and values 6 and 2 are in the cache. A third token comes with query ln 3, key 0 and value "
        "4. What does it get?",
        third_token,
        "The scores are 0, ln 3 and 0, the exponentials 1, 3 and 1, and (6 + 6 + 4) / 5 = 3.2.",
        [
            Slip(
                lambda: third_token(kept=2),
                "Its own key and value are missing. They are appended before the query meets the keys.",
            ),
            Slip(
                lambda: third_token(kept=1),
                "It saw the first key only. That is a triangle that begins at the top left.",
            ),
            Slip(lambda: (6 + 2 + 4) / 3, "The plain mean. The scores are not equal."),
        ],
        digits=2,
    ),
    "chunk": Number(
        "Five tokens are in the cache, and a chunk of three arrives. How many keys must the *first* of the three "
        "see?",
        lambda: 5 + 1,
        "The five that were there, and itself. The triangle ends at the bottom right.",
        [
            Slip(lambda: 8, "Without a mask it sees the two after it: the future."),
            Slip(lambda: 1, "That is the triangle that begins at the top left, as if nothing were in the cache."),
            Slip(lambda: 5, "A token sees itself as well."),
        ],
    ),
    "bytes": Number(
        "A model has 40 layers with 40 query heads and 8 key-value heads of width 128. How many MiB does the "
        "cache of 4,096 tokens take, in 16-bit numbers?",
        cache_mib,
        "40 layers · 4,096 tokens · 8 heads · (128 + 128) numbers · 2 bytes.",
        [
            Slip(lambda: cache_mib(h_kv=40), "Counted for the 40 query heads. What is kept has 8."),
            Slip(lambda: cache_mib() / 2, "The keys alone. Values are kept as well."),
            Slip(lambda: cache_mib(layers=1), "One layer. Each of the 40 keeps its own."),
        ],
    ),
    "ring": Choice(
        "A cache for a window of 4, filled one token at a time, has 4 slots. Which positions are in them after "
        "nine tokens, with positions counted from zero?",
        [
            wrong(
                "[5, 6, 7, 8]", "The right four, but nothing is moved: a new token takes the slot of the oldest."
            ),
            right("[8, 5, 6, 7]", "Token 8 took the slot of token 4, which had taken that of token 0."),
            wrong("[4, 5, 6, 7]", "Those are the tokens before the ninth, whose position is 8."),
            wrong("[0, 1, 2, 8]", "The oldest is overwritten, not the latest."),
        ],
    ),
    "batch": Number(
        "In one step of decoding, 15 GiB of weights and 1 GiB of cache per text are fetched from memory. How many"
        " GiB are fetched for eight texts in one batch?",
        lambda: 15 + 8 * 1,
        "The weights are fetched once for all. The cache of each text is its own.",
        [
            Slip(
                lambda: 8 * (15 + 1),
                "The weights need not be fetched again for each text: that is the use of a batch.",
            ),
            Slip(lambda: 15 + 1, "Texts share the weights, but not the cache."),
            Slip(lambda: 8 * 15 + 1, "The other way round: weights are shared, and caches are not."),
        ],
    ),
}

REAL_HEADS = {
    "induction": Number(
        "The tokens are A B C A B. A head gives 0.1, 0.6, 0.2, 0.1 from the second A, and 0, 0.3, 0.5, 0.1, 0.1 "
        "from the second B. What is its induction score?",
        lambda: repeated("induction"),
        "Behind the first A stands B, which gets 0.6, and behind the first B stands C, which gets 0.5. The mean "
        "of both.",
        [
            Slip(
                lambda: repeated("duplicate_token"),
                "That is what they give to their own earlier occurrences: the score of a duplicate-token head.",
            ),
            Slip(lambda: 0.6 + 0.5, "Added, and not averaged over the two queries."),
            Slip(lambda: (0.2 + 0.1) / 2, "That is what they give to the token just before themselves."),
        ],
        digits=2,
    ),
    "looks": Choice(
        "At the last token, a head gives 0.9 of its weight to the right name. What follows from that alone?",
        [
            wrong(
                "It raises the logit of that name",
                "It may lower it. What it adds depends on its values and on its block of W^O.",
            ),
            wrong(
                "Without it, the answer would be another one",
                "To know what is missing without a head, switch it off. Others may do the same work.",
            ),
            wrong(
                "It is a name-mover head",
                "Such a head looks at the name *and* writes it. This one has only been seen to look.",
            ),
            right(
                "Nine tenths of its average are the value of that name",
                "That is what a weight is. What becomes of the average is another question.",
            ),
        ],
    ),
    "ahead": Choice(
        "A causal model reads *… because it was too tired* and *… because it was too wide*. At which tokens do "
        "the two passes have different vectors?",
        [
            wrong(
                "At *it* and after it, since *it* means something else", "A token cannot see what comes after it."
            ),
            right(
                "At the last token alone", "All tokens before it see the same in both sentences, at every depth."
            ),
            wrong("At all tokens, from the second layer on", "No layer lets a token see later ones, however deep."),
            wrong("At no token before the output", "The last token is another one from the embedding on."),
        ],
    ),
    "cuts": Number(
        "Six sentences are divided into three and three by meaning, and the two groups differ more than in any "
        "other such division. By chance that has a probability of one in how many?",
        lambda: math.comb(6, 3) / 2,
        "There are 20 ways to choose the first three, and each division is chosen twice.",
        [
            Slip(lambda: math.comb(6, 3), "Each division was counted twice, once for each of its groups."),
            Slip(lambda: math.comb(8, 4) / 2, "That is for the eight sentences of the chapter."),
            Slip(lambda: 2**6, "Groups of any size were counted. Here both have three."),
        ],
    ),
}

GENERATION = {
    "temperature": Number(
        "There are two tokens, with the logits ln 3 and 0. With which probability is the first one drawn at the "
        "temperature 0.5?",
        lambda: drawn([math.log(3), 0.0], temperature=0.5),
        "The logits are divided by 0.5, so they double: 9 : 1.",
        [
            Slip(lambda: drawn([math.log(3), 0.0]), "That is at the temperature 1."),
            Slip(
                lambda: drawn([math.log(3), 0.0], temperature=2.0),
                "Multiplied by the temperature. Dividing by a number below one makes logits larger.",
            ),
            Slip(lambda: 1.0, "That is the limit as the temperature goes to zero: greedy."),
        ],
        digits=2,
    ),
    "top-p": Number(
        "Four tokens have the probabilities 0.5, 0.3, 0.15 and 0.05. With top-p at 0.75, with which probability "
        "is the first one drawn?",
        lambda: drawn(np.log([0.5, 0.3, 0.15, 0.05]).tolist(), top_p=0.75),
        "The first alone has 0.5, the first two have 0.8, which is enough. Shared out, 0.5 / 0.8.",
        [
            Slip(lambda: 0.5, "What the cut tokens had is shared out among those that stay."),
            Slip(lambda: 0.5 / 0.95, "Three were kept. Two already have 0.75 together."),
            Slip(lambda: 1.0, "The token with which 0.75 is reached is kept as well."),
        ],
        digits=3,
    ),
    "row": Choice(
        "`logits = model(ids)` has the shape (1, 6, 49152), for a text of six tokens. Which expression is the "
        "likeliest next token?",
        [
            right("`logits[0, -1].argmax()`", "The last row is told of the whole text, and says what follows it."),
            wrong("`logits[0, 0].argmax()`", "What follows the *first* token of the text."),
            wrong(
                "`logits[0].mean(dim=0).argmax()`", "Six different questions, averaged: what follows each token."
            ),
            wrong(
                "`logits[0].argmax(dim=0)`", "For each token of the vocabulary, where in the text it was likeliest."
            ),
        ],
    ),
    "work": Number(
        "A prompt has 50 tokens, and 100 new ones are written *without* a cache, so the whole text is read for "
        "each. How many tokens are read in all?",
        lambda: sum(range(50, 150)),
        "50 for the first new token, 51 for the second, … and 149 for the last.",
        [
            Slip(lambda: 50 + 99, "That is with a cache: the prompt once, then one token for each further step."),
            Slip(lambda: 100 * 50, "The text grows: what was written is read again, too."),
            Slip(lambda: 100 * 150, "Only the last steps read a text that long."),
        ],
    ),
}

TRAINING = {
    "places": Number(
        "A text of 32 tokens repeats at the distance 12. At how many of its places is there a target, a token "
        "that can be foreseen?",
        lambda: places(12),
        "At the first 12 a token occurs for the first time. At the other 20 it has occurred, and what followed is"
        " known.",
        [
            Slip(lambda: 32, "Where a token occurs for the first time, nobody can know what comes next."),
            Slip(lambda: 32 - places(12), "Those are the places that the loss leaves out."),
            Slip(lambda: places(13), "The last place counts, too: its target is the token after the text."),
        ],
    ),
    "one-layer": Choice(
        "In a model of one layer, what does the key of a token not know, which copying at any distance would need?",
        [
            wrong("Which token it is", "Its vector is made from that token's embedding, and from nothing else."),
            wrong("Where it stands", "Rotary positions are in queries and keys from the first layer on."),
            right(
                "Which token stands before it", "That takes a layer below, with a head that looks one token back."
            ),
            wrong("How far it is from the query", "That is what a rotary score depends on."),
        ],
    ),
    "scores": Number(
        "The matrices of queries and of keys are both drawn three times as large. How many times as large are the"
        " scores?",
        lambda: enlarged(3, 3),
        "A score is a product of the two.",
        [
            Slip(lambda: enlarged(3, 1), "That would be so if only one of the two were larger."),
            Slip(lambda: 3 + 3, "The factors are multiplied, not added."),
            Slip(lambda: enlarged(9, 9), "Queries and keys are three times as large each, not nine times."),
        ],
    ),
    "collapsed": Choice(
        "After fifty steps the loss is that of guessing, and the entropy of every head is near zero. What helps?",
        [
            right(
                "To begin again, at a smaller rate",
                "Attention has collapsed, and a saturated softmax has next to no gradient that could widen it.",
            ),
            wrong(
                "To go on at a smaller rate",
                "The chapter tried that: three hundred steps at the rate that works from the start mended nothing.",
            ),
            wrong(
                "To go on for more steps",
                "Where a query gives all its weight to one key, hardly any gradient reaches queries and keys.",
            ),
            wrong(
                "To do nothing: low entropy means that heads have found their tokens",
                "A head that does its work can have a low entropy. All heads, early, with that loss, cannot.",
            ),
        ],
    ),
    "removed": Choice(
        "A model is right everywhere. Without head (1, 0) it still is, without (1, 1) in 9 of 10 places, without "
        "both nowhere. What follows for (1, 0)?",
        [
            wrong("It does nothing", "Then the model without both would be as good as the one without (1, 1)."),
            right(
                "What it does, (1, 1) can do for it", "Either is enough, or nearly. Only both together are missed."
            ),
            wrong("It does more than (1, 1)", "If anything less: without it, nothing was missed."),
            wrong(
                "It is the previous-token head", "That follows from where it looks, and not from what is missed."
            ),
        ],
    ),
}

ASKED = {
    "positions": POSITIONS,
    "block": BLOCK,
    "decoding": DECODING,
    "generation": GENERATION,
    "real-heads": REAL_HEADS,
    "training": TRAINING,
}
