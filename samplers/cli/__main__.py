"""The command `recipe`, as `python -m samplers.cli`."""

import sys

from .program import main

sys.exit(main())
