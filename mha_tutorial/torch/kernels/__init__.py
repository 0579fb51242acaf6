"""Kernels: four ways to compute the same attention, of one signature."""

from .common import Kernel
from .flex import flex
from .fused import backend_of, fused, fused_on
from .guard import guarded
from .naive import naive
from .online import online

KERNELS: dict[str, Kernel] = {"naive": naive, "fused": fused, "online": online, "flex": flex}

__all__ = [
    "KERNELS",
    "Kernel",
    "backend_of",
    "flex",
    "fused",
    "fused_on",
    "guarded",
    "naive",
    "online",
]
