"""What a compiled program does, counted in XLA's text: of a CPU's programs, and of lines of a TPU's and a GPU's."""

import jax
import jax.numpy as jnp
import pytest

from t5xpg.inspection.compiled import Program

# Lines of programs compiled for v5e:2x2 and v5e:2x4, shortened; a loop of 4 turns, with collectives in and around it.
TPU_PROGRAM = """\
HloModule jit_train_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%all-reduce-scatter (input: f32[4,64]) -> (f32[2,64], f32[2,64]) {
  %input = f32[4,64]{1,0:T(4,128)} parameter(0)
  %all-reduce.1 = (f32[4,64]{1,0:T(4,128)}, f32[4,64]{1,0:T(4,128)}) all-reduce(%input, %input), channel_id=9, \
replica_groups={{0,1},{2,3}}, to_apply=%add
  %zero = s32[] constant(0)
  %first = f32[4,64]{1,0:T(4,128)} get-tuple-element(%all-reduce.1), index=0
  %mine = f32[2,64]{1,0:T(2,128)} dynamic-slice(%first, %zero, %zero), dynamic_slice_sizes={2,64}
  %second = f32[4,64]{1,0:T(4,128)} get-tuple-element(%all-reduce.1), index=1
  %mine.1 = f32[2,64]{1,0:T(2,128)} dynamic-slice(%second, %zero, %zero), dynamic_slice_sizes={2,64}
  ROOT %both = (f32[2,64]{1,0:T(2,128)}, f32[2,64]{1,0:T(2,128)}) tuple(%mine, %mine.1)
}

%slice_of_layers (layers: bf16[4,256,256], turn: s32[]) -> bf16[1,256,256] {
  %layers = bf16[4,256,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  %turn = s32[]{:T(128)} parameter(1)
  %none = s32[]{:T(128)} constant(0)
  ROOT %one = bf16[1,256,256]{2,1,0:T(8,128)(2,1)} dynamic-slice(%layers, %turn, /*index=2*/%none, %none), \
dynamic_slice_sizes={1,256,256}
}

%body (state: (s32[], bf16[8,114,256], bf16[4,256,256])) -> (s32[], bf16[8,114,256], bf16[4,256,256]) {
  %state = (s32[]{:T(128)}, bf16[8,114,256]{2,1,0:T(8,128)(2,1)S(1)}, bf16[4,256,256]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %turns = s32[]{:T(128)} get-tuple-element(%state), index=0
  %hidden = bf16[8,114,256]{2,1,0:T(8,128)(2,1)S(1)} get-tuple-element(%state), index=1
  %stacked = bf16[4,256,256]{2,1,0:T(8,128)(2,1)} get-tuple-element(%state), index=2
  %weights = bf16[1,256,256]{2,1,0:T(8,128)(2,1)S(1)} fusion(%stacked, %turns), kind=kLoop, calls=%slice_of_layers
  %product = bf16[8,114,256]{2,1,0:T(8,128)(2,1)S(1)} convolution(%hidden, %weights), window={size=1}, \
dim_labels=0bf_0io->0bf
  %all-reduce.2 = bf16[8,114,256]{2,1,0:T(8,128)(2,1)S(1)} all-reduce(%product), channel_id=1, \
replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add
  ROOT %next = (s32[]{:T(128)}, bf16[8,114,256]{2,1,0}, bf16[4,256,256]{2,1,0}) tuple(%turns, %all-reduce.2, %stacked)
}

%condition (state.1: (s32[], bf16[8,114,256], bf16[4,256,256])) -> pred[] {
  %limit = s32[]{:T(128)} constant(4)
  %state.1 = (s32[]{:T(128)}, bf16[8,114,256]{2,1,0:T(8,128)(2,1)S(1)}, bf16[4,256,256]{2,1,0}) parameter(0)
  %done = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %lt = pred[]{:T(512)} compare(%done, %limit), direction=LT
}

ENTRY %main (a: f32[4,64], b: f32[8,2], c: (s32[], bf16[8,114,256], bf16[4,256,256])) -> (f32[2,64], f32[2,64]) {
  %a = f32[4,64]{1,0:T(4,128)} parameter(0)
  %b = f32[8,2]{1,0:T(8,128)} parameter(1)
  %c = (s32[]{:T(128)}, bf16[8,114,256]{2,1,0:T(8,128)(2,1)S(1)}, bf16[4,256,256]{2,1,0:T(8,128)(2,1)}) parameter(2)
  %loop = (s32[]{:T(128)}, bf16[8,114,256]{2,1,0}, bf16[4,256,256]{2,1,0}) while(%c), condition=%condition, body=%body
  %all-gather-start = (f32[8,2]{1,0:T(8,128)}, f32[8,8]{1,0:T(8,128)}) all-gather-start(%b), channel_id=55, \
replica_groups=mesh['axis_0'=1,'axis_1'=2,'axis_2'=4], device_ids=([4,2]T(1,0)) {'axis_2'}, dimensions={1}
  %all-gather-done = f32[8,8]{1,0:T(8,128)} all-gather-done(%all-gather-start)
  %permuted = f32[8,2]{1,0:T(8,128)} collective-permute(%b), channel_id=3, source_target_pairs={{0,1},{1,0}}
  ROOT %scattered = (f32[2,64]{1,0:T(2,128)}, f32[2,64]{1,0:T(2,128)}) fusion(%a), kind=kCustom, \
calls=%all-reduce-scatter
}
"""

