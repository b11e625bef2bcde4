"""Every model gin file: it parses, instantiates, and has the published number of parameters."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import gin
import jax
import jax.numpy as jnp
import pytest

from t5x import examples

GIN_FOLDER = Path(next(iter(examples.__path__)))
# emb_dim, heads, head_dim, encoder layers, decoder layers, mlp_dim
T5_1_1 = {
    "small": (512, 6, 64, 8, 8, 1024),
    "base": (768, 12, 64, 12, 12, 2048),
    "large": (1024, 16, 64, 24, 24, 2816),
    "xl": (2048, 32, 64, 24, 24, 5120),
    "xxl": (4096, 64, 64, 24, 24, 10240),
}
SIZES = {
    "t5/t5_1_0": {
        "small": (512, 8, 64, 6, 6, 2048),
        "base": (768, 12, 64, 12, 12, 3072),
        "large": (1024, 16, 64, 24, 24, 4096),
        "3B": (1024, 32, 128, 24, 24, 16384),
        "11B": (1024, 128, 128, 24, 24, 65536),
    },
    "t5/t5_1_1": {"tiny": (8, 4, 3, 2, 2, 16)} | T5_1_1,
    "t5/mt5": T5_1_1,
    "t5/byt5": {
        "small": (1472, 6, 64, 12, 4, 3584),
        "base": (1536, 12, 64, 18, 6, 3968),
        "large": (1536, 16, 64, 36, 12, 3840),
        "xl": (2560, 32, 64, 36, 12, 6720),
        "xxl": (4672, 64, 64, 36, 12, 12352),
    },
    "decoder_only/models": {
        size: (emb, heads, head_dim, 0, layers, mlp)
        for size, (emb, heads, head_dim, _, layers, mlp) in T5_1_1.items()
        if size != "small"
    },
    "scalable_t5/t5_1_1": T5_1_1,
    "scalable_t5/mt5": T5_1_1,
    "scalable_t5/umt5": T5_1_1,
}
# Parameters: integers as counted in the released checkpoints, and from "decoder_only" on by T5X; floats as rounded in
# the papers.
PUBLISHED = {
    "t5/t5_1_0": {
        "small": 60_506_624, "base": 222_903_552, "large": 737_668_096, "3B": 2_851_598_336, "11B": 11_307_321_344,
    },
    "t5/t5_1_1": {
        "small": 76_961_152, "base": 247_577_856, "large": 783_150_080, "xl": 2_849_757_184, "xxl": 11_135_332_352,
    },
    "t5/mt5": {"small": 300_176_768, "base": 582_401_280, "large": 1_229_581_312, "xl": 3.7e9, "xxl": 13e9},
    "t5/byt5": {"small": 299_637_760, "base": 582e6, "large": 1.23e9, "xl": 3.74e9, "xxl": 12.9e9},
    "decoder_only/models": {
        "base": 109_628_544, "large": 341_231_104, "xl": 1_223_527_424, "xxl": 4_762_310_656,
    },
    "scalable_t5/t5_1_1": {
        "small": 76_963_840, "base": 247_586_304, "large": 783_173_632, "xl": 2_849_804_288, "xxl": 11_135_426_560,
    },
    "scalable_t5/mt5": {
        "small": 300_179_456, "base": 582_409_728, "large": 1_229_604_864, "xl": 3_742_666_752, "xxl": 12_921_151_488,
    },
    "scalable_t5/umt5": {
        "small": 306_601_984, "base": 592_043_520, "large": 1_242_449_920, "xl": 3_768_356_864, "xxl": 12_972_531_712,
    },
}  # fmt: skip
# vocabulary size, activations, whether the embedding is the output projection
FAMILIES = {
    "t5/t5_1_0": (32128, ("relu",), True),
    "t5/t5_1_1": (32128, ("gelu", "linear"), False),
    "t5/mt5": (250112, ("gelu", "linear"), False),
    "t5/byt5": (384, ("gelu", "linear"), False),
    "decoder_only/models": (32128, ("gelu", "linear"), True),
    "scalable_t5/t5_1_1": (32128, ("gelu", "linear"), False),
    "scalable_t5/mt5": (250112, ("gelu", "linear"), False),
    "scalable_t5/umt5": (256384, ("gelu", "linear"), False),
}
MODEL_CLASSES = {"decoder_only/models": "DecoderOnlyModel"}  # the others are EncoderDecoderModel
UMT5 = ("architectures/encoder_decoder", "vocab")  # included after a size of mT5
MODELS = [(family, size) for family, sizes in SIZES.items() for size in sizes]


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def parse(family: str, size: str, *bindings: str) -> None:
    files = [f"{family}/{size}"]
    if "umt5" in family:
        files = [f"scalable_t5/mt5/{size}", *(f"{family}/{name}" for name in UMT5)]
    gin.parse_config_files_and_bindings([f"t5x/examples/{name}.gin" for name in files], list(bindings))


def instantiate(macro_or_parameter: str):
    return gin.query_parameter(macro_or_parameter).scoped_configurable_fn()


def is_decoder_only(module) -> bool:
    return type(module).__name__ == "DecoderWrapper"


@functools.cache
def parameter_count(module) -> int:
    """Counts parameters from shapes alone."""
    tokens = jnp.ones((1, 8), jnp.int32)
    init = functools.partial(module.init, enable_dropout=False)
    arguments = (tokens, tokens) if is_decoder_only(module) else (tokens, tokens, tokens)
    params = jax.eval_shape(init, jax.random.PRNGKey(0), *arguments)["params"]
    return sum(x.size for x in jax.tree.leaves(params))


def expected_count(family: str, size: str) -> int:
    emb, heads, head_dim, encoder_layers, decoder_layers, mlp = SIZES[family][size]
    vocab, activations, tied = FAMILIES[family]
    attention, feed_forward, norm = 4 * emb * heads * head_dim, (len(activations) + 1) * emb * mlp, emb
    biases = 32 * heads
    scanned = family.startswith("scalable_t5")  # there every layer has biases of its own
    decoder_layer = attention + feed_forward + 2 * norm
    if encoder_layers == 0:
        return decoder_layers * decoder_layer + norm + biases + vocab * emb
    encoder = encoder_layers * (attention + feed_forward + 2 * norm) + norm
    encoder += biases * (encoder_layers if scanned else 1)
    decoder = decoder_layers * (decoder_layer + attention + norm) + norm + biases * (decoder_layers if scanned else 1)
    return encoder + decoder + vocab * emb * (1 if tied else 2)


@pytest.mark.parametrize("family, size", MODELS)
def test_size(family, size):
    parse(family, size, "DROPOUT_RATE = 0.25")
    module = instantiate(f"models.{MODEL_CLASSES.get(family, 'EncoderDecoderModel')}.module")
    cfg = module.config
    layers = (0, cfg.num_layers) if is_decoder_only(module) else (cfg.num_encoder_layers, cfg.num_decoder_layers)
    assert (cfg.emb_dim, cfg.num_heads, cfg.head_dim, *layers, cfg.mlp_dim) == SIZES[family][size]
    assert (cfg.vocab_size, tuple(cfg.mlp_activations), cfg.logits_via_embedding) == FAMILIES[family]
    assert (cfg.dtype, cfg.dropout_rate, cfg.float32_attention_logits) == ("bfloat16", 0.25, False)
    if family.startswith("scalable_t5"):
        assert (cfg.scan_layers, cfg.param_scan_axis, cfg.remat_policy) == (True, 1, "minimal")

    count = parameter_count(module)
    assert count == expected_count(family, size)
    if size in PUBLISHED[family]:
        published = PUBLISHED[family][size]
        assert count == published if isinstance(published, int) else abs(count / published - 1) < 0.015


@pytest.mark.parametrize("family", FAMILIES)
def test_every_file_is_listed_here(family):
    files = {path.stem for path in (GIN_FOLDER / family).glob("*.gin")}
    listed = {"vocab", "tydiqa_base", *(f"pretrain_{size}" for size in SIZES[family])}
    listed = listed if "umt5" in family else set(SIZES[family])
    assert files == listed | ({"tiny"} if family.startswith("t5/") else set())


def recipe_files() -> list[str]:
    """The recipes among the example files: those that bind a program."""
    found = sorted(str(path.relative_to(GIN_FOLDER)) for path in GIN_FOLDER.rglob("*.gin"))
    return [name for name in found if "/examples/" in name or re.search(r"umt5/(pretrain|tydiqa)|tiny", name)]


@pytest.mark.parametrize("name", recipe_files())
def test_every_example_parses_and_binds_what_there_is(name, monkeypatch):
    import __main__
    from t5x import eval as eval_program
    from t5x import infer, train

    for function in (train.train, eval_program.evaluate, infer.infer):
        monkeypatch.setattr(__main__, function.__name__, function, raising=False)
    recipe = f"t5x/examples/{name}"
    # local_tiny.gin follows a recipe that it makes small
    scalable = "scalable_t5/t5_1_1" if "scalable" in name else "t5/t5_1_1"
    before = [f"t5x/examples/{scalable}/base.gin", "t5x/configs/runs/pretrain.gin"] if "local_tiny" in name else []
    gin.parse_config_files_and_bindings([*before, recipe], ["DROPOUT_RATE = 0.0"], finalize_config=False)
    model = instantiate("%MODEL")
    assert model.FEATURE_CONVERTER_CLS
    if "tiny" in name:
        assert (model.module.config.emb_dim, model.module.config.num_decoder_layers) == (8, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_model_with_its_vocabulary_optimizer_and_loss(family):
    parse(family, "large", "DROPOUT_RATE = 0.1", "Z_LOSS = 0.01", "LOSS_NORMALIZING_FACTOR = 512")
    model = instantiate("%MODEL")  # reads no vocabulary file: those of SentencePiece are read when first used
    assert type(model).__name__ == MODEL_CLASSES.get(family, "EncoderDecoderModel")
    expected = "ByteVocabulary" if family == "t5/byt5" else "SentencePieceVocabulary"
    assert type(model.input_vocabulary).__name__ == type(model.output_vocabulary).__name__ == expected
    assert gin.query_parameter("%Z_LOSS") == 0.01
    assert gin.query_parameter("%LABEL_SMOOTHING") == 0.0
    assert gin.query_parameter("%LOSS_NORMALIZING_FACTOR") == 512
    assert type(instantiate("%OPTIMIZER")).__name__ == "Adafactor"


def test_vocabulary_files():
    names = dict.fromkeys(("t5/t5_1_0", "t5/t5_1_1", "decoder_only/models", "scalable_t5/t5_1_1"), "cc_all.32000")
    names |= dict.fromkeys(("t5/mt5", "scalable_t5/mt5"), "mc4.250000")
    for family, name in names.items():
        gin.clear_config()
        parse(family, "large", "DROPOUT_RATE = 0.1")
        path = gin.query_parameter("seqio.SentencePieceVocabulary.sentencepiece_model_file")
        assert path == f"gs://t5-data/vocabs/{name}.100extra/sentencepiece.model"


def test_umt5_has_a_vocabulary_and_optimizers_of_its_own():
    def parse_with(optimizer):
        gin.clear_config()
        include = f"include 't5x/examples/scalable_t5/umt5/optimizer/{optimizer}.gin'"
        parse("scalable_t5/umt5", "xxl", "DROPOUT_RATE = 0.0", include)
        return instantiate("%OPTIMIZER")

    assert parse_with("adafactor").hyper_params.beta1 is None
    optimizer = parse_with("adafactor_momentum_nofactor").hyper_params
    assert (optimizer.beta1, optimizer.factored, optimizer.global_norm_clip_threshold) == (0.9, False, 1.0)
    path = gin.query_parameter("seqio.SentencePieceVocabulary.sentencepiece_model_file")
    assert path == "gs://t5-data/vocabs/umt5.256000/sentencepiece.model"
    assert gin.query_parameter("seqio.SentencePieceVocabulary.extra_ids") == 300


def test_families_do_not_mix():
    for family in ("scalable_t5/mt5", "t5/mt5", "scalable_t5/mt5"):
        gin.clear_config()
        parse(family, "xl", "DROPOUT_RATE = 0.0")
        module = instantiate("models.EncoderDecoderModel.module")
        assert type(module).__module__ == f"t5x.examples.{family.split('/')[0]}.network"


def test_dropout_rate_is_required():
    with pytest.raises(ValueError, match="DROPOUT_RATE"):
        parse("t5/byt5", "base")
