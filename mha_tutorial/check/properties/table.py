"""Every property: what is asserted, the test, what is likely if it fails, and whether it is a remark."""

from collections.abc import Callable
from typing import NamedTuple

from .agreement import (
    agrees_with_the_other,
    compiled_is_eager,
    groups_are_neighbours,
    steps_are_the_full_pass,
    weights_are_those_used,
)
from .averages import (
    is_the_formula,
    one_key_gives_its_value,
    scale_is_one_over_the_root,
    weights_sum_to_one,
    weights_sum_to_one_behind_a_mask,
)
from .common import Evidence
from .edges import large_scores, low_scores, lower_scores, many_hidden_keys, many_keys
from .gradients import blind_query_has_a_gradient, gradients_are_differences, hidden_keys_get_no_gradient
from .masks import (
    future_is_hidden,
    hidden_keys_do_not_count,
    is_the_formula_behind_a_mask,
    masks_of_sequences_and_heads,
    past_is_seen,
    triangle_ends_at_the_last_key,
    visible_keys_count,
)
from .mixing import heads_do_not_mix, queries_do_not_mix, sequences_do_not_mix
from .order import every_key_counts, has_the_shape_of_its_queries, order_of_keys, order_of_queries
from .remarks import (
    blind_query_gives_zero,
    blind_query_leaves_others_alone,
    hidden_huge,
    hidden_inf,
    hidden_nan,
    integers_are_no_mask,
)
from .state import (
    inputs_are_left_alone,
    modes_agree,
    second_call,
    sixteen_bits,
    type_is_kept,
    views_are_read_as_their_copies,
)

Test = Callable[..., Evidence | None]  # of the subject, the sizes and the options


class Property(NamedTuple):
    """One thing that has to hold.

    Parameters
    ----------
    name
        What is asserted.
    test
        The function that looks for a contradiction.
    faults
        What is likely if it does not hold, the likeliest first.
    remark
        Whether well-known libraries break it too, so that it is a remark and no failure.
    """

    name: str
    test: Test
    faults: tuple[str, ...]
    remark: bool = False


PROPERTIES = (
    Property("the output is shaped like the queries", has_the_shape_of_its_queries, ("wrong-shape",)),
    Property("the output is that of the other layer", agrees_with_the_other, ("differs",)),
    Property("the same call gives the same again", second_call, ("state-kept", "dropout-in-eval")),
    Property("inputs are left as they were", inputs_are_left_alone, ("input-changed",)),
    Property("without a mask every key counts", every_key_counts, ("causal-built-in", "keys-as-values")),
    Property(
        "queries in another order give outputs in that order",
        order_of_queries,
        ("merge-without-transpose", "split-without-transpose", "positions-inside"),
    ),
    Property(
        "the order of keys does not matter",
        order_of_keys,
        ("positions-inside", "split-without-transpose"),
    ),
    Property("sequences do not mix", sequences_do_not_mix, ("softmax-over-batch", "batch-first")),
    Property("heads do not mix", heads_do_not_mix, ("softmax-over-heads", "heads-and-tokens-exchanged")),
    Property(
        "queries do not mix",
        queries_do_not_mix,
        ("softmax-over-queries", "softmax-over-all", "merge-without-transpose"),
    ),
    Property(
        "weights sum to one",
        weights_sum_to_one,
        ("softmax-not-normalised", "softmax-missing", "softmax-over-queries", "merge-without-transpose"),
    ),
    Property("visible keys count", visible_keys_count, ("mask-inverted",)),
    Property("weights sum to one behind a mask", weights_sum_to_one_behind_a_mask, ("mask-after-softmax",)),
    Property(
        "one key gives its value",
        one_key_gives_its_value,
        ("values-from-key-matrix", "output-bias-missing", "output-projection-missing"),
    ),
    Property("the factor of the scores is 1/sqrt(d_k)", scale_is_one_over_the_root, ("scale-other",)),
    Property("the output is the formula's", is_the_formula, ("differs",)),
    Property("heads in groups share with their neighbours", groups_are_neighbours, ("groups-strided",)),
    Property("hidden keys do not count", hidden_keys_do_not_count, ("mask-ignored", "mask-inverted")),
    Property(
        "the future is hidden",
        future_is_hidden,
        ("causal-missing", "causal-peeks", "mask-ignored", "mask-added", "mask-inverted"),
    ),
    Property(
        "behind a mask the output is the formula's",
        is_the_formula_behind_a_mask,
        ("mask-inverted", "mask-ignored"),
    ),
    Property("the past is seen", past_is_seen, ("causal-hides-itself", "causal-upside-down")),
    Property("the triangle ends at the last key", triangle_ends_at_the_last_key, ("causal-top-left",)),
    Property(
        "sequences and heads have masks of their own",
        masks_of_sequences_and_heads,
        ("mask-head-order", "mask-of-first-sequence", "mask-of-first-head"),
    ),
    Property("large scores are no trouble", large_scores, ("softmax-overflow",)),
    Property("low scores lose to nothing hidden", low_scores, ("mask-finite-fill",)),
    Property("many keys are averaged as few are", many_keys, ("block-not-rescaled", "block-lost")),
    Property("blocks may be hidden", many_hidden_keys, ("block-hidden",)),
    Property("a view is read as its copy", views_are_read_as_their_copies, ("dense-read",)),
    Property("train() and eval() agree", modes_agree, ("train-differs",)),
    Property("gradients are slopes", gradients_are_differences, ("gradient-wrong",)),
    Property("hidden keys get no gradient", hidden_keys_get_no_gradient, ("gradient-leaks",)),
    Property("a query that sees nothing leaves others alone", blind_query_leaves_others_alone, ("blind-nan",)),
    Property("steps with a cache are the full pass", steps_are_the_full_pass, ("cache-differs",)),
    Property("asking for weights changes nothing", weights_are_those_used, ("weights-path-differs",)),
    Property("compiled is eager", compiled_is_eager, ("compiled-differs",)),
    Property("the lowest scores lose to nothing hidden", lower_scores, ("mask-finite-fill",), True),
    Property("a mask of integers is refused", integers_are_no_mask, ("mask-of-integers",), True),
    Property("the type is kept", type_is_kept, ("dtype-changed",), True),
    Property("near scores are told apart in 16 bits", sixteen_bits, ("sixteen-bit-scores",), True),
    Property("a query that sees nothing gives zero", blind_query_gives_zero, ("blind-nan",), True),
    Property("a query that sees nothing has finite gradients", blind_query_has_a_gradient, ("gradient-nan",), True),
    Property("hidden NaN reaches nothing", hidden_nan, ("hidden-leaks",), True),
    Property("hidden inf reaches nothing", hidden_inf, ("hidden-leaks",), True),
    Property("hidden huge numbers reach nothing", hidden_huge, ("hidden-leaks",), True),
)
