"""Figures to touch: each is a table or a picture where no script runs, and answers to the reader where one does."""

from .base import Explorer
from .cards import Cards
from .heads import Heads
from .questions import Progress, Quiz

__all__ = ["Cards", "Explorer", "Heads", "Progress", "Quiz"]
