"""Progress of long work: a bar with rate and time left on a terminal, a plain line now and then in a log."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Counts finished units of work. Use it through `progress`."""

    def __init__(self, label: str, total: int, unit: str) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = self.reused = 0
        self.reused_from = "the journal"
        self.start = self.last = time.monotonic()
        self.bar = tqdm(total=total, desc=label, unit=f" {unit}", file=sys.stderr) if sys.stderr.isatty() else None

    def advance(self, count: int, reused: bool = False) -> None:
        """Add `count` finished units; `reused` ones came from `reused_from` and say nothing about the rate."""
        self.done += count
        self.reused += count if reused else 0
        if self.bar is not None:
            self.bar.update(count)
        elif time.monotonic() - self.last > SECONDS_BETWEEN_LINES:
            self._line()

    def _line(self) -> None:
        self.last = time.monotonic()
        rate = (self.done - self.reused) / max(self.last - self.start, 1e-9)
        left = f", {(self.total - self.done) / rate:.0f} s left" if rate and self.done < self.total else ""
        reused = f" ({self.reused} from {self.reused_from})" if self.reused else ""
        print(f"{self.label}: {self.done}/{self.total} {self.unit}{reused}, {rate:.1f}/s{left}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        else:
            self._line()


@contextmanager
def progress(label: str, total: int, unit: str) -> Generator[Progress]:
    """Show the progress of `total` units of work called `label` until the block ends."""
    shown = Progress(label, total, unit)
    try:
        yield shown
    finally:
        shown.close()
