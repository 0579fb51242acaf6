"""What can be said of a layer without running it, or by looking at what it did."""

from . import circuits, counting, scaling

__all__ = ["circuits", "counting", "scaling"]
