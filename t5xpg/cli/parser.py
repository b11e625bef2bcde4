"""The command line's ArgumentParser: unknown words are answered with the nearest, help ends with what is next."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from t5xpg.base import nearest

NEXT = {  # {verb: what to do after it}
    "demo": "t5xpg prepare text FOLDER --name corpus    (text of your own)",
    "prepare": "t5xpg train configs/byt5_tiny.gin FILES=NAME_{split}.jsonl MODEL_DIR=runs/NAME",
    "cache": "t5xpg train …    (the command that is printed at the end)",
    "train": "t5xpg report MODEL_DIR --html report.html",
    "report": 't5xpg predict MODEL_DIR "some text"',
    "eval": "t5xpg infer RECIPE.gin …    (the predictions themselves)",
    "infer": "t5xpg export hf MODEL_DIR FOLDER",
    "recipes": "t5xpg check RECIPE.gin NAME=VALUE …",
    "check": "t5xpg train RECIPE.gin …    (with the same arguments; or eval, infer)",
    "inspect": "t5xpg check RECIPE.gin NAME=VALUE …",
    "tasks": "t5xpg inspect TASK",
    "tokenizer": "t5xpg train configs/t5_1_1_tiny.gin VOCABULARY_FILE=OUTPUT.model FILES=… MODEL_DIR=…",
    "predict": "t5xpg score RUN INPUT TARGET",
    "score": "t5xpg export hf RUN FOLDER",
    "export": "OUT/README.md says how to load the model",
    "import": "t5xpg train OUT/model.gin …    (the command that is printed at the end)",
    "fill-mask": "t5xpg export hf MODEL_DIR FOLDER",
    "qa": "t5xpg export hf MODEL_DIR FOLDER",
    "completion": "t5xpg train <TAB>    (in a new shell)",
}


class Parser(argparse.ArgumentParser):
    """Of `t5xpg` and, as argparse makes them of the same class, of its verbs and theirs."""

    def format_help(self) -> str:
        following = [NEXT[verb] for verb in self.prog.split()[1:2]]
        return "".join([super().format_help(), *(f"\nnext: {step}\n" for step in following)])

    def parse_known_args(self, args=None, namespace=None):
        """As argparse's; ends the process at an unknown word here, where the verb's own flags are known.

        Texts, recipes and NAME=VALUE may stand behind a verb's flags: they are left to the caller.
        """
        namespace, rest = super().parse_known_args(args, namespace)
        words = rest[: rest.index("--")] if "--" in rest else rest
        flags = [word for word in words if re.match(r"--?[a-zA-Z][\w-]*(=|$)", word)]
        if flags:
            hint = nearest.hint(flags[0].partition("=")[0], self._option_string_actions)
            self.exit(2, f"{self.prog}: error: there is no {flags[0]}{hint or f'; see {self.prog} --help.'}\n")
        if rest and not hasattr(namespace, "what"):
            where = f"belongs to no flag; words stand before the flags, see {self.prog} --help."
            self.exit(2, f"{self.prog}: error: {rest[0]!r} {where}\n")
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2: in one line where a word is unknown, otherwise after the usage."""
        unknown = re.fullmatch(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if unknown is None:
            super().error(message)
        where, word, choices = unknown.groups()
        known = re.findall(r"[\w-]+", choices)
        hint = nearest.hint(word, known) or f"; choose from {', '.join(known)}."
        self.exit(2, f"{self.prog}: error: {word!r} is not {'one of' if ' | ' in where else 'a'} {where}{hint}\n")
