"""The command ``mha-tutorial``: look into files of weights, move layers between them, and run a trained model."""

import argparse
import io
import os
import pkgutil
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from . import __version__
from .layouts import LAYOUTS, Match, identify, read_shapes, write
from .layouts.converter import pack, unpack, zeros
from .layouts.refusals import NeededError

DESCRIPTION = """\
Look into a .safetensors file and move an attention layer from one library's layout to another's.
Numbers change their places and nothing else: no type, no rounding. Pickles (.pt, .bin) are never read.
Or get a small trained language model, have it continue a text, and see what its heads attend to.
"""

CONVERT = """\
Read one layer of IN and write it to OUT as another library stores it. The layer alone is written: tensors
of IN that do not begin with the prefix are left out, so OUT must be another file than IN. Where the other
library always has a bias that the layer lacks, it is written as zeros. If anything goes wrong nothing is
written.
"""

INSPECT = """\
Say what layers a file holds: their layout, the number of heads where shapes tell it, their sizes and
parameters, and which other layouts have the same shapes. Only names and shapes are read.
"""

GENERATE = """\
Continue TEXT with a trained language model, on the layer of this package: the one that `model get` has fetched,
or any of the Llama family. What is added is printed, piece by piece.
"""


HEADS = """\
Write a page with every attention head of a language model at TEXT: all of them small, one large, token by token,
what each key gets and what it adds. The page needs no other file and no network; open it in a browser.
"""


CHECK = """\
Test an attention function, or a layer, for what has to hold of any: print what fails, the smallest input, the two
numbers, the likely faults and the page of the book. The exit status is 1 if something fails. Modules are looked for
in the folder where the command is run, and importing one runs its code.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 if it could not be done, after one sentence to standard error.

    Ctrl-C ends it with 130, and a signal to end or to hang up with 128 and its number; neither leaves
    anything half done behind.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a sign is no reason to fail
    options = _parser().parse_args(arguments)
    try:
        with _stoppable():
            options.run(options)
        print(end="", flush=True)
    except BrokenPipeError:  # whoever read what is printed has seen enough; nothing is to be flushed at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("mha-tutorial: interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"mha-tutorial: error: {_in_flags(error)}", file=sys.stderr)
        return 2
    return 0


@contextmanager
def _stoppable() -> Iterator[None]:
    """Meanwhile let the first signal to end raise an exception, and no other disturb what then clears away."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # no other thread may set handlers
    usual = {number: signal.getsignal(number) for number in numbers}
    usual = {n: handler for n, handler in usual.items() if handler in (signal.SIG_DFL, signal.default_int_handler)}

    def stop(number: int, frame: object) -> None:
        for each in usual:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for number in usual:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    layouts = "layouts:\n" + "\n".join(f"  {layout.name:25}{layout.title}" for layout in LAYOUTS.values())
    raw: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser("mha-tutorial", description=DESCRIPTION, epilog=layouts, **raw)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser(
        "convert", help="write one layer in another layout", description=CONVERT, epilog=layouts, **raw
    )
    command.add_argument("input", metavar="IN", type=Path, help="a .safetensors file")
    command.add_argument("output", metavar="OUT", type=Path, help="the .safetensors file to write")
    names: dict[str, Any] = {"choices": LAYOUTS, "metavar": "LAYOUT", "required": True}
    command.add_argument("--from", dest="source", help="the layout of the layer in IN", **names)
    command.add_argument("--to", dest="target", help="the layout it gets in OUT", **names)
    command.add_argument("--heads", type=int, metavar="N", help="heads, where the stored shapes do not tell")
    command.add_argument("--kv-heads", type=int, metavar="N", help="key-value heads, to be checked")
    command.add_argument("--prefix", default="", metavar="P", help="what keys begin with in IN, as h.0.attn.")
    command.add_argument("--to-prefix", default="", metavar="P", help="what keys begin with in OUT")
    command.add_argument(
        "--ignore",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names below the prefix that are no part of the layer; * and ? stand for anything",
    )
    command.add_argument(
        "--repeat-kv",
        action="store_true",
        help="copy keys and values that heads share, where the other library gives every head its own",
    )
    command.add_argument("--force", action="store_true", help="overwrite OUT if it is there; a link is replaced")
    command.set_defaults(run=_convert)

    command = commands.add_parser(
        "inspect", help="say what layers a file holds", description=INSPECT, epilog=layouts, **raw
    )
    command.add_argument("file", metavar="FILE", type=Path, help="a .safetensors file")
    command.set_defaults(run=_inspect)
    _add_models(commands, raw)
    _add_check(commands, raw)
    return parser


