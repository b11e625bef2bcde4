"""A SentencePiece model, or bytes, as Hugging Face's `tokenizers` runs it, with SeqIO's ids for every text.

SentencePiece normalizes a text, puts "▁" for each space and before the first word, and cuts the
result into pieces. `tokenizers` has the same steps under other names, and some habits of its own
that are undone here: what its NFKC and its Precompiled do to combining marks, and that it takes the
name of a special id, such as "</s>", for the id wherever a text has it.

Differences remain, in no natural text that we know of: a mark after a ligature ("ﬁ" and a circumflex
become one letter), two marks on a letter that are not in Unicode's order (other than Hebrew's and
Arabic's), and "▁" itself before a sentinel's name. A unigram model that was not trained here may
cut a run such as "......." at another place, since SentencePiece's float32 sums round.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec, TrainerSpec  # type: ignore[attr-defined]
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from t5xpg import vocabularies
from t5xpg.base import files, stores
from t5xpg.vocabularies import sentinels

Piece: Any = ModelProto.SentencePiece  # a string, its score and kind
_SENTINEL = "<extra_id_"
_CUT = "\x01"  # normalized text has none: T5's normalization drops control characters
_TILDE = "\ufdd0"  # a noncharacter: no text has it
_BYTES_SPECIALS = ("<pad>", "</s>", "<unk>")
_NEVER = -1e5  # log probability; far below that of any spelling in pieces


def write(model_path: str | os.PathLike, out_dir: str | os.PathLike, extra_ids: int = 100) -> Path:
    """Writes tokenizer.json and tokenizer_config.json, for AutoTokenizer.from_pretrained(out_dir).

    Its ids are SeqIO's for the same text, sentinels included, and EOS; the top of this file names
    what is known to differ. Like SeqIO it takes "<extra_id_0>" for a sentinel at the start of a word
    only, and "</s>" in a text for text; unlike SeqIO it takes a text that is nothing but "</s>",
    "<pad>" or "<unk>" for that id.

    Args:
      model_path: a SentencePiece model, unigram or BPE, with T5's normalization.
      out_dir: a folder, made if need be; files of these names are replaced.
      extra_ids: as for `vocabularies.sentencepiece`.

    Returns:
      The path of tokenizer.json.

    Raises:
      FileNotFoundError: no model at `model_path`.
      ValueError: as `vocabularies.sentencepiece`, or a model that treats text differently from T5's.
    """
    vocabulary = vocabularies.sentencepiece(os.fspath(model_path), extra_ids)
    model, count = ModelProto.FromString(vocabulary.sp_model), sentinels.count(vocabulary)
    specials = [model.pieces[i].piece for i in (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id)]
    return _write(out_dir, convert(model, count), specials, count)


def write_bytes(out_dir: str | os.PathLike, extra_ids: int = 100) -> Path:
    """As `write`, for `vocabularies.byte_vocabulary(extra_ids)`.

    Hugging Face's ByT5Tokenizer has other ids for the sentinels, and takes "</s>" in a text for EOS.
    """
    count = sentinels.count(vocabularies.byte_vocabulary(extra_ids))
    return _write(out_dir, convert_bytes(extra_ids), list(_BYTES_SPECIALS), count)


def _write(out_dir: str | os.PathLike, tokenizer, specials: list[str], sentinel_count: int) -> Path:
    """Writes a tokenizers.Tokenizer whose pad, EOS and unknown tokens are `specials`."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict(zip(("pad_token", "eos_token", "unk_token"), specials, strict=True)),
        "additional_special_tokens": [sentinels.name(i) for i in range(sentinel_count)],
        "clean_up_tokenization_spaces": False,
    }
    path = stores.path_of(out_dir) / "tokenizer.json"
    files.write_whole(path.with_name("tokenizer_config.json"), json.dumps(config, indent=2))
    files.write_whole(path, tokenizer.to_str(pretty=True))
    return path


def convert(model: ModelProto, sentinel_count: int) -> Tokenizer:
    """Returns the tokenizer that gives SeqIO's ids, then EOS; "<extra_id_0>" is the last id.

    Args:
      model: unigram or BPE; its last `sentinel_count` pieces are "▁<extra_id_N>", as SeqIO adds them.
      sentinel_count: how many.

    Raises:
      ValueError: the model treats text differently from T5's; says how.
    """
    pieces = model.pieces[: len(model.pieces) - sentinel_count]
    names = [piece.piece.removeprefix("▁") for piece in model.pieces[len(pieces) :]]
    specials = [piece.piece for piece in pieces if piece.type in (Piece.CONTROL, Piece.UNKNOWN)]
    _check(model, pieces)
    tokenizer = Tokenizer(_model(model.trainer_spec, pieces))
    tokenizer.normalizer = normalizers.Sequence(
        [
            *_normalization(model.normalizer_spec),
            *_spaces(),
            *_names(specials, sentinel_count, [p.piece for p in pieces if p.type == Piece.NORMAL]),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_CUT, "removed"), pre_tokenizers.Metaspace(prepend_scheme="never")]
    )
    eos = pieces[model.trainer_spec.eos_id].piece
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}",
        pair=f"$A {eos} $B {eos}",
        special_tokens=[(eos, model.trainer_spec.eos_id)],
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex(rf"\A(?={_SENTINEL})"), "▁"),
            decoders.ByteFallback(),
            decoders.Metaspace(),
        ]
    )
    # Looked for in normalized text, where `_names` leaves a name only if it stands for the id.
    tokenizer.add_special_tokens([AddedToken(name, normalized=True) for name in specials + names])
    return tokenizer