# Lines of a program compiled for two H100s, shortened: a loop of 4 turns over layers, and attention after it.
GPU_PROGRAM = """\
HloModule jit_step, is_scheduled=true

%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%x, %y)
}

%fused_dynamic_slice (layers: bf16[4,256,256], turn: s32[]) -> bf16[1,256,256] {
  %layers = bf16[4,256,256]{2,1,0} parameter(0)
  %turned = bf16[4,256,256]{2,1,0} bitcast(%layers)
  %turn = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %one = bf16[1,256,256]{2,1,0} dynamic-slice(%turned, %turn, %zero, %zero), dynamic_slice_sizes={1,256,256}
}

%body (state: (s32[], bf16[8,128,256], bf16[4,256,256])) -> (s32[], bf16[8,128,256], bf16[4,256,256]) {
  %state = (s32[], bf16[8,128,256]{2,1,0}, bf16[4,256,256]{2,1,0}) parameter(0)
  %turns = s32[] get-tuple-element(%state), index=0
  %hidden = bf16[8,128,256]{2,1,0} get-tuple-element(%state), index=1
  %stacked = bf16[4,256,256]{2,1,0} get-tuple-element(%state), index=2
  %weights = bf16[1,256,256]{2,1,0} fusion(%stacked, %turns), kind=kCustom, calls=%fused_dynamic_slice
  %kernel = bf16[256,256]{1,0} bitcast(%weights)
  %rows = bf16[1024,256]{1,0} bitcast(%hidden)
  %custom-call.1 = (bf16[1024,256]{1,0}, s8[33554432]{0}) custom-call(%rows, %kernel), \
custom_call_target="__cublas$lt$matmul", backend_config={"operation_queue_id":"0","gemm_backend_config":{\
"alpha_real":1,"beta":0,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],\
"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},"epilogue":"DEFAULT","lhs_stride":"262144"}}
  %product = bf16[1024,256]{1,0} get-tuple-element(%custom-call.1), index=0
  %next = bf16[8,128,256]{2,1,0} bitcast(%product)
  ROOT %all = (s32[], bf16[8,128,256]{2,1,0}, bf16[4,256,256]{2,1,0}) tuple(%turns, %next, %stacked)
}

%condition (state.1: (s32[], bf16[8,128,256], bf16[4,256,256])) -> pred[] {
  %state.1 = (s32[], bf16[8,128,256]{2,1,0}, bf16[4,256,256]{2,1,0}) parameter(0)
  %turns.1 = s32[] get-tuple-element(%state.1), index=0
  %limit = s32[] constant(4)
  ROOT %lt = pred[] compare(%turns.1, %limit), direction=LT
}

ENTRY %main (a: (s32[], bf16[8,128,256], bf16[4,256,256]), b: bf16[64,32]) -> bf16[8,128,128] {
  %a = (s32[], bf16[8,128,256]{2,1,0}, bf16[4,256,256]{2,1,0}) parameter(0)
  %b = bf16[64,32]{1,0} parameter(1)
  %loop = (s32[], bf16[8,128,256]{2,1,0}, bf16[4,256,256]{2,1,0}) while(%a), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"4"},"known_init_step":{"init":"0","step":"1"}}
  %queries = bf16[8,128,256]{2,1,0} get-tuple-element(%loop), index=1
  %all-reduce-start = bf16[64,32]{1,0} all-reduce-start(%b), channel_id=1, \
replica_groups=mesh['axis_0'=2,'axis_1'=1] {'axis_0'}, use_global_device_ids=true, to_apply=%add
  %cublas-gemm.1 = (bf16[8,128,128]{2,1,0}, s8[4194304]{0}) custom-call(%queries, %queries), \
custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{\
"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["2"],"lhs_batch_dimensions":["0"],\
"rhs_batch_dimensions":["0"]}}}
  %all-reduce-done = bf16[64,32]{1,0} all-reduce-done(%all-reduce-start)
  %all-gather-start = (bf16[64,32]{1,0}, bf16[128,32]{1,0}) all-gather-start(%all-reduce-done), channel_id=2, \
replica_groups=[1,2]<=[2], dimensions={0}, use_global_device_ids=true
  %all-gather-done = bf16[128,32]{1,0} all-gather-done(%all-gather-start)
  ROOT %scores = bf16[8,128,128]{2,1,0} get-tuple-element(%cublas-gemm.1), index=0
}
"""


