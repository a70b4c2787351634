"""The command `recipe`, as `python -m samplers.cli`."""

import sys

from . import main

sys.exit(main())
