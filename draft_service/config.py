"""Settings of a draft worker. Read in `__main__` only and passed down as arguments."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from paceline.config import Count, DeviceName, Port, Share
from paceline.heads.shipped import AUTO, HeadDirectory, shipped_head
from paceline.security_settings import SecuritySettings


class DraftSettings(SecuritySettings):
    """Paceline draft worker: proposes the next tokens cheaply."""

    drafter: Literal[
        "suffix", "draft-model", "eagle", "medusa", "hybrid", "early-exit", "self", "auto"
    ] = "suffix"
    """How to propose. `suffix` copies what followed the last tokens before, in the text and in the
    tenant's earlier answers, and costs nothing; `draft-model` asks a smaller model; `eagle` asks a
    small head that is fed with the target's hidden states; `medusa` asks several that say a token
    each; `hybrid` copies where a match is good enough and asks the head elsewhere; `early-exit`
    asks the first layers of the target's model; `self` asks all of it (for tests: everything is
    accepted, nothing is gained); `auto` is `hybrid` with the head given or the one that comes with
    Paceline for the model, and `suffix` where there is none. A target with the head `auto` fits."""

    model: str = ""
    """`draft-model`: Hugging Face id or directory of the draft model. `eagle`, `medusa`, `hybrid`,
    `early-exit` and `self`: the target's model; empty for the bundled one. `suffix` has none."""

    target_tokenizer: str = ""
    """`draft-model`: the target's model, or a directory with its tokenizer. Where the draft model
    has other tokens, its drafts are translated. Unset: it must have the target's."""

    head: HeadDirectory = ""
    """`eagle`, `medusa` and `hybrid`: directory of the head or heads, as published or as vLLM
    writes them; `auto`: that of the one that comes with Paceline for the model. The target is
    started with the same, so that it keeps the hidden states. `early-exit`: directory of a trained
    exit, if there is one; of that the target knows nothing."""

    feature_projection: bool = True
    """`eagle`, with an EAGLE-3 head: be fed with what its first matrix makes of the hidden states,
    as a target sends them that is told the same head. False for a target with `feature_layers`."""

    exit_layer: Count | None = None
    """`early-exit`: how many layers run. Unset: a quarter of the model's, or what the trained exit
    in `head` is made for."""

    draft_tree: Literal["none", "static", "dynamic"] = "none"
    """`eagle`, `medusa` and `hybrid`: let the head propose a tree of as many tokens as are asked
    for, in place of a chain. `static`: of a fixed shape; `dynamic`: of what the head is most
    confident about, as in EAGLE-2. A wider pass of the target must cost little for a tree to pay;
    on most CPUs a chain is faster."""

    allow_pickle: bool = False
    """Read a head that is published as a pickle and not as safetensors. The reader is restricted to
    tensors, but is large: for heads from sources that you trust."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and KV cache. `auto`: float32 on a CPU, the fastest without AMX, and of the
    matrices of heads eight bits where the CPU has bfloat16; bfloat16 on CUDA, float16 on older
    cards. float16 is for CUDA only."""

    device: DeviceName = "auto"
    """Where the model runs: `cpu`, `cuda` (the first card) or `cuda:<index>`. `auto`: the first
    card if PyTorch sees one, else the CPU; `suffix` needs none. CUDA has never run on a card
    (docs/scaling.md)."""

    kv_cache_tokens: Count | None = None
    """Room for the KV of so many tokens, all sequences together. Unset: chosen from the memory
    that is free after the model is loaded."""

    kv_memory_fraction: Share | None = None
    """Share of the free memory, a card's own on CUDA, that `kv_cache_tokens` is chosen to fill.
    Unset: 0.25 on a CPU, whose memory several workers may share; 0.9 on CUDA. Workers that share a
    card start one after the other, or are given shares that leave room."""

    max_speculative_tokens: Count = 16
    """Most tokens proposed at a time, as many as a target checks by default."""

    num_threads: Count | None = None
    """CPU threads of a pass. Unset: PyTorch's own choice, all cores."""

    cache_dir: str = ""
    """Where downloaded models are kept. Empty: Hugging Face's own cache."""

    drain_seconds: Annotated[float, Field(ge=0)] = 5.0
    """How long running answers may go on with this draft when it is told to stop. Short, since
    they lose nothing but one round's drafts when it leaves them."""

    port: Port = 50071
    """gRPC port; 0: any free one."""

    metrics_port: Port = 0
    """HTTP port of `/metrics`; 0: any free one, so that several workers of a machine get along. A
    Prometheus that is to find it needs a fixed one."""

    @model_validator(mode="before")
    @classmethod
    def _decide_auto(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("drafter") != AUTO:
            return values
        head = values.get("head") or AUTO
        if head == AUTO and shipped_head(values.get("model", "")) is None:
            return {key: values[key] for key in values if key not in ("model", "head")} | {
                "drafter": "suffix"
            }
        return values | {"drafter": "hybrid", "head": head}

    @model_validator(mode="after")
    def _model_and_head_fit_drafter(self) -> Self:
        if self.drafter == "draft-model" and not self.model:
            raise ValueError("--model (PACELINE_MODEL) is required by the drafter draft-model")
        if self.drafter == "suffix" and self.model:
            raise ValueError(
                f"--model (PACELINE_MODEL) is {self.model!r}, but the drafter suffix "
                "should have none"
            )
        if self.drafter != "draft-model" and self.target_tokenizer:
            raise ValueError(
                f"--target-tokenizer (PACELINE_TARGET_TOKENIZER) is {self.target_tokenizer!r}, but "
                f"the drafter {self.drafter} should have none"
            )
        if self.drafter in ("eagle", "medusa", "hybrid") and not self.head:
            raise ValueError(f"--head (PACELINE_HEAD) is required by the drafter {self.drafter}")
        if self.head and self.drafter not in ("eagle", "medusa", "hybrid", "early-exit"):
            raise ValueError(
                f"--head (PACELINE_HEAD) is {self.head!r}, but the drafter {self.drafter} "
                "should have none"
            )
        if self.draft_tree != "none" and self.drafter not in ("eagle", "medusa", "hybrid"):
            raise ValueError(
                f"--draft-tree (PACELINE_DRAFT_TREE) is {self.draft_tree}, but the drafter "
                f"{self.drafter} makes chains only"
            )
        return self

    @model_validator(mode="after")
    def _exit_is_named_once(self) -> Self:
        if self.exit_layer is not None and (self.drafter != "early-exit" or self.head):
            other = "the head names it" if self.head else f"the drafter {self.drafter} has none"
            raise ValueError(
                f"--exit-layer (PACELINE_EXIT_LAYER) is {self.exit_layer}, but {other}"
            )
        return self
