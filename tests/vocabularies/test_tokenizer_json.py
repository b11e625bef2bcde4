"""tokenizer.json against seqio, id for id: fuzzed, over Unicode, on real text, through AutoTokenizer."""

from __future__ import annotations

import json
import pydoc_data.topics
import random
import re
import sys
import unicodedata

import pytest
import sentencepiece
import seqio
from tokenizers import Tokenizer

from t5xpg.vocabularies import tokenizer_json, training

# Ibsen's Terje Vigen, Goethe's Erlkönig, Sōseki's I Am a Cat, Al-Mutanabbi, Genesis: all in the public domain.
NORWEGIAN = """Der bodde en underlig gråsprengt en på den ytterste nøgne ø;
han gjorde visst intet menneske mén hverken på land eller sjø;
dog stundom gnistred hans øyne stygt, helst mot urolig vær,
og da mente folk at han var forrykt, og da var der få som uten frykt kom Terje Vigen nær."""
GERMAN = """Wer reitet so spät durch Nacht und Wind? Es ist der Vater mit seinem Kind;
Er hat den Knaben wohl in dem Arm, er faßt ihn sicher, er hält ihn warm.
»Mein Sohn, was birgst du so bang dein Gesicht?« – »Siehst, Vater, du den Erlkönig nicht?«"""
JAPANESE = """吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。
何でも薄暗いじめじめした所でニャーニャー泣いていた事だけは記憶している。
吾輩はここで始めて人間というものを見た。しかもあとで聞くとそれは書生という人間中で一番獰悪な種族であったそうだ。"""
ARABIC = "الخَيْلُ وَاللّيْلُ وَالبَيْداءُ تَعرِفُني وَالسّيفُ وَالرّمحُ والقرْطاسُ وَالقَلَمُ"
HEBREW = "בְּרֵאשִׁית בָּרָא אֱלֹהִים אֵת הַשָּׁמַיִם וְאֵת הָאָרֶץ"
REAL = (NORWEGIAN, GERMAN, JAPANESE, ARABIC, HEBREW)

KINDS = {
    "unigram": {},
    "lowercase": {"lowercase": True},
    "bytes": {"byte_fallback": True},
    "bpe": {"model_type": "bpe"},
    "bpe_bytes": {"model_type": "bpe", "byte_fallback": True},
}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    topics = list(pydoc_data.topics.topics.values())[:20]
    markup = "<p>markup</p> in </sub> <padding> ... = == .... " * 20
    path.write_text("\n".join([*topics, *REAL, markup]), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=KINDS)
def both(request, text_file, tmp_path_factory) -> tuple[seqio.SentencePieceVocabulary, Tokenizer]:
    """A trained model, as SeqIO and as `tokenizers` read it."""
    folder = tmp_path_factory.mktemp(request.param)
    model = training.train_sentencepiece(text_file, folder / "v", 1500, **KINDS[request.param])
    exported = tokenizer_json.write(model, folder / "hf")
    return seqio.SentencePieceVocabulary(str(model), 100), Tokenizer.from_file(str(exported))


def differing(both, texts) -> list[str]:
    vocabulary, tokenizer = both
    texts = list(texts)
    encoded = tokenizer.encode_batch(texts)
    return [
        ascii(text)
        for text, encoding in zip(texts, encoded, strict=True)
        if encoding.ids != [*vocabulary.encode(text), vocabulary.eos_id]
    ]


ODD = [
    *(" ", "  ", "\t", "\n", "\r\n", "\0", "\x01", "\x0b", "\x1f", "\x7f", "\x85", "\u00a0", "\u200b", "\u200d"),
    *("\u2028", "\ufeff", "\u3000", "\ufffd", "~", "～", "＜", "＞", "<", ">", "_", "é", "e\u0301", "ｶﾞ", "が", "한국"),
    *("😀", "👩‍👩‍👧", "🇳🇴", "✈️", "™️", "①", "½", "ﬁ", "№", "…", "㍿", "Ａ\u0304", "ß", "İ", "ς", "Σ"),
    *("....", ".......", "-----", "=====", "aaaaaa", "00000", "hahahaha", "ssssss"),
    *("<extra_id_0>", " <extra_id_1> ", "<extra_id_99>", "<extra_id_100>", "x<extra_id_5>y", "＜extra_id_3＞"),
    *("<extra_id_0><extra_id_1>", "<EXTRA_ID_0>", "<extra_id_", "<extra_id_00>", "<0x41>", "<0xE3>"),
    *("</s>", " </s> ", "<pad>", "<unk>", "<s>", "<mask>", "</s", "<p>", "</p>", "unk>"),
]


