"""Faults of compiled code, derivatives, files, threads and processes."""

import numpy as np

from .case import Case, Numbers, imitated, sines


def _second() -> Numbers:
    q, k, v = sines(1, 1, 3, 2), sines(1, 1, 3, 2, a=0.9), sines(1, 1, 3, 2, a=2.1)
    eye = np.eye(3)[None, None]

    def losses(x: float) -> np.ndarray:
        moved = q.copy()
        moved[0, 0, 0, 0] += x
        first = imitated("", moved, k, v).sum()
        received = imitated("", moved, k, eye).sum(axis=-2)  # what each value's gradient is, in every feature
        return np.array([first, first + 2 * (received**2).sum()])

    wrong, right = (losses(1e-5) - losses(-1e-5)) / 2e-5
    return Numbers("a loss with the square of the values' gradient; its slope in one number of q", wrong, right)


def _says(given: str, wrong: str, right: str) -> Numbers:
    return Numbers(given, wrong, right)


def _extra() -> Numbers:
    weights = np.full(4, 0.25)
    return Numbers(
        "three keys and one of the layer's own; the weights that are shown sum to", weights[:3].sum(), weights.sum()
    )


CASES = (
    Case(
        "M06",
        "torch",
        "A gradient penalty trains to something else with a fast kernel.",
        "A hand-written backward pass gave no second derivative, and said nothing.",
        "Support it or raise.",
        ("learnables/learn2learn#429",),
        "test_torch_second_derivatives",
        "",
        _second,
    ),
    Case(
        "M08",
        "torch",
        "`vmap(grad(...))` or `jacrev` raises an error in a custom kernel.",
        "Its autograd function has no rule for transforms.",
        "`generate_vmap_rule`, or operations that have one.",
        ("pytorch/pytorch!188764",),
        "test_torch_online_is_transformed",
        "",
        lambda: _says("`vmap(grad(f))` of five queries", "RuntimeError", "five gradients"),
    ),
    Case(
        "M09",
        "torch",
        "Compiled code runs for the first length and fails for the second.",
        "A comparison of lengths is a symbol then, and no truth value.",
        "Decide on lengths without a symbol's truth.",
        (
            "huggingface/transformers!36374",
            "pytorch/pytorch#154038",
        ),
        "test_torch_compiled_for_a_second_length",
        "",
        lambda: _says(
            "7 tokens, then 9, with `fullgraph=True`", "is_causal must be bool", "the output of eager code"
        ),
    ),
    Case(
        "M11",
        "torch",
        "Learned extra keys stay as they were initialised.",
        (
            "They were held by a function, which registers no parameter; and the weights that were shown "
            "left them out."
        ),
        "Parameters belong to a module.",
        (),
        "test_torch_extra_keys_are_part_of_the_layer",
        "weights-after-dropout",
        _extra,
    ),
    Case(
        "M12",
        "torch",
        "`torch.jit.trace` fails, or compiled code takes lengths that cannot be.",
        "Sizes are tensors in a traced graph, and checks of data are left out of a compiled one.",
        "Checks are part of the graph.",
        (),
        "test_torch_compiled_padding_is_checked",
        "",
        lambda: _says("`Padding([9, 3])` with seven keys, compiled", "an output", "an error"),
    ),
    Case(
        "M16",
        "files",
        "After one call the whole program computes on one thread.",
        "The number of threads is the process's, and was set and given back by different threads.",
        "The last one to leave gives back what the first one found.",
        (),
        "test_other_threads_can_limit_blas_after_a_call_and_the_first_may_leave_first",
        "",
        lambda: _says("two threads inside, the first leaves first", "one thread for ever", "the number before"),
    ),
    Case(
        "M17",
        "files",
        "Converting a layer in place ate the model.",
        "The output file was the input file, and holds one layer now.",
        "Refuse an output that is the input.",
        (),
        "test_a_model_is_not_replaced_by_one_of_its_layers",
        "",
        lambda: _says("`convert m m --force`", "a file of one layer", "an error, the file as it was"),
    ),
    Case(
        "M18",
        "files",
        "A good file was replaced by one that cannot be read.",
        "A name that the format keeps for itself was written.",
        "Read back before replacing.",
        (),
        "test_a_file_that_came_out_wrong_does_not_replace_a_good_one",
        "",
        lambda: _says("a tensor called `__metadata__`", "an unreadable file", "an error, the file as it was"),
    ),
    Case(
        "M19",
        "files",
        "Colleagues cannot read the files I write.",
        "They came out with the mode of a scratch file.",
        "The mode is the umask's, or that of the file before.",
        (),
        "test_a_new_file_has_the_mode_that_the_umask_leaves",
        "",
        lambda: Numbers("a new file, umask 022; its mode", f"0{0o600:o}", f"0{0o666 & ~0o022:o}"),
    ),
    Case(
        "M21",
        "files",
        "The test suite hangs, two times in five.",
        ("A distributed module was freed after its process group was destroyed, and waits for a thread."),
        ("Free first, destroy afterwards; and run such tests in a process of their own with a time limit."),
        (),
        "test_what_never_ends_is_ended_and_says_where_it_stood",
        "",
        lambda: _says("`destroy_process_group()`, then the module's end", "a deadlock", "an end"),
    ),
)
