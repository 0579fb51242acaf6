"""How other frameworks store the matrices of one layer, and how to move the layer between them."""

from .checkpoint import read_arrays, read_shapes
from .converter import convert, dump, load
from .patterns import inverse
from .recognise import Match, identify
from .saving import write
from .table import LAYOUTS, Entry, Layout, Stored, atlas

__all__ = [
    "LAYOUTS",
    "Entry",
    "Layout",
    "Match",
    "Stored",
    "atlas",
    "convert",
    "dump",
    "identify",
    "inverse",
    "load",
    "read_arrays",
    "read_shapes",
    "write",
]
