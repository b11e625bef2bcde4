"""To Hugging Face and back: a folder that `transformers` loads from a checkpoint, a checkpoint from such a folder.

T5 goes both ways, RoBERTa out. Both end by running the two models on the same tokens (`compare`): they have to agree,
or nothing is written. Only safetensors files are read and written, never pickled ones; only `push` uses
the network. The two directions are in `to_hf` and `from_hf`; `t5` and `roberta` name tensors and settings, `tokenizer`
has the tokenizers, `checkpoints` T5X's side, `card` the README.md.
"""

from t5xpg.hf.from_hf import import_model
from t5xpg.hf.to_hf import export_model, push

__all__ = ["export_model", "import_model", "push"]
