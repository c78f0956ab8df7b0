"""What a target keeps and sends for the head that its drafts run."""

from dataclasses import dataclass

from paceline.engine.eagle_checkpoint import read_projection
from paceline.engine.feature_projection import FeatureProjection
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import read_head_config
from paceline.heads.kind import head_kind
from paceline.heads.medusa_config import read_medusa_config


@dataclass(frozen=True, slots=True)
class HeadFeatures:
    """Of every token."""

    layers: tuple[int, ...]
    """Whose hidden states are kept."""
    projection: FeatureProjection | None = None
    """What they go through on their way out."""


def features_of_head(
    head: str, num_layers: int, hidden_size: int, allow_pickle: bool = False
) -> HeadFeatures:
    """What a target of `num_layers` layers keeps and sends for the head in the directory `head`.

    Raises:
        InvalidConfig: there is no head, it is fed with nothing, or its config cannot be followed.
    """
    match head_kind(head):
        case "medusa":
            return HeadFeatures(read_medusa_config(head).feature_layers(num_layers))
        case "eagle":
            config = read_head_config(head)
            projection = read_projection(head, config, hidden_size, allow_pickle)
            return HeadFeatures(config.feature_layers(num_layers), projection)
        case "early-exit":
            raise InvalidConfig(
                f"head {head!r}: is a trained exit, which is fed with nothing; expected no head on "
                "a target whose drafts run one"
            )
