"""A SentencePiece model at a URL that TensorFlow cannot open, or not without a service of Google's."""

from __future__ import annotations

import seqio

from t5xpg.base import files


class StoredSentencePieceVocabulary(seqio.SentencePieceVocabulary):
    """seqio.SentencePieceVocabulary of a model at gs://, s3://, https:// or hf://, fetched when it is first needed.

    It equals seqio's own of the same name and settings, for SeqIO, T5X and t5xpg alike.
    """

    _model = None  # seqio's name for what it reads from the file

    def _model_context(self):
        if self._model is None:
            with files.local_copy(self.sentencepiece_model_file) as path:
                fetched = seqio.SentencePieceVocabulary(
                    path, self._extra_ids, self._normalizer_spec_overrides, self._reverse_extra_ids
                )
                self._model = fetched._model_context()
        return self._model