def to_sentencepiece(path: str | os.PathLike, pad: str, eos: str) -> bytes:
    """Returns the SentencePiece model of a unigram tokenizer.json: transformers 5 saves a T5's tokenizer without it.

    Pieces, scores and character map are those of the model that it was made from; sentinels at the end are left out.
    That text is cut into the same ids is for the caller to see.

    Args:
      path: of tokenizer.json.
      pad, eos: the pieces that pad and end a text.

    Raises:
      ValueError: it is not a unigram tokenizer.
    """
    content = json.loads(files.read_text(path))
    model = content["model"]
    if model.get("type") != "Unigram":
        raise ValueError(f"{path}: a tokenizer of type {model.get('type')}; only Unigram can be imported.")
    pieces = [(str(piece), float(score)) for piece, score in model["vocab"]]
    while pieces and sentinels.NAME.fullmatch(pieces[-1][0].removeprefix("▁")):
        pieces.pop()
    charsmap = _character_map(content.get("normalizer"))
    fallback = bool(model.get("byte_fallback"))
    result = ModelProto(
        trainer_spec=TrainerSpec(
            model_type=TrainerSpec.UNIGRAM,
            vocab_size=len(pieces),
            byte_fallback=fallback,
            unk_id=model["unk_id"],
            unk_piece=pieces[model["unk_id"]][0],
            bos_id=-1,
            pad_id=0,
            pad_piece=pad,
            eos_id=next(i for i, (piece, _) in enumerate(pieces) if piece == eos),
            eos_piece=eos,
        ),
        normalizer_spec=NormalizerSpec(name="nmt_nfkc" if charsmap else "identity", precompiled_charsmap=charsmap),
    )
    for i, (piece, score) in enumerate(pieces):
        kind = Piece.CONTROL if piece in (pad, eos) else Piece.UNKNOWN if i == model["unk_id"] else Piece.NORMAL
        if fallback and re.fullmatch("<0x[0-9A-F]{2}>", piece):
            kind = Piece.BYTE
        result.pieces.add(piece=piece, score=score, type=kind)
    return result.SerializeToString()


def _character_map(normalizer: Any) -> bytes:
    """Returns SentencePiece's map from a tokenizer.json's normalizer, which may be a sequence; b"" without one."""
    if not normalizer:
        return b""
    if normalizer["type"] == "Precompiled":
        return base64.b64decode(normalizer["precompiled_charsmap"], validate=True)
    return next(filter(None, map(_character_map, normalizer.get("normalizers", ()))), b"")


def _check(model: ModelProto, pieces: Sequence[Any]) -> None:
    spaces = model.normalizer_spec
    found = [
        f"the piece {piece.piece!r} is of a kind that T5's models do not have"
        for piece in pieces
        if piece.type in (Piece.USER_DEFINED, Piece.UNUSED)
    ][:1]
    if model.trainer_spec.model_type not in (TrainerSpec.UNIGRAM, TrainerSpec.BPE):
        found.append("it is neither unigram nor BPE")
    if spaces.name not in ("nmt_nfkc", "nmt_nfkc_cf"):
        found.append(f"its normalization is {spaces.name!r}, not nmt_nfkc or nmt_nfkc_cf")
    if model.trainer_spec.treat_whitespace_as_suffix or not (
        spaces.add_dummy_prefix and spaces.remove_extra_whitespaces and spaces.escape_whitespaces
    ):
        found.append("it treats spaces differently from T5's models")
    if found:
        raise ValueError(f"no tokenizer.json for this model: {'; '.join(found)}")


def _model(spec: TrainerSpec, pieces: Sequence[Any]) -> models.Model:
    if spec.model_type == TrainerSpec.UNIGRAM:
        # Here any piece may be found in text, even "<0x41>" of the byte fallback.
        scores = [piece.score if piece.type == Piece.NORMAL else _NEVER for piece in pieces]
        vocabulary = [(piece.piece, score) for piece, score in zip(pieces, scores, strict=True)]
        return models.Unigram(vocabulary, spec.unk_id, spec.byte_fallback)
    ids = {piece.piece: i for i, piece in enumerate(pieces)}
    merges = [  # the ids of BPE pieces are in the order of their merges
        (piece.piece[:cut], piece.piece[cut:])
        for piece in pieces
        if piece.type == Piece.NORMAL
        for cut in range(1, len(piece.piece))
        if piece.piece[:cut] in ids and piece.piece[cut:] in ids
    ]
    return models.BPE(
        ids,
        merges,
        unk_token=pieces[spec.unk_id].piece,
        fuse_unk=True,
        byte_fallback=spec.byte_fallback,
    )