def test_products_by_cublas_are_counted_and_its_room_to_work_is_not():
    program = Program(GPU_PROGRAM)
    attention = 2 * 8 * 128 * 128 * 256
    assert program.operations() == 4 * (2 * 1024 * 256 * 256) + attention
    assert not program.kernels()
    layer = 2 * (1024 * 256 + 256 * 256 + 1024 * 256) + 2 * 2 * 256 * 256  # a product, and the kernel's slice
    turn = 4 + (4 + 4 + 1)  # its number, for the slice; the numbers of turns, and whether there are more
    scores = 2 * (2 * 8 * 128 * 256 + 8 * 128 * 128)
    part = 2 * 64 * 32
    sent = (part + part) + (part + 2 * part)  # an all-reduce reads and writes as much; a gathering of 2 writes twice it
    assert program.accessed() == 4 * (layer + turn) + scores + sent


def test_attention_by_cudnn_is_two_products_forward_and_five_backward():
    lines = """\
  %q = bf16[2,128,12,64]{3,2,1,0} constant({...})
  %k = bf16[2,512,12,64]{3,2,1,0} constant({...})
  %forward = (bf16[2,12,128,64]{3,1,2,0}, f32[2,12,128]{2,1,0}, u8[0]{0}) custom-call(%q, %k, %k), \
custom_call_target="__cudnn$fmhaScaleBiasSoftmax"
  %backward = (bf16[2,12,128,64]{3,1,2,0}, bf16[2,12,512,64]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k, %k, %forward), \
custom_call_target="__cudnn$fmhaScaleBiasSoftmaxBackward"
"""
    program = Program(GPU_PROGRAM.replace("  %product =", lines + "  %product ="))
    product = 2 * (2 * 12) * 128 * 512 * 64
    assert program.operations() - Program(GPU_PROGRAM).operations() == 4 * (2 + 5) * product
    assert not program.kernels()


def test_communication_that_is_begun_and_ended_is_counted_once():
    moved = Program(GPU_PROGRAM).communication(chips=2)
    part = 2 * 64 * 32
    assert {kind: (x.count, x.size, x.sent) for kind, x in moved.items()} == {
        "all-reduce": (1, part, part),
        "all-gather": (1, 2 * part, part),
    }


