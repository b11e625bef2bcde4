"""From an InteractiveModel in a notebook to a gin file for T5X's programs."""

from __future__ import annotations

import enum


class T5XScriptType(enum.Enum):
    FINETUNING = 1
    INFERENCE = 2
    EVALUATION = 3
    PRETRAINING = 4


def get_gin_config_from_interactive_model(
    interactive_model,
    script_type: T5XScriptType,
    task_name: str,
    partitioner_config_str: str,
    model_config_str: str,
    train_steps: int = 1,
    imports_str: str = "",
) -> str:
    """Returns a gin file that trains, evaluates or infers with T5X's programs as the model does here.

    Args:
      interactive_model: its folder, lengths, batch size and checkpoints are taken.
      script_type: INFERENCE makes a file for `infer`, the others one for `train`.
      task_name: a registered task.
      partitioner_config_str, model_config_str: gin that configures partitioner and model.
      train_steps: for training.
      imports_str: what those need: imports, and includes such as the model's.

    Raises:
      ValueError: INFERENCE without a checkpoint.
    """
    infers = script_type is T5XScriptType.INFERENCE
    restore, save = interactive_model._restore_checkpoint_cfg, interactive_model._save_checkpoint_cfg
    if infers and restore is None:
        raise ValueError("Inference needs a checkpoint; give InteractiveModel a checkpoint_path.")
    parts = [
        "from __gin__ import dynamic_registration",
        "from t5x import utils",
        "" if infers else "import __main__ as train_script",
        f"include 't5x/configs/runs/{'infer' if infers else 'pretrain'}.gin'",
        imports_str,
        f"MODEL_DIR = {interactive_model._output_dir!r}",
        f"MIXTURE_OR_TASK_NAME = {task_name!r}",
        f"TASK_FEATURE_LENGTHS = {dict(interactive_model._task_feature_lengths)!r}",
        f"USE_CACHED_TASKS = False\nSHUFFLE_TRAIN_EXAMPLES = False\nBATCH_SIZE = {interactive_model._batch_size}",
        model_config_str,
        partitioner_config_str,
    ]
    if restore is not None:
        parts.append(f"CHECKPOINT_PATH = {restore.path!r}\nutils.RestoreCheckpointConfig.path = %CHECKPOINT_PATH")
        parts.append(bindings("utils.RestoreCheckpointConfig", restore, "mode", "dtype"))
    if infers:
        parts.append(INFERENCE_GIN)
    else:
        parts.append(bindings("utils.SaveCheckpointConfig", save, "period", "dtype", "keep", "save_dataset"))
        parts.append(f"TRAIN_STEPS = {train_steps}\n{TRAINING_GIN}")
    if script_type is T5XScriptType.EVALUATION:
        parts.append(EVALUATION_GIN)
    return "\n".join(parts) + "\n"


def bindings(configurable: str, cfg, *names: str) -> str:
    return "\n".join(f"{configurable}.{name} = {getattr(cfg, name)!r}" for name in names)


INFERENCE_GIN = """INFER_OUTPUT_DIR = %MODEL_DIR
utils.DatasetConfig.use_cached = %USE_CACHED_TASKS
utils.DatasetConfig.batch_size = %BATCH_SIZE
utils.DatasetConfig.shuffle = False
utils.DatasetConfig.seed = 0
utils.DatasetConfig.pack = False"""
TRAINING_GIN = """DROPOUT_RATE = 0.0
train/utils.DatasetConfig.pack = False
train_eval/utils.DatasetConfig.pack = False"""
EVALUATION_GIN = """train_script.train.run_eval_before_training = True
train_script.train.eval_period = 0
train_script.train.total_steps = 0"""
