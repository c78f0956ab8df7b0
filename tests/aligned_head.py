"""A target whose next token is a function of its last, and heads that must know it.

A head is right only where the features of a row are those of the very token before the one that
is embedded in it: what it makes of the feature and what it makes of the embedding meet in a
product of its MLP, which is zero unless both name the same letter. Rows of drafts need the same of
the head's own output. So whatever is off by one, on the wire or in the drafter, makes every draft
wrong.
"""

from pathlib import Path

import torch
from eagle_heads import HeadFiles
from medusa_heads import NUM_HEADS, MedusaFiles
from tiny_models import save_checkpoint, tiny_config
from torch import Tensor
from transformers import AutoModelForCausalLM

from paceline.engine.table_model import VOCAB_SIZE

HIDDEN = 264
NUM_LETTERS, FIRST_LETTER = 26, ord("a")
EMBEDDED = 32
"""The hidden state's numbers from here on are about the embedding, those before about features."""
HEAD_DIM = 32
_NORM = HIDDEN**0.5
"""What the norm makes of the only number in a row that is not zero."""


def next_token(token_id: int) -> int:
    """The alphabet, over and over; any other token leads into it."""
    letter = token_id - FIRST_LETTER
    is_letter = 0 <= letter < NUM_LETTERS
    return FIRST_LETTER + (letter + 1 if is_letter else token_id) % NUM_LETTERS


def save_target(directory: Path) -> Path:
    """A Llama whose layers add nothing: its hidden states are one-hot embeddings."""
    config = tiny_config()
    config.hidden_size, config.head_dim = HIDDEN, HIDDEN // 4
    save_checkpoint(directory, config)
    model = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCAB_SIZE, HIDDEN))
        model.lm_head.weight.copy_(2 * _next_letters(FIRST_LETTER, VOCAB_SIZE))
    model.save_pretrained(directory)
    return directory


def aligned_head() -> HeadFiles:
    """The head for this target, with the target's embeddings and the letters as its tokens."""
    head = HeadFiles(VOCAB_SIZE, NUM_LETTERS, target_hidden_size=HIDDEN)
    head.settings = {
        "hidden_size": HIDDEN,
        "intermediate_size": NUM_LETTERS,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "norm_before_residual": True,
    }
    letters = torch.arange(NUM_LETTERS)
    # Equal queries and keys: rotary embedding makes a row see itself and nothing else.
    constant = torch.zeros(HEAD_DIM, 2 * HIDDEN)
    constant[:, :VOCAB_SIZE] = 20 / _NORM
    value = torch.zeros(HEAD_DIM, 2 * HIDDEN)
    value[letters, letters + FIRST_LETTER] = 1.0
    output = torch.zeros(HIDDEN, HEAD_DIM)
    output[letters + EMBEDDED, letters] = 1.0
    gate, up = torch.zeros(NUM_LETTERS, HIDDEN), torch.zeros(NUM_LETTERS, HIDDEN)
    gate[letters, letters] = 1.0
    up[letters, letters + EMBEDDED] = 1.0
    down = torch.zeros(HIDDEN, NUM_LETTERS)
    down[(letters + 1) % NUM_LETTERS, letters] = 100.0
    says = torch.zeros(NUM_LETTERS, HIDDEN)
    says[letters, letters] = 2.0
    head.tensors = {
        "fc.weight": _next_letters(0, HIDDEN).repeat(1, 3),
        "midlayer.self_attn.q_proj.weight": constant,
        "midlayer.self_attn.k_proj.weight": constant.clone(),
        "midlayer.self_attn.v_proj.weight": value,
        "midlayer.self_attn.o_proj.weight": output,
        "midlayer.mlp.gate_proj.weight": gate,
        "midlayer.mlp.up_proj.weight": up,
        "midlayer.mlp.down_proj.weight": down,
        "lm_head.weight": says,
        "d2t": torch.full((NUM_LETTERS,), FIRST_LETTER),
    }
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        head.tensors[f"midlayer.{name}.weight"] = torch.ones(HIDDEN)
    head.tensors["norm.weight"] = torch.ones(HIDDEN)
    return head


def aligned_eagle1_head() -> HeadFiles:
    """The same as EAGLE-1 has it: what it makes of a row is the token's own hidden state."""
    head = HeadFiles(VOCAB_SIZE, VOCAB_SIZE, HIDDEN, num_features=1, is_eagle3=False)
    head.settings = {
        "hidden_size": HIDDEN,
        "intermediate_size": NUM_LETTERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "bias": False,
    }
    letters = torch.arange(NUM_LETTERS)
    fused = torch.zeros(HIDDEN, 2 * HIDDEN)
    fused[letters + EMBEDDED, letters + FIRST_LETTER] = 1.0
    fused[:, HIDDEN:] = _next_letters(0, HIDDEN) / _NORM
    gate, up = torch.zeros(NUM_LETTERS, HIDDEN), torch.zeros(NUM_LETTERS, HIDDEN)
    gate[letters, letters] = 1.0
    up[letters, letters + EMBEDDED] = 1.0
    down = torch.zeros(HIDDEN, NUM_LETTERS)
    down[letters + FIRST_LETTER, letters] = 0.1
    head.tensors = {
        "fc.weight": fused,
        "layers.0.mlp.gate_proj.weight": gate,
        "layers.0.mlp.up_proj.weight": up,
        "layers.0.mlp.down_proj.weight": down,
        "layers.0.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }
    for name in "qkvo":
        head.tensors[f"layers.0.self_attn.{name}_proj.weight"] = torch.zeros(HIDDEN, HIDDEN)
    return head


def aligned_medusa(layout: str) -> MedusaFiles:
    """Medusa heads for this target: right from the state of the last token but one only.

    In the authors' layout each output matrix knows the letter so many places on, and the blocks
    change nothing; in vLLM's the blocks know it and all use the target's output matrix.
    """
    heads = MedusaFiles(VOCAB_SIZE, settings={"hidden_size": HIDDEN})
    ahead = torch.eye(HIDDEN)
    for head in range(NUM_HEADS):
        ahead = _next_letters(FIRST_LETTER, HIDDEN) @ ahead
        known = _next_letters(FIRST_LETTER, VOCAB_SIZE) @ ahead
        weight = torch.zeros(HIDDEN, HIDDEN) if layout == "authors" else 2 * ahead
        heads.tensors[f"{head}.0.linear.weight"] = weight
        heads.tensors[f"{head}.0.linear.bias"] = torch.zeros(HIDDEN)
        if layout == "authors":
            heads.tensors[f"{head}.1.weight"] = 2 * known
    if layout == "vllm":
        heads.settings["original_lm_head"] = True
        heads.token_map = torch.arange(NUM_LETTERS) + FIRST_LETTER
    return heads


def _next_letters(first_row: int, num_rows: int) -> Tensor:
    """`[num_rows, HIDDEN]`: column t has a one where the letter behind token t stands."""
    matrix = torch.zeros(num_rows, HIDDEN)
    for token_id in range(VOCAB_SIZE):
        matrix[first_row + next_token(token_id) - FIRST_LETTER, token_id] = 1.0
    return matrix
