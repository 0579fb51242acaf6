"""Figures to touch: each is a table or a picture where no script runs, and answers to the reader where one does."""

from .base import Explorer
from .heads import Heads

__all__ = ["Explorer", "Heads"]
