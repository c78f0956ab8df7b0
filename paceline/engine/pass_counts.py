"""What the passes of a worker have come to since it started.

The device thread adds plain numbers, which others read whenever they like: no lock, no library.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class PassCounts:
    """Sums over all passes."""

    num_passes: int = 0
    num_rows: int = 0
    """Tokens that were run, those of prompts too; of drafters, what they count as one."""
    num_sequences: int = 0
    seconds: float = 0.0

    def ran(self, num_rows: int, num_sequences: int, seconds: float) -> None:
        """One more pass."""
        self.num_passes += 1
        self.num_rows += num_rows
        self.num_sequences += num_sequences
        self.seconds += seconds
