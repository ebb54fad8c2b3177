"""What `tests/test_grpo.py` runs in two processes: one update on recorded rollouts; every rank leaves its adapter."""

import json
import sys
from pathlib import Path

from peft import get_peft_model_state_dict
from safetensors.torch import save_file
from test_grpo import LOOSE, LORA, PROMPTS, SETTINGS, Guards, letters, recorded, replace, texts, train_grpo, vowels
from transformers import TrainerCallback

from mascot.references import load_base
from mascot.training.launch import is_main_process


class LeaveAdapter(Guards):
    """Guards that also save this rank's adapter at the end."""

    def on_train_end(self, args, state, control, model=None, **_):
        rank = 0 if is_main_process() else 1
        adapter = get_peft_model_state_dict(model.module if hasattr(model, "module") else model, adapter_name="default")
        save_file({name: tensor.contiguous().clone() for name, tensor in adapter.items()}, folder / f"rank{rank}.safetensors")


base, start, folder = load_base(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
assert issubclass(LeaveAdapter, TrainerCallback)
settings = replace(SETTINGS, rollouts=1, updates=1, micro_batch=4)
rollout = recorded(base, json.loads((folder / "said.json").read_text()))
train_grpo(
    base,
    start,
    LORA,
    PROMPTS,
    {"vowels": (vowels, 1.0)},
    LeaveAdapter(LOOSE, texts, letters),
    settings,
    [],
    folder / "two" / "model",
    folder / "two" / "curves",
    rollout,
)
