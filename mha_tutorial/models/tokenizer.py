"""Texts into tokens and back, by the library tokenizers, told by a model's files how."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._extras import require

CONTROL = 3  # the type of a token in a GGUF that stands for no text


class Tokenizer:
    """Makes the tokens of a text that a model was trained on, and a text of tokens.

    Parameters
    ----------
    library
        A ``tokenizers.Tokenizer``.
    ends
        The tokens with which a model says that it has finished.
    begin
        A token that comes before every text, if the model's files ask for one.
    template
        How a conversation is put, in Jinja, if the model was trained on some.
    names
        The words of the template that stand for special tokens, such as ``bos_token``.
    """

    def __init__(
        self,
        library: Any,
        ends: Iterable[int] = (),
        begin: int | None = None,
        template: str | None = None,
        names: Mapping[str, str] | None = None,
    ):
        self.library, self.ends, self.begin = library, frozenset(ends), begin
        self.template, self.names = template, dict(names or {})

    def encode(self, text: str) -> list[int]:
        """Make tokens of a text; special ones, such as ``<|im_end|>``, are read where they are written.

        A byte that the vocabulary lacks is left out; in SmolLM2 these are six control characters and the first
        bytes of planes of Unicode that are hardly used.

        Raises
        ------
        ValueError
            If it is no valid Unicode: half a character, as Python makes it of bytes that are not UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text is no valid Unicode: at {error.start} stands {text[error.start]!r}, which UTF-8 lacks; "
                "bytes that are not UTF-8 become such characters"
            ) from None
        ids = self.library.encode(text).ids
        return ids if self.begin is None else [self.begin, *ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Make a text of tokens; special ones are left out, and half a character becomes U+FFFD."""
        return self.library.decode(list(ids))

    def tokens(self, text: str) -> list[str]:
        """Cut a text into its tokens, as they can be read."""
        return [self.library.decode([i], skip_special_tokens=False) for i in self.encode(text)]

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Make a text of tokens piece by piece; a character of several tokens comes when it is whole."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        for i in ids:
            piece = stream.step(self.library, i)
            if piece:
                yield piece

    def chat(self, question: str) -> str:
        """Put a question as the model's template does, ready for an answer.

        Raises
        ------
        ValueError
            If the files of the model have no template, or it refuses the question.
        """
        if self.template is None:
            raise ValueError("this model has no template for conversations; leave chat out, to continue the text")
        require("a conversation", "jinja2")
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        messages = [{"role": "user", "content": question}]
        try:
            template = environment.from_string(self.template)
            return template.render(messages=messages, add_generation_prompt=True, **self.names)
        except TemplateError as error:
            raise ValueError(f"the model's template for conversations cannot be used: {error}") from error


def from_gguf(fields: Mapping[str, Any]) -> Tokenizer:
    """Make the tokenizer that the metadata of a GGUF describe.

    Raises
    ------
    ValueError
        If it cuts texts by rules that are not known here.
    ImportError
        If tokenizers is not installed.
    """
    require("making tokens of a text", "tokenizers")
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    model, rules = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if (model, rules) != ("gpt2", "smollm"):
        raise ValueError(
            f"GGUF: the tokenizer {model!r} with the rules {rules!r} is not known here, only 'gpt2' with 'smollm'; "
            "a Hugging Face folder may do"
        )
    texts = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    library = Library(models.BPE({text: i for i, text in enumerate(texts)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    library.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library.decoder = decoders.ByteLevel()
    special = [
        text for text, kind in zip(texts, fields["tokenizer.ggml.token_type"], strict=True) if kind == CONTROL
    ]
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    begin, end = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    names = {f"{name}_token": texts[i] for name, i in (("bos", begin), ("eos", end)) if i is not None}
    asked = fields.get("tokenizer.ggml.add_bos_token", False)
    return Tokenizer(
        library,
        [] if end is None else [end],
        begin if asked else None,
        fields.get("tokenizer.chat_template"),
        names,
    )


def from_folder(folder: Path) -> Tokenizer | None:
    """Make the tokenizer of a Hugging Face folder, or none where it has none.

    Raises
    ------
    ValueError
        If ``tokenizer.json`` is not what it should be.
    ImportError
        If tokenizers is not installed.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    require("making tokens of a text", "tokenizers")
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{file} cannot be read: {error}") from error
    told: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        told |= json.loads((folder / name).read_text("utf-8")) if (folder / name).is_file() else {}
    ends = told.get("eos_token_id")
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    template = folder / "chat_template.jinja"
    text = template.read_text("utf-8") if template.is_file() else told.get("chat_template")
    names = {name: _text(told[name]) for name in ("bos_token", "eos_token") if told.get(name)}
    return Tokenizer(library, ends, None, text, names)


def _text(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]
