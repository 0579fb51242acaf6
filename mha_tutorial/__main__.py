"""``python -m mha_tutorial`` is the command ``mha-tutorial``."""

import sys

from .cli import main

sys.exit(main())
