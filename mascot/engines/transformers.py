"""The engine in process: transformers, batched across requests, adapters merged in turn.

What makes it fast on a CPU: requests of one adapter are answered together; what all prompts of a batch begin with is read once;
each prompt is read once for its `n` samples; the adapter is merged into the weights before decoding.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from mascot.device import precision
from mascot.engines.types import Adapter, Batch, Completion, Request
from mascot.errors import DataError
from mascot.files import content_hash
from mascot.models import load_language_model, load_tokenizer, load_window, prompt_ids
from mascot.references import load_base

VERSION = 2
"""Raise it when the same request gets another answer than before: it is part of every journal key."""


class TransformersEngine:
    """Answers requests with a local model.

    Args:
        base: the folder that the stage `base` made.
        batch_size: sequences that are decoded together (a request of more samples is a batch of its own). Samples depend on it,
            so it is a parameter and part of the batches' keys.
    """

    def __init__(self, base: Path, batch_size: int) -> None:
        self.base = load_base(base)
        self.batch_size = batch_size
        self.tokenizer = load_tokenizer(self.base)
        self.window = load_window(self.base)
        self._pristine: dict[str, torch.Tensor] = {}
        self._merged: Adapter | None = None
        self._grammars: dict[str, Any] = {}

    @cached_property
    def model(self) -> Any:
        """The language model, loaded when the first batch needs it."""
        return load_language_model(self.base)[0]

    @property
    def identity(self) -> Any:
        return ["transformers", VERSION, self.base.identity, str(precision())]

    def prompt_ids(self, request: Request) -> list[int]:
        """The token ids of a request's messages under the model's chat template, up to where the answer begins."""
        return prompt_ids(self.tokenizer, request.messages)

    def plan(self, requests: Sequence[Request]) -> list[Batch]:
        """Batches of like requests (adapter, sampling, constraint), of like prompt length, of at most `batch_size` sequences."""
        lengths: dict[str, int] = {}
        for request in requests:
            lengths[request.id] = length = len(self.prompt_ids(request))
            if length + request.sampling.max_tokens > self.window:
                raise DataError(
                    f"{request.id}: the prompt has {length} tokens and the reply may have {request.sampling.max_tokens}, "
                    f"but the window of {self.base.reference} is {self.window}. Shorten this context or lower `max_tokens`."
                )

        def kind(request: Request) -> str:
            adapter = request.adapter.sha256 if request.adapter else ""
            return repr((adapter, request.sampling, request.json_schema, request.regex))

        batches: list[list[Request]] = []
        for request in sorted(requests, key=lambda request: (kind(request), lengths[request.id])):
            last = batches[-1] if batches else []
            if last and kind(last[0]) == kind(request) and sum(one.n for one in last) + request.n <= self.batch_size:
                last.append(request)
            else:
                batches.append([request])
        return [tuple(batch) for batch in batches]

    def run(self, batches: Sequence[Batch]) -> Iterator[tuple[int, list[list[Completion]]]]:
        for position, batch in enumerate(batches):
            self._use(batch[0].adapter)
            yield position, self._answer(batch)

    @torch.inference_mode()
    def _answer(self, batch: Batch) -> list[list[Completion]]:
        prompts = [self.prompt_ids(request) for request in batch]
        copies = torch.tensor([request.n for request in batch])
        ids, mask, cache = self._read_prompts(prompts, copies)
        sampling = batch[0].sampling
        drawn = sampling.temperature > 0
        options: dict[str, Any] = {"do_sample": drawn, "max_new_tokens": sampling.max_tokens}
        if drawn:
            options |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
        if constraint := self._constraint(batch[0]):
            options["logits_processor"] = [constraint]
        seed = hashlib.sha256(content_hash([request.draw() for request in batch]).encode()).digest()[:8]
        torch.manual_seed(int.from_bytes(seed, "big") >> 1)
        output = self.model.generate(ids, attention_mask=mask, past_key_values=cache, pad_token_id=self.tokenizer.pad_token_id, **options)
        answers = iter([self._completion(row) for row in output[:, ids.shape[1] :].tolist()])
        return [list(itertools.islice(answers, request.n)) for request in batch]

    def _read_prompts(self, prompts: list[list[int]], copies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, DynamicCache]:
        """Read the shared beginning once, the rest of each prompt once; repeat each `copies` times.

        Returns: ids and mask, each [sequences, width], laid out as (shared beginning, padding, rest), and the cache of all but
        the last position. Positions follow the mask, so padding in the middle is as good as padding on the left.
        """
        same = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*(prompt[:-1] for prompt in prompts), strict=False))
        shared = sum(1 for _ in same)
        width = max(len(prompt) for prompt in prompts)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor(
            [prompt[:shared] + [pad] * (width - len(prompt)) + prompt[shared:] for prompt in prompts], device=self.model.device
        )
        mask = torch.tensor(
            [[1] * shared + [0] * (width - len(prompt)) + [1] * (len(prompt) - shared) for prompt in prompts], device=self.model.device
        )
        cache = DynamicCache(config=self.model.config)
        if shared:
            self.model(ids[:1, :shared], past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(len(prompts))
        if width - 1 > shared:
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            self.model(
                ids[:, shared:-1],
                attention_mask=mask[:, :-1],
                position_ids=positions[:, shared:-1],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        rows = torch.repeat_interleave(torch.arange(len(prompts)), copies).to(self.model.device)
        cache.batch_select_indices(rows)
        return ids[rows], mask[rows], cache

    def _completion(self, ids: list[int]) -> Completion:
        end = self.model.generation_config.eos_token_id
        ends = set(end if isinstance(end, list) else [end]) | {self.tokenizer.eos_token_id}
        stop = next((place for place, token in enumerate(ids) if token in ends), None)
        kept = ids if stop is None else ids[: stop + 1]
        text = str(
            self.tokenizer.decode(kept if stop is None else kept[:-1], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )
        return Completion(text, "length" if stop is None else "stop", tuple(kept))

    def _constraint(self, request: Request) -> Any:
        """A logits processor that holds the text to the request's grammar (one use each), or None."""
        source = request.json_schema or request.regex
        if source is None:
            return None
        import xgrammar
        from xgrammar.contrib.hf import LogitsProcessor

        if source not in self._grammars:
            info = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=self.model.config.vocab_size)
            compiler = xgrammar.GrammarCompiler(info)
            self._grammars[source] = compiler.compile_json_schema(source) if request.json_schema else compiler.compile_regex(source)
        return LogitsProcessor(self._grammars[source])

    def _use(self, adapter: Adapter | None) -> None:
        """Merge `adapter` into the weights, from the untouched originals each time, so that the order of use leaves no trace."""
        if adapter == self._merged:
            return
        from peft import PeftModel

        for name, weight in self._pristine.items():
            self.model.get_parameter(name).data.copy_(weight)
        self._merged = None
        if adapter is not None:
            wrapped = PeftModel.from_pretrained(self.model, adapter.path)
            for name, module in wrapped.get_base_model().named_modules():
                if hasattr(module, "get_delta_weight"):
                    self._pristine.setdefault(f"{name}.weight", module.base_layer.weight.detach().clone())
            self.model = wrapped.merge_and_unload().eval()
            self._merged = adapter


def open_engine(base: Path, batch_size: int) -> TransformersEngine:
    return TransformersEngine(base, batch_size)
