"""The worked examples of the book."""

from . import decoding, steps, two_averages, worked

__all__ = ["decoding", "steps", "two_averages", "worked"]
