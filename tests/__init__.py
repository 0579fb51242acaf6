"""The suite; what several test files need stands in modules without tests, whose asserts pytest explains too."""

import pytest

pytest.register_assert_rewrite(
    *(f"tests.{name}" for name in ("helpers", "layer_helpers", "layout_helpers", "numpy_oracle", "torch_helpers"))
)