def _add_check(commands: Any, raw: dict[str, Any]) -> None:
    command = commands.add_parser("check", help="find the fault in an attention function", description=CHECK, **raw)
    command.add_argument(
        "function", metavar="MODULE:NAME", help="a function, a layer, or a class without arguments"
    )
    command.add_argument("--column", action="store_true", help="tokens are columns")
    command.add_argument("--causal", action="store_true", help="it hides the future by itself")
    command.add_argument("--ignore", action="store_true", help="True in its mask means ignore")
    command.add_argument(
        "--d-model", type=int, metavar="D", help="the width of a layer's tokens, if it does not tell"
    )
    command.add_argument(
        "--weights", metavar="MODULE:NAME", help="a function that takes RowWeights or ColumnWeights from the layer"
    )
    command.set_defaults(run=_check)


def _add_models(commands: Any, raw: dict[str, Any]) -> None:
    command = commands.add_parser("model", help="get the trained model of the book", **raw)
    actions = command.add_subparsers(required=True, metavar="ACTION")
    command = actions.add_parser("get", help="fetch it into the cache, unless it is there, and say where it lies")
    command.set_defaults(run=_model_get)

    command = commands.add_parser("generate", help="continue a text", description=GENERATE, **raw)
    command.add_argument("text", metavar="TEXT", help="what is to be continued")
    command.add_argument("--model", metavar="PATH", type=Path, help="a GGUF, or a Hugging Face folder")
    command.add_argument("-n", "--tokens", type=int, default=64, metavar="N", help="the most tokens to add (64)")
    command.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0, which is the default, takes the likeliest"
    )
    command.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest that have P together (1)"
    )
    command.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed draws the same text (0)")
    command.add_argument("--chat", action="store_true", help="TEXT is a question, and an answer is wanted")
    command.set_defaults(run=_generate)

    command = commands.add_parser("heads", help="write a page with every head at a text", description=HEADS, **raw)
    command.add_argument("text", metavar="TEXT", help="what the model reads, a sentence or two")
    command.add_argument("-o", "--output", metavar="PAGE", type=Path, required=True, help="the .html file to write")
    command.add_argument("--model", metavar="PATH", type=Path, help="a GGUF, or a Hugging Face folder")
    command.add_argument(
        "--switch-off", action="store_true", help="also tell what comes next without each head; takes a while"
    )
    command.add_argument("--force", action="store_true", help="overwrite PAGE if it is there; a link is replaced")
    command.set_defaults(run=_heads)


def _check(options: argparse.Namespace) -> None:
    from .check import check

    sys.path.insert(0, os.getcwd())
    found = _named(options.function)
    found = found() if isinstance(found, type) else found
    report = check(
        found,
        "column" if options.column else "row",
        "true-means-ignore" if options.ignore else "true-means-attend",
        causal=options.causal,
        d_model=options.d_model,
        weights=None if options.weights is None else _named(options.weights),
    )
    print(report)
    if report.failures:
        raise SystemExit(1)


def _named(place: str) -> Any:
    """What ``module:name`` names."""
    module, _, name = place.partition(":")
    if not name:
        raise ValueError(f"{place} must be a module and a name in it, as models.attention:attend")
    try:
        return pkgutil.resolve_name(place)
    except AttributeError as error:
        raise ValueError(f"{module} has no {name}") from error


def _model_get(options: argparse.Namespace) -> None:
    from . import models  # which needs PyTorch; the other commands do not

    print(models.fetch())


