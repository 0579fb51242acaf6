"""Figures to touch: each is a table or a picture where no script runs, and answers to the reader where one does."""

from .base import Explorer
from .cards import Cards
from .flash import Flash
from .heads import Heads
from .mask_builder import MaskBuilder
from .projection import OutputProjection
from .query import Query
from .questions import Progress, Quiz
from .scale import Scale
from .shapes import Shapes

__all__ = [
    "Cards",
    "Explorer",
    "Flash",
    "Heads",
    "MaskBuilder",
    "OutputProjection",
    "Progress",
    "Query",
    "Quiz",
    "Scale",
    "Shapes",
]
