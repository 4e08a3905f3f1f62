"""Report on the environment variables of MIGraphX that are set."""

from __future__ import annotations

import logging
import os

from .variables import LIBRARIES, VARIABLES

PREFIXES = ("MIGRAPHX_", "MGX_", *LIBRARIES)


def report_environment(log: logging.Logger) -> None:
    """Log the variables that are set and have an effect; warn of set variables without effect, with the reason."""
    for name, value in sorted(os.environ.items()):
        if not name.startswith(PREFIXES):
            continue
        known = VARIABLES.get(name) or VARIABLES.get(f"{name.partition('_')[0]}_*")
        if known is not None and known.works:
            log.info("%s=%s", name, value)
        else:
            why = f": {known.text}" if known is not None else ": nobody reads it"
            log.warning("environment variable %s has no effect here%s", name, why)
