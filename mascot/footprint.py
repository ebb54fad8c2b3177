"""What a set of params needs: parameters, memory and disk, from the models' configurations alone.

Models are built on torch's meta device, where a tensor has a shape and no memory; no weights are read, downloaded or allocated.
Memory and disk are estimates by the formulas below, in one process; activations are left out.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from pydantic import BaseModel, ConfigDict, PositiveInt
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from mascot.errors import ConfigurationError, ModelError
from mascot.references import MANIFEST, Base, ModelReference, build_base, load_base, loading
from mascot.training.lora import Lora
from mascot.yamlfiles import check

CPU, GPU = torch.float32, torch.bfloat16
"""What models run in: see `mascot.device.precision`."""

GIB = 2**30


class _Section(BaseModel):
    """What is needed of a section; the stages check the rest."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Sampling(_Section):
    max_tokens: PositiveInt


class _Sft(_Section):
    max_tokens: PositiveInt
    lora: Lora


class _Candidates(_Section):
    batch_size: PositiveInt
    sampling: _Sampling


class _Reward(_Section):
    base: str
    lora: Lora | None


class _Speaker(_Section):
    lora: Lora
    prompts: PositiveInt
    group: PositiveInt
    micro_batch: PositiveInt
    sampling: _Sampling


class _Params(_Section):
    base: dict[str, ModelReference]
    speakers: dict[str, Any]
    sft: _Sft
    candidates: _Candidates
    reward: _Reward | None = None
    speaker: _Speaker | None = None


@dataclass(frozen=True)
class Counts:
    """Numbers of parameters, with tied weights counted once.

    `base`: the model, with its score head if it has one, before an adapter; `trainable` and `frozen`: as it is trained (beside an
    adapter, PEFT holds a score head twice: the frozen original, and the copy that is trained).
    """

    base: int
    trainable: int
    frozen: int

    @property
    def share(self) -> float:
        """Of all parameters, adapter included, those that are trained: as PEFT's `get_nb_trainable_parameters` has it."""
        return self.trainable / (self.trainable + self.frozen)


def count(model: Any, lora: LoraConfig | None) -> Counts:
    """Count the parameters of a model on the meta device, and wrap it with an adapter there (None: all weights are trained).

    Raises:
        ValueError: the model has none of the adapter's target modules.
    """
    base = sum(parameter.numel() for parameter in model.parameters())
    if lora:
        model = get_peft_model(model, lora)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trainable = sum(size for size, trained in sizes if trained)
    return Counts(base, trainable, sum(size for size, _ in sizes) - trainable)


def training_bytes(trainable: int) -> int:
    """16 bytes a trainable parameter: itself, its gradient and the two moments of AdamW (arXiv 1711.05101), each in fp32.

    fp32 holds on a GPU too: PEFT keeps adapters of a bf16 model in fp32, and a reward model is trained in fp32.
    """
    return 4 * 4 * trainable


def cache_bytes(config: Any, sequences: int, tokens: int, dtype: torch.dtype) -> int:
    """A key and a value for each token in each layer: 2 * layers * KV heads * head size * bytes * tokens * sequences.

    `tokens`: of prompt and reply, for each sequence. An upper bound: prompts may be shorter, and layers may attend to a window only.
    """
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * kv_heads * head_size * dtype.itemsize * tokens * sequences


def logits_bytes(config: Any, sequences: int, tokens: int) -> int:
    """A logit in fp32 for each word of the vocabulary at each token of a reply: sequences * tokens * vocabulary * 4 bytes."""
    return sequences * tokens * config.vocab_size * 4


def footprint(values: Any, where: str, bases: Path) -> str:
    """The table of a set of params: of the policy, and of the reward model if there is the section `reward`.

    Args:
        values: the params as plain values.
        where: names them in errors and in the title.
        bases: the folder whose `<slot>` holds what the stage `base` made. A slot that is not there, or of another reference,
            is looked up by its reference: the Hub or its local cache, or the folder.

    Raises:
        ConfigurationError: a value that is needed is missing or wrong.
        ModelError: a configuration cannot be had.
    """
    params: _Params = check(values, _Params, where)
    parts = [f"Footprint of {where}: estimates from the models' configurations; no weights were read.", _policy(params, where, bases)]
    if params.reward:
        parts.append(_reward(params, params.reward, where, bases))
    parts.append(
        "Activations are not included, and these are estimates, for one process.\n"
        "GPU bf16 is for generation and `speaker`, which holds the reward model and the encoder beside the policy; `sft` and `reward`\n"
        "train over weights in fp32 on a GPU as well: see the frozen weights under CPU fp32."
    )
    return "\n\n".join(parts)


