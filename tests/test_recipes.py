"""Every recipe that ships parses, resolves every name, and fits its task, its vocabulary and T5X's model sizes."""

import jax
import pytest
import sentencepiece
from conftest import TESTS, program_settings

from t5x import eval as eval_program
from t5x import infer, train
from t5x.embedded import initialization, vocabulary_check
from t5xpg.vocabularies import training

CONFIGS = TESTS.parent / "configs"
RECIPES = sorted(path.name for path in CONFIGS.glob("*.gin"))
PROGRAMS = {
    "byt5_tiny_eval.gin": eval_program.evaluate,
    "roberta_tiny_eval.gin": eval_program.evaluate,
    "byt5_tiny_infer.gin": infer.infer,
}


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory) -> str:
    """A SentencePiece model trained as T5's are."""
    prefix = tmp_path_factory.mktemp("spm") / "t5"
    sentences = [f"the {a} {b} of {c}" for a in "abcdefgh" for b in ("keeper", "shore", "sea") for c in "xyzw"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_prefix=str(prefix),
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return f"{prefix}.model"


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory, corpus) -> str:
    folder = tmp_path_factory.mktemp("bpe") / "bpe"
    return str(training.train_byte_level_bpe(corpus.format(split="train"), folder, 300))


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_fits_together(recipe, sentencepiece_model, tokenizer_file, corpus):
    values = {"FILES": corpus, "VOCABULARY_FILE": sentencepiece_model, "TOKENIZER_FILE": tokenizer_file}
    needed = [f"{name} = {values.get(name, 'unused')!r}" for name in required_of(recipe)]
    needed.append(f"NAME = {recipe!r}")  # each registers its task under a name of its own
    settings = program_settings(PROGRAMS.get(recipe, train.train), CONFIGS / recipe, *needed)
    model = settings["model"]
    configs = [cfg for name, cfg in settings.items() if name.endswith("dataset_cfg") and cfg is not None]
    for cfg in configs:
        vocabulary_check.verify_matching_vocabs(cfg, model)
    assert model.module.config.vocab_size >= model.output_vocabulary.vocab_size
    shapes = batch_shapes(settings.get("train_dataset_cfg") or settings["dataset_cfg"])
    state = initialization.TrainStateInitializer(
        model.optimizer_def,
        model.get_initial_variables,
        shapes,
        settings["partitioner"],
        dict.fromkeys(shapes, jax.numpy.int32),
    ).global_train_state_shape
    loss, _ = jax.eval_shape(
        model.loss_fn,
        state.params,
        {name: jax.ShapeDtypeStruct(shape, jax.numpy.int32) for name, shape in shapes.items()},
        jax.random.PRNGKey(0),
    )
    assert loss.shape == ()


def required_of(recipe: str) -> set[str]:
    """The macros that a user must give: those that the recipe's first lines show, and of its files."""
    usage = "\n".join(line for line in (CONFIGS / recipe).read_text().splitlines() if line.startswith("#"))
    names = ("FILES", "VOCABULARY_FILE", "TOKENIZER_FILE", "MODEL_DIR", "INITIAL_CHECKPOINT_PATH", "CHECKPOINT_PATH")
    return {name for name in (*names, "EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR") if f" {name}=" in usage}


def batch_shapes(cfg) -> dict[str, tuple[int, int]]:
    lengths, rows = cfg.task_feature_lengths or {"inputs": 64, "targets": 16}, cfg.batch_size
    decoder = ("input_tokens", "target_tokens", "loss_weights", "positions", "segment_ids")
    encoder = ("input_tokens", "positions", "segment_ids")
    return {f"encoder_{name}": (rows, lengths["inputs"]) for name in encoder} | {
        f"decoder_{name}": (rows, lengths["targets"]) for name in decoder
    }


def test_the_reference_lists_every_recipe():
    listed = (TESTS.parent / "docs" / "reference" / "recipes.md").read_text()
    assert [recipe for recipe in RECIPES if f"configs/{recipe}" not in listed] == []
