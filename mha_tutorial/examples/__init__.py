"""The worked examples of the book."""

from . import decoding, shards, steps, two_averages, worked

__all__ = ["decoding", "shards", "steps", "two_averages", "worked"]
