"""`python -m t5xpg` is the `t5xpg` command."""

import os
import sys

# `-m` puts the working directory in front of the standard library, where a file html.py next to the corpus would
# shadow Python's own. The command puts it at the end.
if not getattr(sys.flags, "safe_path", False) and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from t5xpg.cli.main import main

sys.exit(main())