def _generate(options: argparse.Namespace) -> None:
    from . import models

    model = models.load(options.model)
    drawing = {name: getattr(options, name) for name in ("temperature", "top_p", "seed", "chat")}
    pieces = model.stream(options.text, options.tokens, **drawing)  # refuses what cannot be continued
    if not options.chat:
        print(options.text, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _heads(options: argparse.Namespace) -> None:
    from . import models
    from .explorers.heads import from_model

    shown = from_model(models.load(options.model), options.text, switch_off=options.switch_off)
    shown.save(options.output, overwrite=options.force)
    print(f"{options.output}: {shown.title}, {len(shown.keys)} tokens; open it in a browser")


def _convert(options: argparse.Namespace) -> None:
    source, target = LAYOUTS[options.source], LAYOUTS[options.target]
    arrays = unpack(options.input, source, options.heads, options.kv_heads, options.prefix, options.ignore)
    added = zeros(arrays, target)
    tensors = pack(arrays | added, target, options.to_prefix, repeat_kv=options.repeat_kv)
    if options.output.exists() and options.output.samefile(options.input):
        raise ValueError(
            f"{options.output} is the file that is read, {options.input}, and would hold one layer in place of all "
            "that it holds now; write to another file"
        )
    write(options.output, tensors, overwrite=options.force)
    count = sum(array.size for array in tensors.values())
    print(
        f"{options.output}: {len(tensors)} tensors, {count:,} parameters in layout '{options.target}'"
        + (f", with zeros for {', '.join(added)}, which the layer lacks" if added else "")
    )


FLAGS = {"h": "--heads", "h_kv": "--kv-heads", "ignore": "--ignore", "repeat_kv": "--repeat-kv"}


def _in_flags(error: Exception) -> str:
    """What an error says, with the flag of this command in place of an argument in Python."""
    if not isinstance(error, NeededError):
        return str(error)
    values = [f" {shlex.quote(value)}" for value in error.value] if isinstance(error.value, list) else []
    return f"{error.reason} pass {FLAGS[error.argument]}{''.join(values)}{error.rest}"


def _inspect(options: argparse.Namespace) -> None:
    shapes, matches = read_shapes(options.file), identify(options.file)
    print(f"{options.file}: {len(shapes)} tensors")
    if not matches:
        print("no layout that is known here has keys and shapes like these:")
        for name, shape in shapes.items():
            print(f"  {name!r} {shape}")
    for _, group in groupby(sorted(matches, key=_order), key=lambda match: match._replace(prefix=_place(match))):
        print("\n".join(_describe(list(group), matches)))


NUMBER = r"(?<![^./_])\d+(?![^./_])"  # of a layer in a prefix: not that in `attn1`, which says its kind


def _place(match: Match) -> str:
    """The prefix without its numbers: the same for the layers of one stack, and no others."""
    return re.sub(NUMBER, "#", match.prefix)


def _order(match: Match) -> tuple[int, str, list[int]]:
    """By layout, then by place, then by number: 9 before 10."""
    return list(LAYOUTS).index(match.layout), _place(match), [int(n) for n in re.findall(NUMBER, match.prefix)]


def _describe(same: list[Match], matches: list[Match]) -> list[str]:
    """The lines about layers that differ in their prefix alone, among all that were found."""
    match, *others = same
    prefixes = repr(match.prefix) + (f" to {others[-1].prefix!r}" if others else "")
    lines = [
        f"{match.layout}: {LAYOUTS[match.layout].title}",
        f"  layers      {len(same)}, prefix {prefixes}",
        f"  heads       {match.h or 'not told by shapes: look into the configuration of the model'}",
        f"  sizes       {', '.join(f'{name}={length}' for name, length in match.sizes.items())}",
        f"  parameters  {match.parameters:,}" + (" each" if others else ""),
    ]
    rotary = ("llama", "llama-pairs")
    namesakes = [other.layout for other in matches if other.prefix == match.prefix and other.layout in match.alike]
    alike = [name for name in match.alike if name not in namesakes and not {name, match.layout} <= set(rotary)]
    if alike:
        lines.append(f"  shapes      are those of {', '.join(alike)} as well; only the names tell the difference")
    if namesakes:
        lines.append(
            f"  names       are those of {' and '.join(namesakes)} as well, with rows in another order: "
            "look into the code of the model"
        )
    if match.layout in rotary:
        lines.append(
            f"  rotary      names do not tell the order of rows, that of {' or '.join(rotary)}: "
            "look into the code of the model"
        )
    if match.surplus:
        lines.append(f"  beside it   {', '.join(map(repr, match.surplus))}, which convert refuses without --ignore")
    return lines
