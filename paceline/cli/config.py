"""Settings of `paceline serve`: one value each for what its processes are told in many."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from paceline.config import API_KEY_KEY, Count, DeviceName, LogLevel, Port, Settings
from paceline.heads.shipped import shipped_head


class ServeSettings(Settings):
    """Start Redis, target, draft and coordinator as processes of this machine."""

    other_keys = frozenset({API_KEY_KEY})

    model: str = ""
    """Hugging Face id or directory of the model that answers, or `table:<seed>` for the table model
    of the tests. Empty: the bundled SmolLM2-135M-Instruct, so that a first start needs no
    network."""

    drafter: Literal[
        "auto",
        "suffix",
        "draft-model",
        "eagle",
        "medusa",
        "hybrid",
        "early-exit",
        "self",
        "none",
        "off",
    ] = "auto"
    """How tokens are proposed. `suffix` copies from the text and from earlier answers, which costs
    nothing and needs no second model; `draft-model` asks the one given with `--draft-model`;
    `eagle` asks the head given with `--head`, which is fed with the model's hidden states; `medusa`
    asks several such heads, which say a token each; `hybrid` copies where a match is good enough
    and asks the head elsewhere; `auto` is `hybrid` with the head given, else with the one that
    comes with Paceline for the model, and `suffix` where there is none; `early-exit` asks the first
    layers of the model; `self` asks all of it (for tests: everything is accepted, nothing is
    gained); `none` or `off`: plain decoding."""

    draft_model: str = ""
    """Hugging Face id or directory of the model for the drafter `draft-model`. Where its tokenizer
    is not the target's, its drafts are translated."""

    head: str = ""
    """Directory of a head made for the model: for the drafter `eagle` as published (`EAGLE-…`,
    `EAGLE3-…`) or as vLLM's `speculators` writes it, for `medusa` as published or as vLLM has it,
    for `early-exit` a trained exit, which it can do without. Left out, `eagle` and `hybrid` take
    the head that comes with Paceline for the model."""

    exit_layer: Count | None = None
    """Layers that run for the drafter `early-exit`. Unset: a quarter of the model's, or what the
    trained exit in `--head` is made for."""

    draft_tree: Literal["none", "static", "dynamic"] = "none"
    """Let the head of the drafters `hybrid`, `eagle` and `medusa` propose a tree of
    `num_speculative_tokens` tokens in place of a chain. `static`: of a fixed shape; `dynamic`: of
    what the head is most confident about, as in EAGLE-2. A wider pass of the target must cost
    little for a tree to pay; on most CPUs a chain is faster."""

    allow_pickle: bool = False
    """Read a head that is published as a pickle and not as safetensors. The reader is restricted to
    tensors, but is large: for heads from sources that you trust."""

    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)] = 15
    """Most drafts per round; how many are verified follows from how likely they are accepted and
    from what a wider pass costs. 15 and the target's own token make the widest pass that is
    measured at start."""

    acceptance_rule: Literal["coupled", "rejection", "block"] = "coupled"
    """Which drafts become text, for requests that leave it open. `coupled`: the text of a seed is
    what the target alone says. `rejection` and `block` accept more at high temperatures and keep
    the law of the text, not the text."""

    target_replicas: Count = 1
    """Target processes. More than one shares the machine's cores between them."""

    tensor_parallel_size: Count = 1
    """Processes, called ranks, that share the model of each target. On one machine they share its
    cores too, so that it is rarely faster; each holds a part of the weights only."""

    draft_replicas: Count = 1
    """Draft processes."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and KV cache. `auto`: float32 on a CPU, the fastest without AMX, and of the
    matrices of heads eight bits where the CPU has bfloat16; bfloat16 on CUDA, float16 on older
    cards. float16 is for CUDA only."""

    device: DeviceName = "auto"
    """Where target and drafts run: `cpu`, `cuda`, `cuda:<index>`, or `auto`, the first card if
    PyTorch sees one. CUDA has never run on a card (docs/scaling.md)."""

    max_model_len: Count | None = None
    """Longest sequence in tokens, prompt and answer together. Unset: what the model was made
    for."""

    kv_cache_tokens: Count | None = None
    """Room for the KV of so many tokens in each worker. Unset: chosen from the free memory."""

    num_threads: Count | None = None
    """CPU threads of each worker. Unset: the cores of this machine, shared between the replicas;
    1 for `suffix`, which computes nothing."""

    http_port: Port = 8000
    """Port of the OpenAI-compatible API on 127.0.0.1; 0: any free one."""

    grpc_port: Port = 50051
    """Port of the gRPC API on 127.0.0.1; 0: any free one."""

    redis_url: str = ""
    """Where sessions are recorded, `redis://host:port/db`. Empty: a Redis of its own, gone when
    this command ends; `none`: in the coordinator's memory."""

    cache_dir: str = ""
    """Where downloaded models are kept. Empty: Hugging Face's own cache."""

    log_level: LogLevel = "info"
    """Least severe messages that the processes log."""

    @model_validator(mode="after")
    def _drafter_has_what_it_runs(self) -> Self:
        if self.drafter == "draft-model" and not self.draft_model:
            raise ValueError("--draft-model is required: --drafter is draft-model")
        if self.feeds_head and not self.head_directory:
            raise ValueError(f"--head is required: --drafter is {self.drafter}")
        if self.exit_layer and self.head and self.drafter == "early-exit":
            raise ValueError(f"--exit-layer {self.exit_layer} contradicts --head, which names it")
        return self

    @model_validator(mode="after")
    def _ranks_have_something_to_share(self) -> Self:
        if self.tensor_parallel_size > 1 and self.model.startswith("table:"):
            raise ValueError(
                f"--tensor-parallel-size {self.tensor_parallel_size} contradicts --model "
                f"{self.model}, which has no weights to share"
            )
        return self

    @property
    def drafts(self) -> bool:
        """Whether there are draft processes at all."""
        return self.drafter not in ("none", "off")

    @property
    def feeds_head(self) -> bool:
        """Whether the draft processes run a head that the target feeds."""
        return self.method in ("eagle", "medusa", "hybrid")

    @property
    def method(self) -> str:
        """The drafter, with `auto` decided."""
        if self.drafter != "auto":
            return self.drafter
        return "hybrid" if self.head_directory else "suffix"

    @property
    def head_directory(self) -> str:
        """The head for drafters that run one: the one given, or the one shipped for the model.

        Those that are shipped are EAGLE heads.
        """
        if self.head or self.drafter == "medusa":
            return self.head
        return str(shipped_head(self.model) or "")

    def contradictions(self) -> list[str]:
        """Options that were given but cannot matter, as sentences for a warning."""
        found = []
        if self.draft_model and self.drafter != "draft-model":
            found.append(
                f"--draft-model {self.draft_model} is not used: --drafter is {self.drafter}, "
                "expected draft-model"
            )
        if self.head and not self.feeds_head and self.drafter != "early-exit":
            found.append(
                f"--head {self.head} is not used: --drafter is {self.drafter}, expected hybrid, "
                "eagle, medusa or early-exit"
            )
        if self.exit_layer and self.drafter != "early-exit":
            found.append(
                f"--exit-layer {self.exit_layer} is not used: --drafter is {self.drafter}, "
                "expected early-exit"
            )
        if self.draft_tree != "none" and not self.feeds_head:
            found.append(
                f"--draft-tree {self.draft_tree} is not used: --drafter is {self.drafter}, "
                "expected hybrid, eagle or medusa"
            )
        if self.draft_replicas > 1 and not self.drafts:
            found.append(
                f"--draft-replicas {self.draft_replicas} is not used: --drafter is {self.drafter}"
            )
        return found
