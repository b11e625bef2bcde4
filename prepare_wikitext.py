"""`python prepare_wikitext.py` is `t5xpg prepare wikitext`: WikiText-103 as wikitext_{train,validation,test}.jsonl."""

import sys

from t5xpg.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "wikitext", *sys.argv[1:]]))
