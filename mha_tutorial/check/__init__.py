"""Find the fault in an attention function or a layer, of NumPy or PyTorch."""

from . import adapters
from .faults import FAULTS, Fault
from .properties import PROPERTIES, Evidence, Property
from .report import Finding, Report
from .running import check

__all__ = ["FAULTS", "PROPERTIES", "Evidence", "Fault", "Finding", "Property", "Report", "adapters", "check"]
