"""The drafters by name: what `--drafter` may be."""

from draft_service.config import DraftSettings
from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.prompt_lookup import PromptLookupDrafter
from draft_service.proposer import Drafter
from paceline.engine.grammar import Grammars
from paceline.engine.worker_model import WorkerModel


def needs_model(name: str) -> bool:
    """Whether the drafter runs a model of its own."""
    return name in ("draft-model", "self")


def make_drafter(settings: DraftSettings, loaded: WorkerModel | None) -> Drafter:
    """The drafter that the settings name, on a model if it needs one."""
    if loaded is None:
        return PromptLookupDrafter()
    grammars = Grammars.of_tokenizer(loaded.tokenizer_files, loaded.model.vocab_size)
    return ModelDrafter(loaded.model, grammars)
