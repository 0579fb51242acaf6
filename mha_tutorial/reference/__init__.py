"""The mathematics of the book, to be read: one file per convention, and scalar loops that specify both."""

from . import column, loops, row

__all__ = ["column", "loops", "row"]
