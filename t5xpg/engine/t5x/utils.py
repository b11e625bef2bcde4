"""T5X's names for what gin files bind as `utils.…`; each lives in a module of its own."""

from seqio import TensorBoardLogger

from t5x.checkpoints import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from t5x.embedded.datasets import DatasetConfig, get_dataset, get_training_eval_datasets
from t5x.embedded.inference import get_infer_fn
from t5x.embedded.initialization import TrainStateInitializer
from t5x.embedded.learning_rates import create_learning_rate_scheduler
from t5x.embedded.restoring import create_checkpoint_manager_and_restore
from t5x.embedded.vocabulary_check import get_vocabulary, verify_matching_vocabs

__all__ = [
    "CheckpointConfig",
    "DatasetConfig",
    "RestoreCheckpointConfig",
    "SaveCheckpointConfig",
    "TensorBoardLogger",
    "TrainStateInitializer",
    "create_checkpoint_manager_and_restore",
    "create_learning_rate_scheduler",
    "get_dataset",
    "get_infer_fn",
    "get_training_eval_datasets",
    "get_vocabulary",
    "round_vocab_size_to_multiple",
    "verify_matching_vocabs",
]


def round_vocab_size_to_multiple(vocabulary, divisor: int = 128) -> int:
    """Returns the vocabulary's size rounded up to a multiple that suits the hardware."""
    size = vocabulary.vocab_size
    return size + -size % divisor
