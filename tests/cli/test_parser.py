"""The words of the command line: no verb, unknown ones, and how help ends."""

import argparse

import pytest

from t5xpg.cli.main import main, make_parser, parse


def ended(words: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code


def test_no_verb_is_answered_with_help_and_what_to_do_first(capsys):
    assert ended([]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("usage: t5xpg ") and not err
    assert (
        "first steps:\n  t5xpg demo " in out and "t5xpg train configs/byt5_tiny.gin FILES=corpus_{split}.jsonl" in out
    )
    assert ended(["--help"]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian", "a.gin"], "t5xpg: error: 'trian' is not a VERB; did you mean train?"),
        (["fill_mask"], "t5xpg: error: 'fill_mask' is not a VERB; did you mean fill-mask?"),
        (["recipes", "shw"], "t5xpg recipes: error: 'shw' is not one of show | copy | diff; did you mean show?"),
        (["prepare", "txt"], "t5xpg prepare: error: 'txt' is not a CORPUS; did you mean text?"),
        (["export", "onnx"], "t5xpg export: error: 'onnx' is not a FORMAT; choose from ct2, savedmodel, hf."),
        (
            ["tokenizer", "train", "--input", "a", "--output", "b", "--model_type", "unigrm"],
            "t5xpg tokenizer train: error: 'unigrm' is not a --model_type; did you mean unigram?",
        ),
        (
            ["predict", "runs/a", "x", "--batchsize", "4"],
            "t5xpg predict: error: there is no --batchsize; did you mean --batch_size?",
        ),
        (
            ["qa", "runs/squad", "Who?"],
            "t5xpg qa: error: 'Who?' belongs to no flag; words stand before the flags, see t5xpg qa --help.",
        ),
        (["predict", "runs/a", "--xyzzy"], "t5xpg predict: error: there is no --xyzzy; see t5xpg predict --help."),
    ],
)
def test_an_unknown_word_is_answered_in_a_line_with_the_nearest(words, said, capsys):
    assert ended(words) == 2
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["x", "--step", "4", "y z"], ["x", "y z"]),
        (["x", "--step", "4", "- a list item", "-5"], ["x", "- a list item", "-5"]),
        (["--step", "4", "--", "-x", "--y"], ["-x", "--y"]),
        (["--", "-x"], ["-x"]),
    ],
)
def test_texts_may_stand_behind_flags_and_begin_with_a_dash(words, texts):
    args = parse(["predict", "runs/a", *words])
    assert args.what == texts and args.step == (4 if "--step" in words else None)


def test_a_verb_that_is_like_none_gets_all_of_them(capsys):
    assert ended(["xyzzy"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"; choose from {', '.join(verbs(make_parser()))}.")


def test_what_else_is_wrong_keeps_its_usage(capsys):
    assert ended(["inspect", "a", "--sample", "many"]) == 2
    assert capsys.readouterr().err.startswith("usage: t5xpg inspect ")


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns a parser's verbs, {} where it has none."""
    groups = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return groups[0] if groups else {}


def test_each_verbs_help_ends_with_the_next_thing_to_do():
    parser = make_parser()
    known = verbs(parser)
    for verb in known.values():
        for help_of in (verb, *verbs(verb).values()):
            last = help_of.format_help().splitlines()[-1]
            assert last.startswith("next: "), help_of.prog
            words = last.split()
            if words[1] == "t5xpg":
                assert words[2] in known and (not verbs(known[words[2]]) or words[3] in verbs(known[words[2]]))
