"""Small models of other architectures, with weights of zeros, that a real server loads.

Tensor names and shapes are those that llama.cpp b11434 asks for (src/models/*.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from batch_invariance.formats.ggml import GgmlType
from batch_invariance.formats.toy_vocab import VOCABULARY
from gguf_builder import Tensors, Value, write_sparse

EMBEDDING = 512
HEADS = 8
HEAD_LENGTH = 64
FEED_FORWARD = 2048
CONTEXT_LENGTH = 131_072
F16, F32 = GgmlType.F16, GgmlType.F32


def write_gemma3(path: Path) -> None:
    """Twelve blocks, ten of which keep a window of 1024 tokens; the header states no pattern."""
    tensors = _frame()
    for at in _blocks(12):
        for name in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            tensors[f"{at}{name}.weight"] = ((EMBEDDING,), F32)
        for name in ("attn_q_norm", "attn_k_norm"):
            tensors[f"{at}{name}.weight"] = ((HEAD_LENGTH,), F32)
        _attention(tensors, at, 4)
        _feed_forward(tensors, at)
    _write(path, "gemma3", 12, {"attention.head_count_kv": 4, **_window(1024)}, tensors)


def write_gpt_oss(path: Path) -> None:
    """Four blocks of experts, two of which keep a window of 128 tokens."""
    experts, width = 8, 512
    tensors = _frame()
    for at in _blocks(4):
        for name in ("attn_norm", "post_attention_norm"):
            tensors[f"{at}{name}.weight"] = ((EMBEDDING,), F32)
        _attention(tensors, at, 2)
        queries, keys = HEADS * HEAD_LENGTH, 2 * HEAD_LENGTH
        biases = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "attn_output": EMBEDDING}
        for name, length in {**biases, "ffn_gate_inp": experts}.items():
            tensors[f"{at}{name}.bias"] = ((length,), F32)
        tensors[f"{at}attn_sinks.weight"] = ((HEADS,), F32)
        tensors[f"{at}ffn_gate_inp.weight"] = ((EMBEDDING, experts), F32)
        for name, dims in _expert_shapes(width).items():
            tensors[f"{at}ffn_{name}_exps.weight"] = ((*dims, experts), F16)
            tensors[f"{at}ffn_{name}_exps.bias"] = ((dims[1], experts), F32)
    keys_of = {
        "attention.head_count_kv": 2,
        "expert_count": experts,
        "expert_used_count": 4,
        "expert_feed_forward_length": width,
        "rope.dimension_count": HEAD_LENGTH,
    }
    _write(path, "gpt-oss", 4, {**keys_of, **_window(128)}, tensors)


def write_deepseek2(path: Path) -> None:
    """Three blocks of latent attention, one dense and two of experts."""
    rank, rotated, plain, values, query_rank = 512, 64, 128, 128, 256
    experts, width = 4, 256
    tensors = _frame()
    for index, at in enumerate(_blocks(3)):
        shapes = {
            "attn_q_a": (EMBEDDING, query_rank),
            "attn_q_b": (query_rank, HEADS * (plain + rotated)),
            "attn_kv_a_mqa": (EMBEDDING, rank + rotated),
            "attn_k_b": (plain, rank, HEADS),
            "attn_v_b": (rank, values, HEADS),
            "attn_output": (HEADS * values, EMBEDDING),
        }
        for name, dims in shapes.items():
            tensors[f"{at}{name}.weight"] = (dims, F16)
        norms = {"attn_norm": EMBEDDING, "ffn_norm": EMBEDDING}
        for name, length in {**norms, "attn_q_a_norm": query_rank, "attn_kv_a_norm": rank}.items():
            tensors[f"{at}{name}.weight"] = ((length,), F32)
        if index == 0:
            _feed_forward(tensors, at)
            continue
        tensors[f"{at}ffn_gate_inp.weight"] = ((EMBEDDING, experts), F32)
        for name, dims in _expert_shapes(width).items():
            tensors[f"{at}ffn_{name}_exps.weight"] = ((*dims, experts), F16)
            tensors[f"{at}ffn_{name}_shexp.weight"] = (dims, F16)
    sizes = {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": plain + rotated,
        "attention.value_length_mla": values,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": query_rank,
        "rope.dimension_count": rotated,
        "leading_dense_block_count": 1,
        "expert_count": experts,
        "expert_used_count": 2,
        "expert_feed_forward_length": width,
        "expert_shared_count": 1,
        "vocab_size": len(VOCABULARY),
    }
    _write(path, "deepseek2", 3, sizes, tensors)


def write_granite_hybrid(path: Path) -> None:
    """Four blocks: the third attends, the others are recurrent."""
    inner, state, steps, kernel = 2 * EMBEDDING, 64, 16, 4
    convolved = inner + 2 * state
    kv_heads = (0, 0, 4, 0)
    tensors = _frame()
    for at, heads in zip(_blocks(4), kv_heads, strict=True):
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"{at}{name}.weight"] = ((EMBEDDING,), F32)
        _feed_forward(tensors, at)
        if heads:
            _attention(tensors, at, heads)
            continue
        tensors[f"{at}ssm_in.weight"] = ((EMBEDDING, inner + convolved + steps), F16)
        tensors[f"{at}ssm_out.weight"] = ((inner, EMBEDDING), F16)
        tensors[f"{at}ssm_conv1d.weight"] = ((kernel, convolved), F32)
        tensors[f"{at}ssm_conv1d.bias"] = ((convolved,), F32)
        tensors[f"{at}ssm_dt.bias"] = ((steps,), F32)
        tensors[f"{at}ssm_norm.weight"] = ((inner, 1), F32)
        for name in ("ssm_a", "ssm_d"):
            tensors[f"{at}{name}"] = ((1, steps), F32)
    sizes: dict[str, Value] = {
        "attention.head_count_kv": kv_heads,
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": steps,
        "ssm.group_count": 1,
    }
    _write(path, "granitehybrid", 4, sizes, tensors)


WRITERS: dict[str, Callable[[Path], None]] = {
    "gemma3": write_gemma3,
    "gpt-oss": write_gpt_oss,
    "deepseek2": write_deepseek2,
    "granitehybrid": write_granite_hybrid,
}
"""Each model by its architecture."""


def _write(
    path: Path, architecture: str, blocks: int, more: Mapping[str, Value], tensors: Tensors
) -> None:
    sizes: dict[str, Value] = {
        "block_count": blocks,
        "context_length": CONTEXT_LENGTH,
        "embedding_length": EMBEDDING,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.key_length": HEAD_LENGTH,
        "attention.value_length": HEAD_LENGTH,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **more,
    }
    named = {f"{architecture}.{name}": value for name, value in sizes.items()}
    write_sparse(path, {"general.architecture": architecture, **named}, tensors)


def _frame() -> Tensors:
    vocabulary = (EMBEDDING, len(VOCABULARY))
    return {
        "token_embd.weight": (vocabulary, F16),
        "output_norm.weight": ((EMBEDDING,), F32),
        "output.weight": (vocabulary, F16),
    }


def _blocks(count: int) -> list[str]:
    return [f"blk.{index}." for index in range(count)]


def _window(tokens: int) -> dict[str, Value]:
    return {"attention.sliding_window": tokens}


def _attention(tensors: Tensors, at: str, kv_heads: int) -> None:
    queries, keys = HEADS * HEAD_LENGTH, kv_heads * HEAD_LENGTH
    shapes = {"attn_q": (EMBEDDING, queries), "attn_output": (queries, EMBEDDING)}
    for name, dims in {**shapes, "attn_k": (EMBEDDING, keys), "attn_v": (EMBEDDING, keys)}.items():
        tensors[f"{at}{name}.weight"] = (dims, F16)


def _feed_forward(tensors: Tensors, at: str) -> None:
    for name, dims in _expert_shapes(FEED_FORWARD).items():
        tensors[f"{at}ffn_{name}.weight"] = (dims, F16)


def _expert_shapes(width: int) -> dict[str, tuple[int, int]]:
    return {"gate": (EMBEDDING, width), "up": (EMBEDDING, width), "down": (width, EMBEDDING)}
