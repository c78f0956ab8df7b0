"""Growing pauses between tries, so that nobody is asked too often, nor by all at once."""

import asyncio
import random


class Pauses:
    """Doubles from `first_s` to `longest_s`; each is drawn from the upper half of its length."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.next_s = first_s
        """Most that the next pause can take."""

    def reset(self) -> None:
        """It has worked: begin with the shortest again."""
        self.next_s = self._first_s

    async def sleep(self) -> None:
        """One pause."""
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, self._longest_s)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
