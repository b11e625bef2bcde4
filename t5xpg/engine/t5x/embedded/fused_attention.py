"""T5's attention in one kernel of a TPU, forward and backward, that keeps no [batch, heads, q_len, k_len] of weights.

A row of logits for T5's lengths fits on the chip, so each program of a kernel has whole rows, for a block of queries of
one example, and the softmax needs no second pass; the backward kernel computes the weights again. Heads of 64 go in
pairs, as projections make [batch, length, heads * head_dim] and a TPU reads 128 numbers at a time. The position bias
belongs to all examples: its gradient is summed over the batch on the chip. On a GPU, the kernel is cuDNN's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from t5x.embedded import platforms
from t5x.embedded.masks import MASKED, add_mask

LANES = 128  # numbers that a TPU reads at once
MEMORY = 16 * 2**20  # bytes that a program may have on the chip
ROWS = 32  # the blocks of queries are multiples of it: the mask's bytes are stored in rows of 32


def fused_attention(query, key, value, bias=None, mask=None) -> jax.Array:
    """softmax(query · key + bias) · value where the mask is not 0, with logits and softmax in float32.

    What a query gets that sees nothing, as those of padding, has no meaning, and may differ between platforms.
    Batch and heads are divided over the chips of the mesh in force, by the logical axis rules in force. Where these
    are neither TPUs nor GPUs the kernels are interpreted, which is slow and for tests.

    Args:
      query: [batch, q_len, heads, head_dim].
      key, value: [batch, heads, head_dim, k_len], of the query's dtype.
      bias: float32 [1, heads, q_len, k_len]; its gradient is computed too.
      mask: broadcastable to [batch, 1, q_len, k_len].

    Returns:
      [batch, q_len, heads, head_dim] in the dtype of the value.
    """
    key, value = (jnp.transpose(x, (0, 3, 1, 2)) for x in (key, value))
    if platforms.of_this_trace() == "gpu":
        return _attend_by_cudnn(query, key, value, bias, mask)
    arguments = {"query": query, "key": key, "value": value}
    if bias is not None:
        arguments["bias"] = bias[0].astype(jnp.float32)
    if mask is not None:
        shape = (query.shape[0], 1, query.shape[1], key.shape[1])
        arguments["mask"] = jnp.broadcast_to(mask, shape)[:, 0].astype(jnp.int8)
    attend = functools.partial(_attend, platforms.of_this_trace() != "tpu")
    mesh = platforms.mesh_of_this_trace()
    if not mesh.empty:
        batch, heads = (platforms.axes(name) for name in ("batch", "heads"))
        specs = dict.fromkeys(arguments, PartitionSpec(batch, None, heads))
        specs |= {"bias": PartitionSpec(heads), "mask": PartitionSpec(batch)}
        inputs = {name: specs[name] for name in arguments}
        attend = jax.shard_map(attend, mesh=mesh, in_specs=(inputs,), out_specs=specs["query"], check_vma=False)
    return attend(arguments)


def is_possible(query, key, bias=None, mask=None) -> bool:
    """Whether the kernels are for this, arguments of `fused_attention` by shape, and for what it is traced for.

    A TPU's are not for single queries, for a bias of each example or a mask of each head, where the mesh does not
    divide batch and heads, and where no block of queries fits on the chip. A GPU's need bfloat16 and even lengths.
    """
    batch, q_len, heads, head_dim = query.shape
    if platforms.of_this_trace() == "gpu":
        lengths = q_len % 2 == key.shape[-1] % 2 == 0
        return query.dtype == jnp.bfloat16 and lengths and head_dim % 8 == 0 and head_dim <= 128
    if platforms.of_this_trace() != "tpu" or q_len == 1:
        return False
    of_all_examples = bias is None or bias.shape == (1, heads, q_len, key.shape[-1])
    of_all_heads = mask is None or mask.shape[1] == 1
    if not (of_all_examples and of_all_heads):
        return False
    ways = {name: platforms.ways(name) for name in ("batch", "heads")}
    if batch % ways["batch"] or heads % ways["heads"]:
        return False
    return _block(q_len, key.shape[-1], heads // ways["heads"], head_dim) > 0


def _attend_by_cudnn(query, key, value, bias, mask) -> jax.Array:
    """As `fused_attention`, with key and value [batch, k_len, heads, head_dim], all of bfloat16, as the bias is then.

    Compiled for an H100, a step of T5 1.1 base (bfloat16, 512/114, batch 32) has 9.47 GB of temporary memory and
    accesses 84 GB with it; 15.48 and 131 without, of which each layer's weights are most.
    """
    if mask is not None:
        mask = mask.astype(jnp.bool_)
        # Of each row of logits cuDNN keeps max + log(sum) in float32, which next to MASKED has no room for log(k_len):
        # where a query saw nothing, gradients were k_len times too large.
        mask |= ~jnp.any(mask, axis=-1, keepdims=True)
    bias = add_mask(mask, bias)  # JAX's own mask is no part of the bias, which T5's is in its gradient
    if bias is not None:
        bias = jnp.broadcast_to(bias.astype(query.dtype), (*bias.shape[:2], query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(query, key, value, bias, scale=1.0, implementation="cudnn")


def _block(q_len: int, k_len: int, heads: int, head_dim: int) -> int:
    """Returns how many queries a program has: all, or a divisor of them; the most that its memory holds, or 0.

    What a program needs was found by compiling for a v5e: bias, its gradient and the mask are there twice, to be read
    or written while another block is worked on, and so are keys, values and their gradients.
    """
    group = _group(heads, head_dim)
    free = MEMORY - 24 * k_len * group * head_dim
    most = free // ((16 * group + 20) * k_len)
    return max((n for n in (q_len, *range(ROWS, q_len, ROWS)) if q_len % n == 0 and n <= most), default=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(interpret: bool, arguments: dict[str, jax.Array]) -> jax.Array:
    query, value = arguments["query"], arguments["value"]
    outputs = {"output": jax.ShapeDtypeStruct(query.shape, value.dtype)}
    return _call(_forward_kernel, arguments, outputs, 2, interpret)["output"]


def _forward(interpret: bool, arguments):
    return _attend(interpret, arguments), arguments


def _backward(interpret: bool, arguments, gradient):
    query, key = arguments["query"], arguments["key"]
    blocks = query.shape[1] // _block(query.shape[1], *key.shape[1:])
    outputs = {"d_query": jax.ShapeDtypeStruct(query.shape, query.dtype)}
    for name in ("d_key", "d_value"):  # of each block of queries
        outputs[name] = jax.ShapeDtypeStruct((blocks, *key.shape), key.dtype if blocks == 1 else jnp.float32)
    if "bias" in arguments:
        outputs["d_bias"] = jax.ShapeDtypeStruct(arguments["bias"].shape, jnp.float32)
    found = _call(_backward_kernel, {**arguments, "gradient": gradient}, outputs, 5, interpret)
    for name in ("d_key", "d_value"):
        found[name] = jnp.sum(found[name], axis=0).astype(key.dtype)
    return ({name: found.get(f"d_{name}") for name in arguments},)


_attend.defvjp(_forward, _backward)


def _call(
    kernel: Callable, inputs: dict[str, jax.Array], outputs: dict[str, jax.ShapeDtypeStruct], products: int, interpret
) -> dict[str, jax.Array]:
    """Runs a kernel over (groups of heads, blocks of queries, batch); heads and head_dim are one axis in it.

    Args:
      kernel: called with {name: block in memory} of all inputs and outputs, and with head_dim.
      products: how many products of the size q_len × k_len × head_dim it makes.
    """
    batch, q_len, heads, head_dim = inputs["query"].shape
    k_len = inputs["key"].shape[1]
    rows, group = _block(q_len, k_len, heads, head_dim), _group(heads, head_dim)
    width = group * head_dim
    of_queries = pl.BlockSpec((1, rows, width), lambda g, i, b: (b, i, g))
    of_keys = pl.BlockSpec((1, k_len, width), lambda g, i, b: (b, 0, g))
    of_keys_by_block = pl.BlockSpec((1, 1, k_len, width), lambda g, i, b: (i, b, 0, g))
    of_bias = pl.BlockSpec((group, rows, k_len), lambda g, i, b: (g, i, 0))
    specs = dict.fromkeys(("query", "output", "gradient", "d_query"), of_queries)
    specs |= dict.fromkeys(("key", "value"), of_keys) | dict.fromkeys(("d_key", "d_value"), of_keys_by_block)
    specs |= dict.fromkeys(("bias", "d_bias"), of_bias)
    specs["mask"] = pl.BlockSpec((1, rows, k_len), lambda g, i, b: (b, i, 0))

    joined = {name: x if name in ("bias", "mask") else _join(x) for name, x in inputs.items()}
    shapes = {name: x if name == "d_bias" else jax.eval_shape(_join, x) for name, x in outputs.items()}
    again = {"key": q_len // rows, "value": q_len // rows, "mask": heads // group}  # how often they are read
    accessed = {name: math.prod(x.shape) * x.dtype.itemsize for name, x in {**joined, **shapes}.items()}
    found = pl.pallas_call(
        lambda *refs: kernel(dict(zip((*inputs, *outputs), refs, strict=True)), head_dim),
        grid=(heads // group, q_len // rows, batch),
        in_specs=[specs[name] for name in inputs],
        out_specs=[specs[name] for name in outputs],
        out_shape=list(shapes.values()),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * batch * heads * q_len * k_len * head_dim,
            transcendentals=batch * heads * q_len * k_len,
            bytes_accessed=sum(size * again.get(name, 1) for name, size in accessed.items()),
        ),
        interpret=interpret,
    )(*joined.values())
    return {name: x.reshape(outputs[name].shape) for name, x in zip(outputs, found, strict=True)}


def _group(heads: int, head_dim: int) -> int:
    """Returns the fewest heads whose features fill whole lanes; all of them where no such number divides them."""
    return next((n for n in range(1, heads) if heads % n == 0 and n * head_dim % LANES == 0), heads)


def _join(x: jax.Array) -> jax.Array:
    """[..., heads, head_dim] -> [..., heads * head_dim]."""
    return x.reshape(*x.shape[:-2], -1)


def _forward_kernel(refs, head_dim: int) -> None:
    for head, lanes in _heads(refs, head_dim):
        value = refs["value"][0, :, lanes]
        weights = _weights(refs, head, lanes).astype(value.dtype)
        refs["output"][0, :, lanes] = _product(weights, value, 1, 0).astype(value.dtype)


def _backward_kernel(refs, head_dim: int) -> None:
    if "d_bias" in refs:

        @pl.when(pl.program_id(2) == 0)
        def _start_sum():
            refs["d_bias"][...] = jnp.zeros_like(refs["d_bias"])

    for head, lanes in _heads(refs, head_dim):
        query, key, value, gradient = (refs[name][0, :, lanes] for name in ("query", "key", "value", "gradient"))
        weights = _weights(refs, head, lanes)
        d_weights = _product(gradient, value, 1, 1)
        d_logits = weights * (d_weights - jnp.sum(weights * d_weights, axis=-1, keepdims=True))
        if "d_bias" in refs:
            refs["d_bias"][head] += d_logits
        d_logits = d_logits.astype(query.dtype)
        for name, found in (
            ("d_query", _product(d_logits, key, 1, 0)[None]),
            ("d_key", _product(d_logits, query, 0, 0)[None, None]),
            ("d_value", _product(weights.astype(gradient.dtype), gradient, 0, 0)[None, None]),
        ):
            refs[name][..., lanes] = found.astype(refs[name].dtype)


def _heads(refs, head_dim: int) -> Sequence[tuple[int, slice]]:
    """Returns (number, where its features are) of each head in a block."""
    return [(i, slice(i * head_dim, (i + 1) * head_dim)) for i in range(refs["query"].shape[-1] // head_dim)]


def _weights(refs, head: int, lanes: slice) -> jax.Array:
    """Returns the attention weights of one head, float32 [queries of the block, k_len]."""
    logits = _product(refs["query"][0, :, lanes], refs["key"][0, :, lanes], 1, 1)
    if "bias" in refs:
        logits += refs["bias"][head]
    if "mask" in refs:
        logits += jnp.where(refs["mask"][0].astype(jnp.int32) != 0, jnp.float32(0), jnp.float32(MASKED))
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def _product(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    """Multiplies two matrices over an axis of each; returns float32."""
    return lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=jnp.float32)
