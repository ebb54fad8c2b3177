"""What an engine is: something that answers chat requests, wherever the model runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from mascot.dialogue.types import Message

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    `max_tokens` caps a completion; `temperature` 0 is greedy; the cuts `top_k` 0, `top_p` 1 and `min_p` 0 are off.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter by name, place and content (`sha256`, see `mascot.adapters`). Two of one name but other content differ."""

    name: str
    path: Path = field(compare=False)
    sha256: str


@dataclass(frozen=True)
class Request:
    """One prompt, `n` samples of an answer.

    `id` joins the answer to the question and decides nothing. `json_schema` or `regex` (at most one) constrains the text.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling
    seed: int
    n: int = 1
    adapter: Adapter | None = None
    json_schema: str | None = None
    regex: str | None = None

    def determinants(self) -> dict[str, Any]:
        """All that determines the answer, given a model: what the journal's key is made of."""
        sampling = self.sampling
        value: dict[str, Any] = {
            "messages": list(self.messages),
            "sampling": [sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p],
            "seed": self.seed,
            "n": self.n,
        }
        optional = {"adapter": self.adapter and self.adapter.sha256, "json_schema": self.json_schema, "regex": self.regex}
        return value | {name: given for name, given in optional.items() if given}

    def draw(self) -> dict[str, Any]:
        """What the random draws depend on: everything but the adapter, so that systems which are compared get the same draws."""
        return {name: value for name, value in self.determinants().items() if name != "adapter"}


@dataclass(frozen=True)
class Completion:
    """One sampled answer. `token_ids` end with the end token if there was one; they are None where a server keeps them."""

    text: str
    finish_reason: FinishReason
    token_ids: tuple[int, ...] | None = None


Batch = tuple[Request, ...]


class Engine(Protocol):
    """A model that answers requests.

    Work is cut into batches from the full list of requests by `plan`. A batch is the unit that the journal keeps: where samples
    depend on what they were drawn beside (in process), it holds many requests; where they do not (a server), it holds one.
    """

    @property
    def identity(self) -> Any:
        """JSON-like: engine and model content. Part of every journal key."""

    def plan(self, requests: Sequence[Request]) -> list[Batch]:
        """Cut all requests into batches, the same way for the same list. Raises `DataError` for one that cannot fit the window."""

    def run(self, batches: Sequence[Batch]) -> Iterator[tuple[int, list[list[Completion]]]]:
        """Answer the batches; yield (position in `batches`, completions a request) as each is finished, in any order."""