def fuzzed(seed: int, count: int):
    """Texts of six kinds; none only a special id's name, none with "▁" before a sentinel's."""
    rng = random.Random(seed)
    words = [word for text in (*REAL, *list(pydoc_data.topics.topics.values())[20:24]) for word in text.split()]
    assigned = [c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c)[0] not in "CM"]
    kinds = (
        lambda: rng.choice(assigned),
        lambda: rng.choice(assigned[:600]),
        lambda: rng.choice(words) + " ",
        lambda: rng.choice(ODD),
        lambda: rng.choice([rng.choice(words), rng.choice(ODD)]),
        lambda: unicodedata.normalize("NFD", rng.choice(words)) + rng.choice(["", " "]),
    )
    for _ in range(count):
        kind = rng.choice(kinds)
        text = "".join(kind() for _ in range(rng.randrange(25)))
        if re.sub("[^!-~]", "", text) not in ("</s>", "<pad>", "<unk>"):
            yield text


@pytest.mark.parametrize("seed", range(3))
def test_ids_are_seqios(both, seed):
    texts = list(fuzzed(seed, 1000))
    assert differing(both, texts) == [], f"seed {seed}"
    vocabulary, _ = both
    in_tf_data = vocabulary.encode_tf(texts[:200]).to_list()
    assert in_tf_data == [vocabulary.encode(text) for text in texts[:200]]


def test_real_text(both):
    whole = ["", *REAL, *list(pydoc_data.topics.topics.values())[:60]]
    rows = [row for text in whole for row in text.split("\n")]
    texts = [*whole, *rows, *(unicodedata.normalize(form, row) for row in rows for form in ("NFD", "NFKD"))]
    assert differing(both, texts) == []
    vocabulary, tokenizer = both
    for row in rows:
        ids = vocabulary.encode(row)
        if vocabulary.unk_id not in ids:
            assert tokenizer.decode(ids) == vocabulary.decode(ids)


def test_marks_in_any_order(both):
    """NFKC would sort them; SentencePiece leaves them as they are typed: shadda first, dagesh first."""
    typed = ["مُحَمَّد", "م\u0651\u064eد", "ב\u05bc\u05b0", "ש\u05c1\u05bc\u05b8", "هُوَ اللّٰهُ"]
    assert any(unicodedata.normalize("NFKC", text) != text for text in typed)
    assert differing(both, typed) == []


