"""prepare and tokenizer with URLs: what is written there is what is written on a disk, and no local folder is made."""

import os

import pytest
import seqio
from command import run_t5xpg
from hub_server import HubServer

from t5xpg import vocabularies
from t5xpg.base import files
from t5xpg.data import corpora, text_files
from t5xpg.vocabularies import tokenizer_json, training

PROSE = "".join(f"{n} plain words to learn pieces from, é and all of it. The end of it.\n\n" for n in range(200))


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert os.listdir() == []


def test_prepare_and_tokenizer_by_their_commands(bucket, tmp_path):
    (tmp_path / "a.txt").write_text(PROSE)
    files.write_whole(f"{bucket}/raw/a.txt", PROSE)
    for source, out in ((tmp_path, tmp_path / "out"), (f"{bucket}/raw", f"{bucket}/out")):
        prepared = run_t5xpg("prepare", "text", f"{source}/a.txt", "--output_dir", out)
        assert prepared.returncode == 0 and f"{out}/text_train.jsonl: " in prepared.stdout, prepared.stderr
        flags = ("--output", f"{out}/v", "--vocab_size", 300)
        trained = run_t5xpg("tokenizer", "train", "--input", f"{out}/text_train.jsonl", *flags)
        assert trained.returncode == 0 and f"VOCABULARY_FILE={out}/v.model" in trained.stdout, trained.stderr
    written = sorted(
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()
    )
    assert written == sorted(path.removeprefix(f"{bucket}/out/") for path in files.files_below(f"{bucket}/out"))
    for name in written:
        assert files.read_bytes(f"{bucket}/out/{name}") == (tmp_path / "out" / name).read_bytes(), name


def test_a_vocabulary_at_a_url_is_seqios_own(bucket, tmp_path):
    files.write_whole(f"{bucket}/a.txt", PROSE)
    model = training.train_sentencepiece(f"{bucket}/a.txt", f"{bucket}/v", 300)
    with files.local_copy(model) as local:
        files.write_whole(tmp_path / "v.model", files.read_bytes(local))
    url, here = (
        vocabularies.sentencepiece(f"{bucket}/v.model"),
        vocabularies.sentencepiece(f"file://{tmp_path}/v.model"),
    )
    text = "plain words <extra_id_0> é ß"
    assert type(here) is seqio.SentencePieceVocabulary
    assert url.encode(text) == here.encode(text) == url.encode_tf(text).numpy().tolist()
    assert url.sp_model == here.sp_model and url.vocab_size == here.vocab_size
    assert url == seqio.SentencePieceVocabulary(f"{bucket}/v.model", 100) == url
    assert url != seqio.SentencePieceVocabulary(f"{bucket}/v.model", 99)
    with pytest.raises(FileNotFoundError, match="no SentencePiece model there"):
        vocabularies.sentencepiece(f"{bucket}/w.model")
    with pytest.raises(FileExistsError, match="exists already"):
        training.train_sentencepiece(f"{bucket}/a.txt", f"{bucket}/v", 300)
    tokenizer_json.write(model, f"{bucket}/hf")
    bpe = training.train_byte_level_bpe(f"{bucket}/a.txt", f"{bucket}/bpe", 300)
    assert vocabularies.byte_level_bpe(str(bpe)).encode("words") == vocabularies.byte_level_bpe(bpe).encode("words")
    assert files.names_in(bucket) == ["a.txt", "bpe", "hf", "v.model", "v.vocab"]


def test_a_vocabulary_on_the_hub(monkeypatch, tmp_path):
    (tmp_path / "a.txt").write_text(PROSE)
    model = training.train_sentencepiece(tmp_path / "a.txt", tmp_path / "v", 300)
    with HubServer("someone/texts", {"spiece.model": model.read_bytes()}) as hub:
        url = f"{hub.endpoint}/datasets/someone/texts/resolve/main/spiece.model"
        assert vocabularies.sentencepiece(url).sp_model == vocabularies.sentencepiece(str(model)).sp_model


@pytest.mark.parametrize("url", ["https://host/out", "hf://datasets/x/y"])
def test_what_can_only_be_read_is_refused_before_anything_is_done(url, tmp_path):
    (tmp_path / "a.txt").write_text(PROSE)
    refusals = {
        "--output_dir": lambda: text_files.prepare_text([tmp_path / "a.txt"], url),
        "--output": lambda: training.train_sentencepiece(tmp_path / "a.txt", url, 300),
    }
    for name, attempt in refusals.items():
        with pytest.raises(
            ValueError, match=f"^{name} {url}.* can only be read; write to a local path, gs:// or s3://"
        ):
            attempt()


def test_prepare_text_takes_folders_and_globs_at_urls(bucket):
    files.write_whole(f"{bucket}/raw/a.txt", "One\n\nTwo")
    files.write_whole(f"{bucket}/raw/deep/b.txt", "Three")
    files.write_whole(f"{bucket}/raw/c.png", b"\x00")
    for source in (f"{bucket}/raw", f"{bucket}/raw/**"):
        written = text_files.prepare_text([source], f"{bucket}/out", validation_fraction=0, overwrite=True)
        assert files.read_text(written["train"]).count("\n") == 3
    shuffled = text_files.prepare_text([f"{bucket}/raw"], f"{bucket}/shards", validation_fraction=0, shards=2)
    assert [files.read_text(path).count("\n") for path in files.files_matching(str(shuffled["train"]))] == [2, 1]
    with pytest.raises(corpora.CorpusError, match="is both input and output"):
        text_files.prepare_text([f"{bucket}/out"], f"{bucket}/out", validation_fraction=0, overwrite=True)
    with pytest.raises(corpora.CorpusError, match="does not exist and matches nothing"):
        text_files.prepare_text([f"{bucket}/nothing"], f"{bucket}/out2")
    files.remove(f"{bucket}/out/text_train.jsonl")
    files.write_whole(f"{bucket}/bad.txt", b"good\n\xff\n")
    with pytest.raises(corpora.CorpusError, match=r"bad.txt:2: not UTF-8"):
        text_files.prepare_text([f"{bucket}/bad.txt"], f"{bucket}/out", validation_fraction=0)
    assert files.names_in(f"{bucket}/out") == []
