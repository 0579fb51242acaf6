"""The questions of the book: for each chapter, by its name, three to five, each by a name of its own."""

from . import attention, heads, model, practice, pytorch, tensors
from .record import Answer, Choice, Number, Question, Slip

PARTS = (attention, heads, tensors, pytorch, model, practice)
ASKED: dict[str, dict[str, Question]] = {
    chapter: questions for part in PARTS for chapter, questions in part.ASKED.items()
}
SUBJECTS = {
    "weighted-average": "weighted averages",
    "scaled-dot-product": "the scaled dot product",
    "words-in-context": "words in context",
    "multi-head": "multi-head attention",
    "why-heads": "why several heads",
    "output-projection": "the output projection",
    "conventions": "rows and columns",
    "papers-form": "the form of papers",
    "counting": "what a layer costs",
    "shapes": "shapes",
    "numpy-layer": "a layer in NumPy",
    "masks": "masks",
    "gradients": "gradients",
    "layer": "a layer in PyTorch",
    "speed": "speed",
    "flash": "flash attention",
    "devices": "several devices",
    "positions": "positions",
    "block": "the block",
    "decoding": "decoding",
    "generation": "generation",
    "real-heads": "heads of a trained model",
    "training": "training",
    "field-guide": "finding faults",
    "layouts": "layouts",
}

__all__ = ["ASKED", "SUBJECTS", "Answer", "Choice", "Number", "Question", "Slip"]