def _policy(params: _Params, where: str, bases: Path) -> str:
    stages, lora = (["sft", "speaker"], params.speaker.lora) if params.speaker else (["sft"], params.sft.lora)
    base = _find(params, "policy", where, bases)
    config, counts = _measure(base, lora, "CAUSAL_LM", f"{where}: {stages[-1]}.lora")
    text = config.get_text_config(decoder=True)
    if params.speaker:
        sequences, reply = params.speaker.prompts * params.speaker.group, params.speaker.sampling.max_tokens
    else:
        sequences, reply = params.candidates.batch_size, params.candidates.sampling.max_tokens
    prompt = params.sft.max_tokens
    on_cpu, on_gpu = (cache_bytes(text, sequences, prompt + reply, dtype) for dtype in (CPU, GPU))
    memory = [(f"KV cache of a rollout: {sequences:,} x ({prompt:,} + {reply:,}) tokens", on_cpu, on_gpu)]
    if params.speaker:
        size = logits_bytes(text, params.speaker.micro_batch, reply)
        memory.append((f"logits of an update: {params.speaker.micro_batch:,} x {reply:,} tokens", size, size))
    return _table(base, config, counts, lora, stages, len(params.speakers), memory)


def _reward(params: _Params, reward: _Reward, where: str, bases: Path) -> str:
    base = _find(params, reward.base, where, bases)
    config, counts = _measure(base, reward.lora, "SEQ_CLS", f"{where}: reward.lora")
    return _table(base, config, counts, reward.lora, ["reward"], len(params.speakers), [])


def _find(params: _Params, slot: str, where: str, bases: Path) -> Base:
    """The base of a slot, built or not; of one that is not built only the configuration can be loaded."""
    if slot not in params.base:
        raise ConfigurationError(f"{where}: `base.{slot}` is missing; add its model reference.")
    model = params.base[slot]
    if (bases / slot / MANIFEST).is_file() and (built := load_base(bases / slot)).reference == model.reference:
        return built
    if model.reference.startswith("path:"):
        folder = Path(model.reference.removeprefix("path:")).expanduser()
        if not folder.is_dir():  # transformers would take it for a name on the Hub
            raise ModelError(f"{model.reference}: there is no such folder. Correct the path.")
        return Base(slot, model.reference, str(folder), None, identity="")
    if model.reference.startswith("pypi:"):
        raise ModelError(
            f"{model.reference}: is not in {bases / slot}, and its configuration is inside the package. Run `dvc repro base@{slot}`."
        )
    with tempfile.TemporaryDirectory() as temporary:  # of a Hub model, the stage keeps its reference alone
        build_base(model, Path(temporary) / slot)
        return load_base(Path(temporary) / slot)


def _measure(base: Base, lora: Lora | None, task: str, where: str) -> tuple[Any, Counts]:
    """The configuration of a base, and its counts as a causal language model or as one with a score head, by `task`."""
    with loading(base):
        config = AutoConfig.from_pretrained(**base.load_arguments)
        with torch.device("meta"):
            if task == "CAUSAL_LM":
                model = AutoModelForCausalLM.from_config(config)
            else:
                config.num_labels = 1
                model = AutoModelForSequenceClassification.from_config(config)
    try:
        return config, count(model, LoraConfig(task_type=task, **lora.arguments()) if lora else None)
    except ValueError as error:
        raise ConfigurationError(f"{where}: does not fit {base.reference}: {str(error).splitlines()[0]:.300}") from error


def _table(
    base: Base, config: Any, counts: Counts, lora: Lora | None, stages: list[str], speakers: int, memory: list[tuple[str, int, int]]
) -> str:
    """The lines of one model, which each of `stages` trains once a Speaker. `memory`: rows of what it takes beside its weights."""
    shape = "all weights"
    if lora:
        targets = lora.target_modules if isinstance(lora.target_modules, str) else ", ".join(lora.target_modules)
        shape = f"LoRA, r = {lora.r}, on {targets}"
    state, result, copies = training_bytes(counts.trainable), 4 * counts.trainable, len(stages) * speakers
    stored = config.dtype or torch.float32
    memory = [
        ("frozen weights: 4 or 2 bytes a parameter", counts.frozen * CPU.itemsize, counts.frozen * GPU.itemsize),
        ("training state: 16 bytes a trainable parameter", state, state),
        *memory,
    ]
    memory.append(("together", sum(cpu for _, cpu, _ in memory), sum(gpu for _, _, gpu in memory)))
    return "\n".join(
        [
            f"{base.slot}: {base.reference}",
            f"  trained by {' and '.join(stages)}: {shape}",
            _line("parameters", f"{counts.base:,}"),
            _line("trainable parameters", f"{counts.trainable:,}", f"{100 * counts.share:.3f} %"),
            _line("memory", "CPU fp32", "GPU bf16"),
            *(_line(f"  {label}", _gib(cpu), _gib(gpu)) for label, cpu, gpu in memory),
            "  disk",
            _line(
                f"  base{', stays on the Hub' if base.revision else ''}: {str(stored).removeprefix('torch.')}",
                _gib(counts.base * stored.itemsize),
            ),
            _line(
                f"  {'adapters' if lora else 'models'}, fp32: {copies:,} of {_gib(result)}, for {speakers:,} Speakers",
                _gib(copies * result),
            ),
        ]
    )


def _line(label: str, *cells: str) -> str:
    return f"  {label:<58}{''.join(f'{cell:>14}' for cell in cells)}".rstrip()


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f} GiB"