def test_communication_is_counted_by_kind_as_often_as_it_runs():
    moved = Program(TPU_PROGRAM).communication(chips=8)
    hidden = 8 * 120 * 256 * 2  # 114 rows are stored as 120
    assert moved.keys() == {"all-reduce", "all-gather", "reduce-scatter", "collective-permute"}
    assert (moved["all-reduce"].count, moved["all-reduce"].size) == (4, 4 * hidden)
    assert moved["all-reduce"].sent == 4 * hidden  # in a group of 2 each sends half, and half again
    assert moved["reduce-scatter"].size == 2 * moved["reduce-scatter"].sent == 2 * (4 * 128 * 4)
    part = 8 * 128 * 4
    assert (moved["all-gather"].size, moved["all-gather"].sent) == (4 * part, 3 * part)
    assert moved["collective-permute"].sent == part


def test_operations_and_main_memory_of_a_loop_count_in_every_turn():
    program = Program(TPU_PROGRAM)
    assert program.unknown_loops == 0
    assert program.operations() == 4 * (2 * 8 * 114 * 256 * 256)
    one_turn = Program(TPU_PROGRAM.replace("constant(4)", "constant(1)"))
    one_layer = 256 * 256 * 2  # its kernel is all that a turn reads from main memory: what it multiplies is on the chip
    numbers = 4 + (4 + 4 + 1)  # of the turn, for the slice; of the turns and their limit, and whether there are more
    assert program.accessed() - one_turn.accessed() == 3 * (one_layer + numbers)


@pytest.mark.parametrize(
    ("program", "target"), [(TPU_PROGRAM, "tpu_custom_call"), (GPU_PROGRAM, "__cudnn$convForward")]
)
def test_kernels_are_told_as_often_as_they_run(program, target):
    lines = "".join(
        f'  %attention.{i} = f32[8,128]{{1,0}} custom-call(%hidden), custom_call_target="{name}"\n'
        for i, name in enumerate([target, "ConcatBitcast", "cu_threefry2x32_ffi"])
    )
    assert not Program(program).kernels()
    assert Program(program.replace("  %product =", lines + "  %product =")).kernels() == {target: 4}


def test_a_loop_of_unknown_length_is_counted_once_and_told():
    program = Program(TPU_PROGRAM.replace("direction=LT", "direction=NE"))
    assert program.unknown_loops == 1
    assert program.operations() == 2 * 8 * 114 * 256 * 256


@pytest.mark.parametrize("scanned", [True, False])
def test_layers_in_a_loop_count_as_those_one_after_another(scanned):
    def layers(x, kernels):
        if scanned:
            return jax.lax.scan(lambda h, kernel: (h @ kernel, None), x, kernels)[0]
        for kernel in kernels:
            x = x @ kernel
        return x

    text = jax.jit(layers).lower(jnp.zeros((2, 64)), jnp.zeros((5, 64, 64))).compile().as_text()
    program = Program(text)
    assert (program.operations(), program.unknown_loops) == (5 * 2 * 2 * 64 * 64, 0)
    kernels = 5 * 64 * 64 * 4
    assert kernels < program.accessed() < 4 * kernels


def test_convolutions_count_what_meets_the_input_as_xla_counts_it():
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            *(x, kernel, (2, 1), [(1, 2), (3, 0)]), lhs_dilation=(1, 3), dimension_numbers=("HWNC", "HWIO", "NHWC")
        )

    text = """\
ENTRY %main (x: f32[5,4,2,3], k: f32[3,2,3,6]) -> f32[2,3,12,6] {
  %x = f32[5,4,2,3]{3,2,1,0} parameter(0)
  %k = f32[3,2,3,6]{3,2,1,0} parameter(1)
  ROOT %c = f32[2,3,12,6]{3,2,1,0} convolution(%x, %k), window={size=3x2 stride=2x1 pad=1_2x3_0 lhs_dilate=1x3}, \
dim_labels=01bf_01io->b01f
}
"""
    lowered = jax.jit(convolve).lower(jnp.zeros((5, 4, 2, 3)), jnp.zeros((3, 2, 3, 6)))
    assert jax.tree.leaves(lowered.out_info)[0].shape == (2, 3, 12, 6)
    assert Program(text).operations() == lowered.cost_analysis()["flops"]


