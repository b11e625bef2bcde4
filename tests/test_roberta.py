"""roberta.Roberta and its export against transformers' RobertaForMaskedLM with the same weights."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import traverse_util
from flax.linen import partitioning as flax_partitioning

from t5x import partitioning
from t5xpg import vocabularies
from t5xpg.hf import checkpoints, compare, roberta, tokenizer
from t5xpg.hf.to_hf import write_model
from t5xpg.roberta import Roberta, RobertaConfig
from t5xpg.vocabularies import training

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

CONFIG = RobertaConfig(vocab_size=300, emb_dim=32, num_heads=4, num_layers=2, mlp_dim=48, max_length=24)
TOKENS = np.random.default_rng(1).integers(1, 300, (3, 24), np.int32)
TOKENS[1, 17:] = TOKENS[2, 9:] = 0


@pytest.fixture(scope="module")
def params():
    """Random in every parameter, so that none is forgotten: fresh norms and biases are ones and zeros."""
    fresh = jax.jit(lambda key: Roberta(CONFIG).init(key, TOKENS, enable_dropout=False))(jax.random.PRNGKey(0))[
        "params"
    ]
    leaves, tree = jax.tree.flatten(fresh)
    keys = jax.random.split(jax.random.PRNGKey(1), len(leaves))
    drawn = [x + 0.2 * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, drawn)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, params, corpus):
    folder = tmp_path_factory.mktemp("hf") / "model"
    folder.mkdir()
    file = training.train_byte_level_bpe(corpus.format(split="train"), folder.with_name("bpe"), 300)
    vocabulary = vocabularies.byte_level_bpe(str(file))
    trained = checkpoints.Trained(Roberta(CONFIG), vocabulary, traverse_util.flatten_dict(params, sep="/"), 0, "")
    write_model(folder, *roberta.convert(trained, tokenizer.write(trained, folder)))
    return folder


def logits_of(params, tokens, **packed):
    apply = jax.jit(lambda p: Roberta(CONFIG).apply({"params": p}, tokens, **packed, enable_dropout=False))
    return np.asarray(apply(params))


def theirs(folder, tokens, mask=None):
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(
        folder, local_files_only=True, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    mask = torch.tensor(tokens != 0) if mask is None else mask
    with torch.no_grad():
        return model.eval()(torch.tensor(tokens).long(), attention_mask=mask).logits.numpy()


def test_logits_are_those_of_transformers(params, exported):
    ours, expected = logits_of(params, TOKENS), theirs(exported, TOKENS)
    real = TOKENS != 0
    np.testing.assert_allclose(ours[real], expected[real], atol=1e-4)
    assert np.abs(expected[real]).mean() > 0.5, "logits worth comparing"
    assert compare.compare(exported, Roberta(CONFIG), traverse_util.flatten_dict(params, sep="/"))["logits"] < 1e-4


def test_a_wrong_weight_is_noticed(params, exported):
    wrong = traverse_util.flatten_dict(params, sep="/")
    wrong["layers_1/attention/value/bias"] = wrong["layers_1/attention/value/bias"] + 0.01
    with pytest.raises(ValueError, match="differ"):
        compare.compare(exported, Roberta(CONFIG), wrong)


def test_the_bound_grows_with_the_logits_as_t5s_does(params, exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "large")
    large = traverse_util.flatten_dict(params, sep="/")
    large["head_norm/scale"] = large["head_norm/scale"] * 3000
    tensors = roberta.to_hf(traverse_util.unflatten_dict(large, sep="/"))
    write_model(folder, tensors, json.loads((folder / "config.json").read_text()))
    found = compare.compare(folder, Roberta(CONFIG), large)
    assert found["largest_logit"] > 1e3 and found["logits"] <= 1e-4 * found["largest_logit"]
    large["head_norm/scale"] = large["head_norm/scale"] * 1.01
    with pytest.raises(ValueError, match="The two models differ: logits by .* Nothing was written"):
        compare.compare(folder, Roberta(CONFIG), large)


def test_packed_rows_are_rows_of_their_own(params, exported):
    lengths = (9, 11, 3)
    parts = [TOKENS[i : i + 1, :n] for i, n in enumerate((9, 11, 3))]
    pad = np.zeros((1, 1), np.int32)
    segments = np.repeat([[1, 2, 3, 0]], [*lengths, 1], axis=1).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in (*lengths, 1)])[None].astype(np.int32)
    packed = logits_of(
        params, np.concatenate([*parts, pad], 1), encoder_positions=positions, encoder_segment_ids=segments
    )
    start = 0
    for part in parts:
        end = start + part.shape[1]
        np.testing.assert_allclose(packed[:, start:end], theirs(exported, part), atol=1e-4)
        start = end


def test_roberta_base_is_the_default():
    shapes = jax.eval_shape(lambda: Roberta(RobertaConfig()).init(jax.random.PRNGKey(0), TOKENS, enable_dropout=False))
    ours = sum(x.size for x in jax.tree.leaves(shapes["params"]))
    base = transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
    with torch.device("meta"):
        model = transformers.RobertaForMaskedLM(base)
    expected = sum(x.numel() for x in model.parameters())
    assert expected == 124_697_433
    assert ours == expected - (2 + 1) * 768, "the rows before the first position, and the token type"
    assert RobertaConfig().layer_norm_epsilon == 1e-5


@pytest.mark.parametrize("dims", [(1, 1), (2, 2)])
def test_every_parameter_has_its_place_on_a_mesh(dims):
    config = RobertaConfig(num_layers=1)
    shapes = jax.eval_shape(lambda: Roberta(config).init(jax.random.PRNGKey(0), TOKENS, enable_dropout=False))
    axes = traverse_util.flatten_dict(shapes["params_axes"], sep="/")
    params = traverse_util.flatten_dict(shapes["params"], sep="/")
    assert {name.removesuffix("_axes") for name in axes} == params.keys()
    rules = partitioning.standard_logical_axis_rules(*dims)
    specs = {
        name.removesuffix("_axes"): tuple(flax_partitioning.logical_to_mesh_axes(x.names, rules))
        for name, x in axes.items()
    }
    embed = None if dims == (1, 1) else "data"
    assert specs["token_embedding"] == ("model", embed)
    assert specs["layers_0/attention/query/kernel"] == specs["layers_0/wi/kernel"] == (embed, "model")
    assert specs["layers_0/attention/out/kernel"] == specs["layers_0/wo/kernel"] == ("model", embed)
    assert specs["logits_bias"] == specs["layers_0/attention/key/bias"] == ("model",)
    for name, spec in specs.items():
        assert len(spec) == params[name].ndim, name


def test_dropout_needs_its_key_and_only_then_draws(params):
    @jax.jit
    def dropped(key):
        module = Roberta(CONFIG.replace(num_layers=1))
        return module.apply({"params": params}, TOKENS, enable_dropout=True, rngs={"dropout": key})

    first, again, second = (dropped(jax.random.PRNGKey(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, second)


def test_bfloat16_computes_near_float32_and_gives_float32(params):
    module = Roberta(CONFIG.replace(dtype=jnp.bfloat16))
    low = jax.jit(lambda p: module.apply({"params": p}, TOKENS, enable_dropout=False))(params)
    assert low.dtype == jnp.float32
    assert np.corrcoef(np.ravel(low[0]), np.ravel(logits_of(params, TOKENS)[0]))[0, 1] > 0.99


def test_rows_beyond_the_positions_are_refused():
    with pytest.raises(
        ValueError, match="25 tokens, but 24 positions: shorten the text, or train with a larger RobertaConfig"
    ):
        Roberta(CONFIG).init(jax.random.PRNGKey(0), jnp.ones((1, 25), jnp.int32), enable_dropout=False)
