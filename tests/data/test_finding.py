"""What is said where FILES does not say which files are of which split."""

import pytest

from t5xpg.data import finding

STANDS = ", where {split} stands for train and validation"


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ("books_train.jsonl", "books_{split}.jsonl" + STANDS),
        ("books.validation.jsonl", "books.{split}.jsonl" + STANDS),
        ("gs://b/test/part-*.jsonl", '"gs://b/{split}/part-*.jsonl"' + STANDS),
        ("train/a_train.jsonl", "train/a_{split}.jsonl" + STANDS),
        (["a_train.jsonl", "b_train.jsonl"], "\"['a_{split}.jsonl', 'b_{split}.jsonl']\"" + STANDS),
        ("books_valid.jsonl", "\"{'train': 'books_train.jsonl', 'validation': 'books_valid.jsonl'}\""),
        ("my books_dev.jsonl", "\"{'train': 'my books_train.jsonl', 'validation': 'my books_dev.jsonl'}\""),
        ("/big/corpus-*.jsonl", "\"{'train': '/big/corpus-*.jsonl', 'validation': …}\""),
        (["a_train.jsonl", "b.jsonl"], "\"{'train': ['a_train.jsonl', 'b.jsonl'], 'validation': …}\""),
        ("constraints.jsonl", "\"{'train': 'constraints.jsonl', 'validation': …}\""),
        ("costs$.jsonl", "'{'\"'\"'train'\"'\"': '\"'\"'costs$.jsonl'\"'\"', '\"'\"'validation'\"'\"': …}'"),
        (
            "notes.txt",
            "\"{'train': 'notes.txt', 'validation': …}\". If this is plain text: t5xpg prepare text 'notes.txt'",
        ),
    ],
)
def test_files_of_no_split_are_answered_in_their_own_names(files, advice):
    with pytest.raises(ValueError) as refused:
        finding.split_files(files, ("train", "validation"))
    assert str(refused.value) == f"files={files!r} does not say for which split. Write FILES={advice}"


def test_a_folder_of_text_is_answered_with_what_makes_jsonl_of_it(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(finding.MissingFileError) as refused:
        finding.find_files(str(tmp_path))
    assert str(refused.value) == (
        f"no JSONL file for '{tmp_path}': the folder {tmp_path} has none, nor Parquet or .json. "
        f"If it holds plain text: t5xpg prepare text {tmp_path}"
    )


def test_the_splits_are_those_that_were_asked_for():
    with pytest.raises(ValueError, match="Write FILES=a_{split}.jsonl, where {split} stands for dev$"):
        finding.split_files("a_dev.jsonl", ["dev"])
    with pytest.raises(ValueError, match="""Write FILES="{'dev': 'a.jsonl'}"$"""):
        finding.split_files("a.jsonl", ["dev"])
