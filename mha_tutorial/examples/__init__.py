"""The worked examples of the book."""

from . import steps, two_averages, worked

__all__ = ["steps", "two_averages", "worked"]
