"""LoRA adapters on disk: a folder with the weights, PEFT's configuration, and a manifest that says which base they belong to."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mascot.errors import ModelError
from mascot.files import content_hash, file_hash, write_json
from mascot.references import Base

MANIFEST = "adapter.json"
_CONTENT = ("adapter_model.safetensors", "adapter_config.json")


@dataclass(frozen=True)
class AdapterManifest:
    """What an adapter belongs to: the base's reference and content hash."""

    base_reference: str
    base_identity: str


def adapter_hash(folder: Path, base: Base) -> str:
    """The content hash of the adapter in `folder`, after checking that it belongs to `base`.

    Raises:
        ModelError: no adapter there, or one that was trained on another base.
    """
    try:
        manifest = AdapterManifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        content = [file_hash(folder / name) for name in _CONTENT]
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"{folder}: holds no adapter that can be read ({error}). Run `dvc repro` for the stage that makes it, or `dvc pull` it."
        ) from error
    if manifest.base_identity != base.identity:
        raise ModelError(
            f"{folder}: this adapter belongs to another base: it was trained on {manifest.base_reference} "
            f"({manifest.base_identity[:12]}), and {base.slot} is {base.reference} ({base.identity[:12]}). "
            "Train it anew, or restore that base."
        )
    return content_hash(content)


def save_adapter(model: Any, folder: Path, base: Base) -> None:
    """Save the adapter of a `PeftModel` trained on `base`, alone and with its manifest; nothing in it names a machine or a time."""
    config = model.peft_config["default"]
    config.base_model_name_or_path, config.revision = (base.name, base.revision) if base.revision else (base.reference, None)
    model.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    write_manifest(folder, base)


def write_manifest(folder: Path, base: Base) -> None:
    """Say in `folder`, which holds an adapter, that it was trained on `base`."""
    write_json(asdict(AdapterManifest(base.reference, base.identity)), folder / MANIFEST)
