"""Names that the field's terms have replaced do not come back (`docs/glossary.md` lists the terms)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODULES = """
codegen/cpu/cluster/parts codegen/cpu/cluster/part_results codegen/cpu/cluster/layout codegen/cpu/cluster/rows
codegen/cpu/cluster/ahead codegen/cpu/contraction/parts codegen/cpu/contraction/split_near
codegen/cpu/contraction/stored_near codegen/cpu/contraction/near_weights codegen/cpu/contraction/gemm_tiles
codegen/cpu/contraction/conv_tiles codegen/cpu/contraction/transposed codegen/cpu/contraction/transposed_tiles
codegen/cpu/contraction/finishing codegen/cpu/contraction/few_outputs codegen/cpu/contraction/small_channels
codegen/cpu/contraction/grid_filling codegen/cpu/contraction/pixel_grid codegen/cpu/contraction/rows
codegen/cpu/contraction/open_lengths codegen/cpu/contraction/pack codegen/cpu/contraction/packing
codegen/cpu/contraction/configurations codegen/cpu/contraction/refinement codegen/cpu/contraction/nbits
codegen/cpu/contraction/gemm_nbits codegen/cpu/contraction/gemv_nbits codegen/cpu/contraction/strassen/blocks
codegen/cpu/contraction/winograd/blocks codegen/cpu/contraction/winograd/tiles
codegen/cpu/contraction/winograd/tiles_kernel codegen/cpu/attention/base codegen/cpu/attention/blocks
codegen/cpu/attention/tiles codegen/cpu/data/rows codegen/cpu/data/runs codegen/cpu/data/control
codegen/cpu/data/trees codegen/gpu/data/trees codegen/gpu/attention/parts codegen/gpu/attention/text
codegen/gpu/attention/warpgroup_parts codegen/gpu/attention/matrix codegen/gpu/cluster/indexing
codegen/gpu/cluster/layout codegen/gpu/cluster/rows codegen/gpu/cluster/turned codegen/gpu/contraction/parts
codegen/gpu/contraction/text codegen/gpu/contraction/wgmma_parts codegen/gpu/contraction/few_rows
codegen/gpu/contraction/nbits codegen/gpu/contraction/nbits_cores codegen/gpu/contraction/narrow
codegen/gpu/contraction/placed codegen/gpu/contraction/open_lengths codegen/gpu/contraction/matrix
codegen/gpu/contraction/tensor codegen/gpu/contraction/wgmma_sums codegen/problems/indexing
codegen/problems/trees codegen/workers/ahead runtime/told_lengths runtime/cpu/layout runtime/cpu/direct
runtime/cpu/library/text runtime/gpu/late runtime/gpu/blocks runtime/gpu/control targets/seam targets/stages
targets/symbolic_stages targets/host_file targets/cpu/parts targets/cpu/staged targets/gpu/staged
targets/cpu/rules/indexing targets/gpu/rules/indexing targets/lowering/indexing targets/lowering/attention
targets/lowering/contraction targets/lowering/detection targets/lowering/recurrent targets/lowering/trees
targets/lowering/destinations targets/lowering/host_call targets/lowering/host_values targets/lowering/views
ops/builders/layout runtime/gpu/choice
""".split()
"""Retired modules of the package, without ``.py``."""

NAMES = """
_AskedProduct:_RequestedProduct AskedConvolution:RequestedConvolution tell_again:repeat_messages
_tell_once:_warn_once PlacedRequest:GpuContraction in_turns:permuted_lanes _takes_turns:_alternates
TwoStages:SplitCompiled StagedProgram:SplitProgram StagedGpuProgram:SplitGpuProgram
CpuSymbolicStages:CpuSymbolicSplit SymbolicStages:SymbolicSplit ProgramStages:ProgramSplit KeptStages:KeptSplit
has_late_lengths:has_data_dependent_lengths LateBody:DataDependentBody LateBranch:DataDependentBranch
LateLoop:DataDependentLoop LateProgram:DataDependentProgram late_program:data_dependent_program
_late_bodies:_data_dependent_bodies _run_late:_run_data_dependent _lower_late_loop:_lower_data_dependent_loop
_Late:_DataDependent import_late:register_lazily NearWeights:DequantOnTheFly SplitNear:SplitOnTheFly
StoredNear:ConvertOnTheFly stored_near:convert_on_the_fly STREAMS_NEAR:STREAMS_IN_CACHE NEAR_BLOCK:SCRATCH_BLOCK
near_blockings:nearby_blockings weights_stay_near:weights_stay_cached FewBits:BlockQuant
FewBitsOnCores:BlockQuantMma FewRows:Gemv few_rows_refusal:gemv_refusal few_rows_solution:gemv_solution
_FewRowsText:_GemvText nbits_refusal:block_quant_refusal nbits_solution:block_quant_solution
cores_refusal:block_quant_mma_refusal cores_solution:block_quant_mma_solution GemmNBits:GemmBlockQuant
GemvNBits:GemvBlockQuant ConvFewOutputs:ConvNarrowOutput ConvFewChannels:ConvSmallCin FewQueries:DecodeAttention
ManyQueries:PrefillAttention MatrixQueries:PrefillAttentionAmx few_queries:decode_queries ConvTiles:ConvAmx
GemmTiles:GemmAmx ConvPointwiseTiles:ConvPointwiseAmx ConvTransposedTiles:ConvTransposedAmx
ConvWinogradTiles:ConvWinogradAmx finisher_source:epilogue_kernel_source finish_source:epilogue_source
_finish_source:_epilogue_source kernels_ahead:compile_in_background turned_launch:transposed_launch
_TurnedText:_TransposedText reads_turned_masks:reads_transposed_masks mask_turned:mask_transposed
TURNED_PAD:TRANSPOSED_PAD turned_pitch:transposed_pitch TURNED_BYTES:TRANSPOSED_BYTES
TURNED_COLUMNS:TRANSPOSED_COLUMNS turned_bytes:transposed_bytes _add_turned:_add_transposed
turns_short_rows:transposes_short_rows HostStep:FallbackStep HostCall:FallbackCall HostFunction:FallbackFunction
host_reasons:fallback_reasons run_host_step:run_fallback_step _run_host_step:_run_fallback_step
made_by_host:made_by_fallback is_hosts:is_on_host with_told_lengths:with_explicit_lengths is_told:is_explicit
told_lengths:explicit_lengths _address_told:_address_of_interface FilledImages:ChannelPadding
filled_images:channel_padding filled_channels_launch:channel_padding_launch _FilledText:_ChannelPaddingText
WarpgroupParts:WarpgroupBf16Split WarpgroupPartsText:WarpgroupBf16SplitText parts_solution:bf16_split_solution
parts_tiles:bf16_split_tiles parts_refusal:bf16_split_refusal fits_parts:fits_bf16_split
chosen_parts_tile:chosen_bf16_split_tile _PartsText:_Bf16SplitText PartsWriter:WinogradAmxWriter
ValueParts:SplitValue writes_parts:writes_bf16_split reads_parts:reads_bf16_split offer_parts:offer_bf16_split
_offer_parts:_offer_bf16_split take_parts:take_bf16_split PixelGrid:PaddedInput
grid_refusal:padded_input_refusal fill_grid:pad_launch quick_run:fast_run
asked_quantizations:requested_quantizations asked_options:requested_options asked_kinds:requested_kinds
MOST_ASKED:MOST_REQUESTED ask_refusals:collect_refusals ask_cost:estimate_cost lend_parts:donate_to_pieces
lend_inside:donate_middle _may_lend:_may_donate _Lender:_Donor _copy_to_lent:_copy_to_donated
_is_lent:_is_donated LEAST_LENT:LEAST_DONATED
Settling:Specializer brought_bytes:loaded_bytes _bringing:_loading_cycles _brought_rows:_loaded_rows
_brought_columns:_loaded_columns LateForm:PendingCompilation _ask_again:_refill _ask_queries:_load_queries
_ask_right:_load_right _ask_for_vectors:_prefetch_vectors
""".split()
"""Retired identifiers, each with its replacement."""

LANGUAGE = ("codegen/gpu/vocabulary.py", "codegen/gpu/matrix_tiles.py")
"""Retired names in prose: an edit would change the identity of all GPU kernels (`codegen/gpu/identity.py`)."""


def test_retired_modules_stay_away() -> None:
    package = ROOT / "mgx_numba"
    back = [name for name in MODULES if (package / f"{name}.py").exists() or (package / name).is_dir()]
    assert back == [], "retired file names; see docs/glossary.md"


def test_retired_names_stay_away() -> None:
    new = dict(pair.split(":") for pair in NAMES)
    skipped = {Path(__file__), ROOT / "docs/changelog.md", *(ROOT / "mgx_numba" / name for name in LANGUAGE)}
    found, seen = [], 0
    for folder in ("mgx_numba", "tests", "bench", "tools", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".md") or path in skipped:
                continue
            seen += 1
            back = new.keys() & set(re.findall(r"\w+", path.read_text()))
            found += [f"{path.relative_to(ROOT)}: {name} is now {new[name]}" for name in sorted(back)]
    assert seen > 1000
    assert found == []
