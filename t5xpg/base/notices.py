"""Lines that the user of a program has to see, wherever they come from."""

from __future__ import annotations

import logging
import sys

from absl import logging as absl_logging
from tqdm import tqdm


def notice(message: str) -> None:
    """Logs a warning, and prints it where the terminal does not show warnings, as the embedded engine's does not."""
    absl_logging.warning("%s", message)
    if absl_logging.get_absl_handler().level > logging.WARNING:
        tqdm.write(message, file=sys.stderr)
