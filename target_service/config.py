"""Settings of a target worker. Read in `__main__` only and passed down as arguments."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from paceline.config import Count, DeviceName, Port, Share
from paceline.heads.shipped import HeadDirectory
from paceline.security_settings import SecuritySettings


class TargetSettings(SecuritySettings):
    """Paceline target worker: the model whose answers are wanted."""

    model: str = ""
    """Hugging Face id or directory of the model, or `table:<seed>` for the table model of the
    tests. Empty: the bundled SmolLM2-135M-Instruct, so that a first start needs no network."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and KV cache. `auto`: float32 on a CPU, the fastest without AMX; bfloat16 on
    CUDA, float16 on older cards. float16 is for CUDA only."""

    device: DeviceName = "auto"
    """Where the model runs: `cpu`, `cuda` (the first card) or `cuda:<index>`. `auto`: the first
    card if PyTorch sees one, else the CPU. CUDA has never run on a card (docs/scaling.md)."""

    max_model_len: Count | None = None
    """Longest sequence in tokens, prompt and answer together. Unset: what the model was made
    for."""

    kv_cache_tokens: Count | None = None
    """Room for the KV of so many tokens, all sequences together. Unset: chosen from the memory
    that is free after the model is loaded."""

    kv_memory_fraction: Share | None = None
    """Share of the free memory, a card's own on CUDA, that `kv_cache_tokens` is chosen to fill.
    Unset: 0.25 on a CPU, whose memory several workers may share; 0.9 on CUDA. Workers that share a
    card start one after the other, or are given shares that leave room."""

    feature_layers: tuple[int, ...] = ()
    """Layers whose hidden states are kept for drafters that are fed with them: i for the input of
    layer i, the number of layers for that of the head. Each takes room like a part of the KV."""

    head: HeadDirectory = ""
    """Directory of the head that drafts run: keeps the hidden states that it is fed with, in place
    of `feature_layers`. `auto`: that of the one that comes with Paceline for the model, if there is
    one. What an EAGLE-3 head needs is sent as its first matrix makes it, a third of the numbers."""

    allow_pickle: bool = False
    """Read a head that is published as a pickle and not as safetensors. The reader is restricted to
    tensors, but is large: for heads from sources that you trust."""

    max_batch_tokens: Count = 512
    """Rows of one pass; a longer prompt is cut into chunks of this. More rows make prefill a little
    faster and let running answers wait longer for a new prompt."""

    max_speculative_tokens: Count = 16
    """Most drafts checked per sequence and pass; more are trimmed. Wider passes cost more than
    they gain on common hardware."""

    num_threads: Count | None = None
    """CPU threads of a pass. Unset: PyTorch's own choice, all cores; ranks on one machine share
    them."""

    tensor_parallel_size: Count = 1
    """Processes, called ranks, that share the model: each reads and computes a part of it, and rank
    0 answers. They are started by `torchrun`, or find one another by its variables. Worth it where
    one process cannot hold the model, or each has an accelerator or a machine of its own."""

    rank_timeout_seconds: Annotated[float, Field(ge=10)] = 30.0
    """How long a rank may keep the others waiting; then it counts as lost, and all end. Idle ranks
    hear from one another every 5 seconds; more is for machines that stand still for longer."""

    cache_dir: str = ""
    """Where downloaded models are kept. Empty: Hugging Face's own cache."""

    drain_seconds: Annotated[float, Field(ge=0)] = 25.0
    """How long running answers may go on here when the worker is told to stop. Those that have not
    ended then go on at another target, which has to read them anew. Under the 30 seconds after
    which Kubernetes kills a pod."""

    port: Port = 50061
    """gRPC port; 0: any free one."""

    metrics_port: Port = 0
    """HTTP port of `/metrics`; 0: any free one, so that several workers of a machine get along. A
    Prometheus that is to find it needs a fixed one."""

    @model_validator(mode="after")
    def _ranks_have_something_to_share(self) -> Self:
        if self.tensor_parallel_size > 1 and self.model.startswith("table:"):
            raise ValueError(
                "--tensor-parallel-size (PACELINE_TENSOR_PARALLEL_SIZE) is "
                f"{self.tensor_parallel_size}, but the model {self.model!r} has no weights to "
                "share; expected 1"
            )
        return self

    @model_validator(mode="after")
    def _features_are_named_once(self) -> Self:
        if self.head and self.feature_layers:
            raise ValueError(
                f"--head (PACELINE_HEAD) is {self.head!r} and names the layers itself, so "
                "--feature-layers (PACELINE_FEATURE_LAYERS) should not be given"
            )
        return self
