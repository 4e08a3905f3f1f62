"""Entry point of ``python -m mgx_numba``, the command line."""

import sys

from .driver.main import main

sys.exit(main())