def _normalization(spec: NormalizerSpec) -> list[normalizers.Normalizer]:
    """SentencePiece's character map, which Precompiled applies, but only to short sequences."""
    return [
        # Composes what the map composes: decomposed Hangul and kana, half-width kana. But it sorts
        # marks, which are seldom typed in its order in Hebrew and Arabic, so it must not see two.
        normalizers.Replace(Regex("(?<=\\p{M})(?=[\u0591-\u08ff&&\\p{M}])"), _CUT),
        normalizers.Replace("～", _TILDE),  # the one character that the map keeps from NFKC
        normalizers.NFKC(),
        normalizers.Replace(_TILDE, "～"),
        # Precompiled drops the mark of a short sequence whose letter it maps.
        normalizers.Replace(Regex("(?<=.)(?=[\\p{M}\u200d])"), _CUT),
        normalizers.Precompiled(spec.precompiled_charsmap),
    ]


def _spaces() -> list[normalizers.Normalizer]:
    """No space at either end, never two, and "▁" for each and before the first word."""
    return [
        normalizers.Replace(Regex(r"\A +"), ""),
        normalizers.Replace(Regex(r" {2,}"), " "),
        normalizers.Prepend("▁"),  # not to an empty text
        normalizers.Replace(" ", "▁"),
        normalizers.Replace(Regex(r"▁+\z"), ""),
    ]


def _names(specials: Sequence[str], sentinel_count: int, pieces: Sequence[str]) -> list[normalizers.Normalizer]:
    """Cuts the names of ids where a text only spells them: all but sentinels that begin a word.

    A text that is nothing but a name stays whole too: that is how `tokenizers` learns what an added
    token looks like.
    """
    text = "\n".join(pieces)
    cut = _cut(_SENTINEL, text)
    numbers = "|".join(map(str, range(sentinel_count)))
    rest = f"{_SENTINEL[cut:]}(?:{numbers})>"
    whole = "|".join(map(re.escape, specials))
    steps = [
        (rf"(?<!▁){_SENTINEL[:cut]}(?={rest})", _SENTINEL[:cut] + _CUT),
        (rf"▁(?={_SENTINEL[:cut]}{rest})", ""),
        (rf"\A▁(?=(?:{whole})\z)", ""),
    ]
    for name in specials:
        cut = _cut(name, text)
        head, tail = re.escape(name[:cut]), re.escape(name[cut:])
        steps.append((f"(?<=.){head}(?={tail})", name[:cut] + _CUT))
    return [normalizers.Replace(Regex(pattern), new) for pattern, new in steps]


def _cut(name: str, pieces: str) -> int:
    """Returns the last place where a name can be cut without cutting a piece that helps to spell it."""
    places = range(1, len(name))
    return max((i for i in places if name[i - 1 : i + 1] not in pieces), default=1)


# --- bytes -------------------------------------------------------------------------------------


def convert_bytes(extra_ids: int) -> Tokenizer:
    """Returns the tokenizer of `seqio.ByteVocabulary(extra_ids)`: its ids, then EOS; "<extra_id_0>" is the last id.

    It knows a sentinel by its name, which SeqIO itself spells in bytes. "</s>", "<pad>" and "<unk>" in a text are
    text, as for SeqIO, unless the text is nothing else. Bytes that are not UTF-8 are decoded to "�".
    """
    taken = 0 if extra_ids else sentinels.BYTES_NOT_IN_UTF8  # bytes whose ids are the sentinels'
    ids = {name: i for i, name in enumerate(_BYTES_SPECIALS)}
    ids |= {char: len(ids) + byte for byte, char in enumerate(_byte_chars()) if byte < 256 - taken}
    names = [sentinels.name(i) for i in reversed(range(extra_ids or taken))]
    ids |= {name: len(ids) + i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token="<unk>"))
    alternatives = "|".join(name[1:] for name in _BYTES_SPECIALS)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.ByteLevel(),  # a printable character for each byte, so that _CUT is free
            normalizers.Replace(Regex(f"(?<=.)<(?={alternatives})"), "<" + _CUT),
            normalizers.Replace(Regex(rf"\A<(?=(?:{alternatives}).)"), "<" + _CUT),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_CUT, "removed")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=True) for name in [*_BYTES_SPECIALS, *names]])
    return tokenizer


def _byte_chars() -> list[str]:
    """Returns `tokenizers`' character for each byte: its Latin-1 one, or if that is invisible, one from 256 on."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
