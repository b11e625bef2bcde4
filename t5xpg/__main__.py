"""`python -m t5xpg` is the `t5xpg` command."""

import sys

from t5xpg.cli.main import main

sys.exit(main())
