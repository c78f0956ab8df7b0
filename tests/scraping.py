"""What a scrape reads: samples by name and labels."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paceline.metrics import Instruments

Samples = dict[str, float]
"""By name without `paceline_`, with labels as `name{label=value,…}` in the order of their names."""


def samples_of(text: str) -> Samples:
    """All samples of an exposition in the text format."""
    return {
        _key(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(instruments: Instruments) -> Samples:
    """All samples as they are now."""
    return samples_of(generate_latest(instruments.registry).decode())


def total(samples: Samples, name: str) -> float:
    """The sum of all samples of a name."""
    return sum(value for key, value in samples.items() if key.partition("{")[0] == name)


def _key(name: str, labels: dict[str, str]) -> str:
    shown = ",".join(f"{label}={labels[label]}" for label in sorted(labels))
    return name.removeprefix("paceline_") + (f"{{{shown}}}" if shown else "")
