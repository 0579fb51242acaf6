"""What has to hold of any attention: each property a small function, all of them in one table.

A property is given the function under test and sizes, and returns what contradicts it, or None. To add one, write
the function and an entry of `PROPERTIES`.
"""

from .common import Evidence, Options, close
from .table import PROPERTIES, Property

__all__ = ["PROPERTIES", "Evidence", "Options", "Property", "close"]