# A layer's product of a loop of 3 turns, as a TPU's program has it: what it reads of the stacked layers it slices in a
# fusion inside the fusion, and it writes its result twice, once into those of all layers.
STACKED_PROGRAM = """\
%one_layer (layers: f32[3,8,128], turn: s32[]) -> f32[8,128] {
  %layers = f32[3,8,128]{2,1,0:T(8,128)} parameter(0)
  %turn = s32[]{:T(128)S(6)} parameter(1)
  %one = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%layers, %turn), dynamic_slice_sizes={1,8,128}
  ROOT %flat = f32[8,128]{1,0:T(8,128)} bitcast(%one)
}

%double (kept: f32[3,8,128], layers.1: f32[3,8,128], turn.1: s32[]) -> (f32[3,8,128], f32[8,128]) {
  %kept = f32[3,8,128]{2,1,0:T(8,128)} parameter(0)
  %layers.1 = f32[3,8,128]{2,1,0:T(8,128)} parameter(1)
  %turn.1 = s32[]{:T(128)S(6)} parameter(2)
  %layer = f32[8,128]{1,0:T(8,128)} fusion(%layers.1, %turn.1), kind=kLoop, calls=%one_layer
  %twice = f32[8,128]{1,0:T(8,128)} add(%layer, %layer)
  %unflat = f32[1,8,128]{2,1,0:T(8,128)} bitcast(%twice)
  %updated = f32[3,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%kept, %unflat, %turn.1)
  ROOT %both = (f32[3,8,128]{2,1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) tuple(%updated, %twice)
}

%body (state: (s32[], f32[3,8,128], f32[3,8,128])) -> (s32[], f32[3,8,128], f32[3,8,128]) {
  %state = (s32[]{:T(128)S(6)}, f32[3,8,128]{2,1,0:T(8,128)}, f32[3,8,128]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%state), index=0
  %a = f32[3,8,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=1
  %b = f32[3,8,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=2
  %found = (f32[3,8,128]{2,1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) fusion(%a, %b, %i), kind=kLoop, calls=%double
  %a.1 = f32[3,8,128]{2,1,0:T(8,128)} get-tuple-element(%found), index=0
  %step = s32[]{:T(128)S(6)} constant(1)
  %next = s32[]{:T(128)S(6)} add(%i, %step)
  ROOT %out = (s32[]{:T(128)}, f32[3,8,128]{2,1,0}, f32[3,8,128]{2,1,0}) tuple(%next, %a.1, %b)
}

%condition (state.1: (s32[], f32[3,8,128], f32[3,8,128])) -> pred[] {
  %state.1 = (s32[]{:T(128)S(6)}, f32[3,8,128]{2,1,0:T(8,128)}, f32[3,8,128]{2,1,0:T(8,128)}) parameter(0)
  %limit = s32[]{:T(128)S(6)} constant(3)
  %count = s32[]{:T(128)S(6)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)S(6)} compare(%count, %limit), direction=LT
}

ENTRY %main (c: (s32[], f32[3,8,128], f32[3,8,128])) -> (s32[], f32[3,8,128], f32[3,8,128]) {
  %c = (s32[]{:T(128)}, f32[3,8,128]{2,1,0:T(8,128)}, f32[3,8,128]{2,1,0:T(8,128)}) parameter(0)
  ROOT %loop = (s32[]{:T(128)}, f32[3,8,128]{2,1,0}, f32[3,8,128]{2,1,0}) while(%c), condition=%condition, body=%body
}
"""


