"""What a target divides by behind its output matrix: Granite's models do, others do not."""

from transformers import PreTrainedModel


def logits_scaling(target: PreTrainedModel) -> float:
    """The divisor; 1 for most."""
    return float(getattr(target.config.get_text_config(), "logits_scaling", 1.0))
