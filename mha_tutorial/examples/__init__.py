"""The worked examples of the book."""

from . import decoding, faults, guide, shards, steps, two_averages, worked

__all__ = ["decoding", "faults", "guide", "shards", "steps", "two_averages", "worked"]
