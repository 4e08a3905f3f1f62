"""``python -m mgx_numba`` is the command line."""

import sys

from .driver.main import main

sys.exit(main())
