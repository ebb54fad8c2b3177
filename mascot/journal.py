"""The journal: every finished generation or judgment, recorded once under the hash of all that determines it.

A stage that was killed, a persona that was edited and edited back, a margin that was changed: none pays twice for the same
request. It is one SQLite file in the user's cache folder (`MASCOT_CACHE`), safe for several processes; deleting it loses
nothing but time.
"""

import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mascot.errors import OutputError
from mascot.files import cache_folder, content_hash
from mascot.progress import progress

_KEYS_A_QUERY = 500
_OPENING_TRIES = 100


class Journal:
    """Finished work by key. Values are JSON; a value is written in one transaction, so it is there whole or not at all."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "journal.sqlite"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._database.execute("PRAGMA busy_timeout = 60000")
            self._use_write_ahead_log()
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("CREATE TABLE IF NOT EXISTS finished (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        except (OSError, sqlite3.Error) as error:
            raise self._failure(error) from error

    def _use_write_ahead_log(self) -> None:
        """Switch the file to the write-ahead log. SQLite does not wait for its lock here when two processes open a new file at once."""
        for attempt in range(_OPENING_TRIES):
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or attempt == _OPENING_TRIES - 1:
                    raise
                time.sleep(0.1)

    def get(self, keys: Sequence[str]) -> dict[str, Any]:
        """The values of those `keys` that are recorded."""
        found: dict[str, Any] = {}
        try:
            for start in range(0, len(keys), _KEYS_A_QUERY):
                part = keys[start : start + _KEYS_A_QUERY]
                marks = ",".join("?" * len(part))
                for key, value in self._database.execute(f"SELECT key, value FROM finished WHERE key IN ({marks})", part):
                    found[key] = json.loads(zlib.decompress(value))
        except (sqlite3.Error, zlib.error, ValueError) as error:
            raise self._failure(error) from error
        return found

    def put(self, key: str, value: Any) -> None:
        """Record a finished piece of work. The first record of a key stays: two processes that raced agree on it."""
        blob = zlib.compress(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode())
        try:
            self._database.execute("INSERT OR IGNORE INTO finished VALUES (?, ?)", (key, blob))
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def close(self) -> None:
        self._database.close()

    def _failure(self, error: Exception) -> OutputError:
        return OutputError(
            f"{self.path}: the journal cannot be used ({error}). Free disk space, set MASCOT_CACHE to a folder that you can write to, "
            "or delete the file: it is a cache, only time is lost."
        )


def recorded(
    journal: Journal,
    determinants: Sequence[Any],
    sizes: Sequence[int],
    run: Callable[[Sequence[int]], Iterator[tuple[int, Any]]],
    label: str,
    unit: str,
) -> list[Any]:
    """Do those pieces of work that the journal does not have; return the values of all, in order.

    Args:
        determinants: for each piece, the JSON-like value of all that determines its outcome; its hash is the key.
        sizes: how many units of work each piece counts for in the progress display.
        run: does the pieces with the given indices and yields (index, JSON-like value) as each is finished, in any order.
        label, unit: what the progress display calls the work and its units.
    """
    keys = [content_hash(determinant) for determinant in determinants]
    values = journal.get(keys)
    with progress(label, sum(sizes), unit) as shown:
        missing: dict[str, int] = {}
        for index, key in enumerate(keys):
            if key in values:
                shown.advance(sizes[index], reused=True)
            else:
                missing.setdefault(key, index)
        for index, value in run(list(missing.values())) if missing else ():
            journal.put(keys[index], value)
            values[keys[index]] = value
            shown.advance(sizes[index])
    return [values[key] for key in keys]