def test_every_character(both):
    """Alone, in a word and before a mark, without U+0344, which no keyboard has: NFKC splits it."""
    _vocabulary, _tokenizer = both
    blocks = [range(1, 0x344), range(0x345, 0x2100, 3), range(0x3000, 0x3400), range(0xF900, 0x10000)]
    characters = [chr(i) for block in blocks for i in block]
    characters = [c for c in characters if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    assert differing(both, characters) == []
    assert differing(both, (f"a{c}b" for c in characters)) == []
    letters = [c for c in characters if unicodedata.category(c)[0] in "LN"]
    assert differing(both, (f"{c}\u0305" for c in letters)) == []


def test_sentinels_and_special_ids(both):
    vocabulary, tokenizer = both
    assert tokenizer.get_vocab_size() == vocabulary.vocab_size
    for i in range(100):
        assert tokenizer.token_to_id(f"<extra_id_{i}>") == vocabulary.vocab_size - 1 - i
    for name in ("<pad>", "</s>", "<unk>"):
        (own_id, eos) = tokenizer.encode(name).ids
        assert tokenizer.id_to_token(own_id) == name and eos == 1
        assert own_id not in tokenizer.encode(f"a {name}b").ids[:-1], "a name in a text is text"
    last, before = vocabulary.vocab_size - 1, vocabulary.vocab_size - 2
    ids = tokenizer.encode("the <extra_id_0> of <extra_id_1>").ids
    assert [i for i in ids if i >= before] == [last, before]
    assert tokenizer.decode(ids) == "the of"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "the <extra_id_0> of <extra_id_1></s>"


def test_pairs_and_padding(both):
    _, tokenizer = both
    a, b = (tokenizer.encode(text).ids for text in ("question", "context"))
    assert tokenizer.encode("question", "context").ids == a + b and a[-1] == b[-1] == 1


def test_auto_tokenizer(text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    model = training.train_sentencepiece(text_file, tmp_path / "v", 1500)
    tokenizer_json.write(model, tmp_path / "hf")
    transformers.T5Config(vocab_size=1664).save_pretrained(tmp_path / "hf")
    vocabulary = seqio.SentencePieceVocabulary(str(model), 100)
    transformers.AutoTokenizer.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "again")
    for folder in ("hf", "again"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        texts = list(fuzzed(7, 500))
        assert tokenizer(texts).input_ids == [[*vocabulary.encode(text), 1] for text in texts]
        assert len(tokenizer) == vocabulary.vocab_size
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
        assert tokenizer.convert_tokens_to_ids("<extra_id_0>") == vocabulary.vocab_size - 1
        ids = tokenizer("the <extra_id_0> is").input_ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == "the is"
        assert tokenizer(["the is", "the"], padding=True).input_ids[1][-1] == 0


def test_a_model_with_sentinels_of_its_own(text_file, tmp_path):
    model = training.train_sentencepiece(text_file, tmp_path / "v", 1500)
    own = tmp_path / "own.model"
    own.write_bytes(seqio.SentencePieceVocabulary(str(model), 7).sp_model)
    tokenizer = Tokenizer.from_file(str(tokenizer_json.write(own, tmp_path / "hf", 0)))
    assert differing((seqio.SentencePieceVocabulary(str(own)), tokenizer), fuzzed(5, 200)) == []
    assert tokenizer.token_to_id("<extra_id_0>") == 1506
    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert config["additional_special_tokens"] == [f"<extra_id_{i}>" for i in range(7)]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"model_type": "char"}, "it is neither unigram nor BPE"),
        ({"normalization_rule_name": "identity"}, "its normalization is 'identity', not nmt_nfkc"),
        ({"remove_extra_whitespaces": False}, "it treats spaces differently"),
        ({"add_dummy_prefix": False}, "it treats spaces differently"),
        ({"user_defined_symbols": "[X]"}, r"the piece '\[X\]' is of a kind"),
    ],
)
def test_other_models_are_refused(tmp_path, settings, found):
    path = tmp_path / "v.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(GERMAN.split("\n")),
            model_writer=file,
            vocab_size=70,
            hard_vocab_limit=False,
            minloglevel=2,
            **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, **settings},
        )
    with pytest.raises(ValueError, match=f"no tokenizer.json for this model: {found}"):
        tokenizer_json.write(path, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


# --- bytes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra_ids", [0, 25, 100])
def test_bytes_have_seqios_ids_for_every_text(extra_ids, tmp_path):
    tokenizer = Tokenizer.from_file(str(tokenizer_json.write_bytes(tmp_path, extra_ids)))
    vocabulary = seqio.ByteVocabulary(extra_ids=extra_ids)
    rng = random.Random(0)
    pieces = ["</s>", "<pad>", "<unk>", "<", "/s>", "<extra_id_", "<extra_id_777>", "\x00\x01\x7f", " ", "\n\t\r"]
    for _ in range(300):
        others = [chr(rng.randrange(0xD800)), "\U0010ffff", "\ufffd", "ﬁ\u0301"]
        text = "".join(rng.choice(pieces + others) for _ in range(9))
        if text not in ("</s>", "<pad>", "<unk>"):
            ids = tokenizer.encode(text).ids
            assert ids == [*vocabulary.encode(text), 1], text
            assert tokenizer.decode(ids) == text
    assert tokenizer.encode("".join(REAL)).ids == [*vocabulary.encode("".join(REAL)), 1]


@pytest.mark.parametrize(("extra_ids", "count"), [(0, 11), (25, 25), (100, 100)])
def test_sentinels_of_bytes_count_down_from_the_last_id(extra_ids, count, tmp_path):
    tokenizer_json.write_bytes(tmp_path, extra_ids)
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "a <extra_id_0>é</s><extra_id_10> <pad>"
    vocabulary = seqio.ByteVocabulary(extra_ids=extra_ids)
    head, middle, tail = (vocabulary.encode(part) for part in ("a ", "é</s>", " <pad>"))
    last = vocabulary.vocab_size - 1
    assert tokenizer(text).input_ids == [*head, last, *middle, last - 10, *tail, 1]
    assert tokenizer.decode(tokenizer(text).input_ids) == text + "</s>"
    assert len(tokenizer) == vocabulary.vocab_size
    assert tokenizer.convert_tokens_to_ids(f"<extra_id_{count - 1}>") == last - count + 1
    assert tokenizer(["a", "bc"], padding=True).input_ids == [[100, 1, 0], [101, 102, 1]]