def numbers_apart(size: int) -> int:
    """Returns `size` without what is counted for single numbers: constants' and counters' few bytes."""
    return size // 4096 * 4096


def test_of_stacked_layers_a_fusion_reads_and_writes_one():
    layer = 8 * 128 * 4
    assert numbers_apart(Program(STACKED_PROGRAM).accessed()) == 3 * (layer + 2 * layer)


@pytest.mark.parametrize(("step", "turns"), [(1, 3), (2, 2), (3, 1)])
def test_the_turns_of_a_loop_are_told_by_its_step(step, turns):
    program = Program(STACKED_PROGRAM.replace("constant(1)", f"constant({step})"))
    assert numbers_apart(program.accessed()) == turns * 3 * 8 * 128 * 4


def test_a_collective_that_runs_beside_several_fusions_counts_once():
    gathered = """\
all-gather({}), channel_id={}, replica_groups=[1,4]<=[4], dimensions={{1}}, frontend_attributes={{chain_id="5"}}"""
    text = f"""\
%start (part: f32[8,128]) -> (f32[8,128], f32[8,512]) {{
  %part = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %whole = f32[8,512]{{1,0:T(8,128)}} {gathered.format("%part", 1)}
  ROOT %started = (f32[8,128]{{1,0:T(8,128)}}, f32[8,512]{{1,0:T(8,128)}}) custom-call(%whole), \
custom_call_target="AsyncCollectiveStart"
}}

%beside (part.1: f32[8,128], whole.1: f32[8,512], x: f32[8,128]) -> (f32[8,128], f32[8,128], f32[8,512]) {{
  %part.1 = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %whole.1 = f32[8,512]{{1,0:T(8,128)}} parameter(1)
  %x = f32[8,128]{{1,0:T(8,128)}} parameter(2)
  %negated = f32[8,128]{{1,0:T(8,128)}} negate(%x)
  %on = f32[8,512]{{1,0:T(8,128)}} {gathered.format("%part.1", 2)}
  ROOT %all = (f32[8,128]{{1,0:T(8,128)}}, f32[8,128]{{1,0:T(8,128)}}, f32[8,512]{{1,0:T(8,128)}}) \
tuple(%negated, %part.1, %on)
}}

%done (part.2: f32[8,128], whole.2: f32[8,512]) -> f32[8,512] {{
  %part.2 = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %whole.2 = f32[8,512]{{1,0:T(8,128)}} parameter(1)
  %last = f32[8,512]{{1,0:T(8,128)}} {gathered.format("%part.2", 3)}
  ROOT %ended = f32[8,512]{{1,0:T(8,128)}} custom-call(%part.2, %whole.2, %last), \
custom_call_target="AsyncCollectiveDone"
}}

ENTRY %main (p: f32[8,128], q: f32[8,128]) -> f32[8,512] {{
  %p = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %q = f32[8,128]{{1,0:T(8,128)}} parameter(1)
  %s = (f32[8,128]{{1,0:T(8,128)}}, f32[8,512]{{1,0:T(8,128)}}) fusion(%p), kind=kCustom, calls=%start
  %sp = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%s), index=0
  %sw = f32[8,512]{{1,0:T(8,128)}} get-tuple-element(%s), index=1
  %m = (f32[8,128]{{1,0:T(8,128)}}, f32[8,128]{{1,0:T(8,128)}}, f32[8,512]{{1,0:T(8,128)}}) fusion(%sp, %sw, %q), \
kind=kLoop, calls=%beside
  %mp = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%m), index=1
  %mw = f32[8,512]{{1,0:T(8,128)}} get-tuple-element(%m), index=2
  ROOT %end = f32[8,512]{{1,0:T(8,128)}} fusion(%mp, %mw), kind=kCustom, calls=%done
}}
"""
    program, part = Program(text), 8 * 128 * 4
    moved = program.communication(chips=4)["all-gather"]
    assert (moved.count, moved.size, moved.sent) == (1, 4 * part, 3 * part)
    assert program.accessed() == (part + 4 * part) + 2 * part  # gathered once; and negated
