"""Reading and writing files so that a half-written one is never seen.

Every writer fills a hidden neighbour first and renames it when complete. A failure (full disk, read-only folder) removes the
neighbour, leaves what was there before, and becomes an `OutputError` that names the path.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from mascot.errors import DataError, OutputError

_WRITING = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
}


def cache_folder() -> Path:
    """The folder for everything that can be had again: `MASCOT_CACHE`, by default `~/.cache/mascot`."""
    return Path(os.environ.get("MASCOT_CACHE") or Path.home() / ".cache" / "mascot")


@contextmanager
def writing(path: Path) -> Generator[Path]:
    """Yield a temporary neighbour of `path`, for a file or a folder; rename it to `path` when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        yield temporary
        if temporary.is_dir() and path.is_dir():
            shutil.rmtree(path)
        temporary.replace(path)
    except Exception as error:
        if not _is_about_writing(error, path):
            raise
        raise OutputError(
            f"{path}: cannot be written ({error}). Free some disk space or make the folder writable, then run again; "
            "nothing partial was left."
        ) from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        elif temporary.exists():
            temporary.unlink()


def _remove_leftovers(path: Path) -> None:
    """Remove what processes that were killed left beside `path`."""
    for leftover in path.parent.glob(f".{path.name}.*.partial"):
        owner = leftover.name.split(".")[-2]
        if owner.isdigit() and not Path("/proc", owner).exists() and Path("/proc").is_dir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)


def _is_about_writing(error: Exception, path: Path) -> bool:
    """Whether the disk or its permissions are to blame; safetensors and polars have errors of their own for that."""
    if isinstance(error, OSError):
        here = error.filename is None or str(error.filename).startswith(str(path.parent)) or error.errno == errno.ENOTDIR
        # polars raises them without a number.
        return here and (error.errno in _WRITING or error.errno is None)
    return type(error).__name__ in ("SafetensorError", "ComputeError")


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    with writing(path) as temporary:
        frame.write_parquet(temporary, compression="zstd")


def read_parquet(path: Path, made_by: str, columns: Mapping[str, Any]) -> pl.DataFrame:
    """Read a pipeline artifact.

    Args:
        made_by: the stage that a missing or broken file should send the user to.
        columns: the columns that it must have, with their types.
    """
    way_out = f"Run `dvc repro {made_by}`, or `dvc pull` it."
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read ({error}). {way_out}") from error
    for name, dtype in columns.items():
        if name not in frame.columns:
            raise DataError(f"{path}: the column `{name}` is missing. {way_out}")
        if frame.schema[name] != dtype:
            raise DataError(f"{path}: the column `{name}` is {frame.schema[name]}, and must be {dtype}. {way_out}")
    return frame


def write_json(value: Any, path: Path) -> None:
    """Write JSON that is the same for the same value: keys sorted, floats to 6 decimals, NaN refused."""
    with writing(path) as temporary:
        temporary.write_text(json.dumps(_rounded(value), indent=2, sort_keys=True, allow_nan=False) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def content_hash(value: Any) -> str:
    """The sha256 of a JSON-like value in canonical form."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_hash(folder: Path) -> str:
    """The sha256 over the names and contents of all files below `folder`."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return content_hash([[name, file_hash(folder / name)] for name in names])
