"""The engine over HTTP: any OpenAI-compatible endpoint, many requests under way at once.

Where it is and how hard to press it is environment, never params and never part of a journal key:

- `MASCOT_BASE_URL`: the endpoint, with its `/v1`; required.
- `MASCOT_API_KEY`: its key, if it wants one. Stays out of errors and logs.
- `MASCOT_MODEL`: the name that it serves the base model under; by default the Hub repository of an `hf:` reference.
- `MASCOT_CONCURRENCY`: requests under way at once, by default 32. `MASCOT_TIMEOUT`: seconds that one try may take, by default 300.

An adapter is served under `<name>-<first 12 digits of its sha256>`, so that no server answers with an older one of the same name.
What the endpoint serves is taken on trust: the journal's keys name the base model, not the server. What a request does not say is the
server's to choose: `min_p` while it is off, and whether the model thinks first. In process it does not: for the same over vLLM, start it
with `--default-chat-template-kwargs '{"enable_thinking": false}'`.
"""

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from openai import APIStatusError, AsyncOpenAI, OpenAIError, Timeout
from openai.types.chat import ChatCompletion

from mascot.engines.types import Batch, Completion, Request
from mascot.errors import ConfigurationError, DataError, MascotError
from mascot.references import load_base

VERSION = 1
"""Raise it when the same request gets another answer than before: it is part of every journal key."""

RETRIES = 8
"""Of one request after a lost connection, 408, 409, 429 or 5xx, with the client's growing waits: some 40 s if all fail at once."""

_TOO_LONG = re.compile(r"context.?(length|window|size)|max(imum)?.model.len|max_tokens must be at least", re.IGNORECASE)


class HttpEngine:
    """Answers requests through the endpoint of the environment.

    Args:
        base: the folder that the stage `base` made: what model the endpoint is expected to serve.

    Raises:
        ConfigurationError: the environment names no usable endpoint.
    """

    def __init__(self, base: Path) -> None:
        self.base = load_base(base)
        self.model = os.environ.get("MASCOT_MODEL") or (self.base.name if self.base.revision else self.base.reference)
        self.concurrency = int(_number("MASCOT_CONCURRENCY", 32, whole=True))
        self.timeout = _number("MASCOT_TIMEOUT", 300)
        self._url = os.environ.get("MASCOT_BASE_URL", "").strip()
        self._key = os.environ.get("MASCOT_API_KEY", "").strip()
        if not _is_url(self._url):
            problem = "is not an http(s) URL" if self._url else "is not set"
            raise ConfigurationError(
                f"MASCOT_BASE_URL {problem}. The engine `http` needs an OpenAI-compatible endpoint: start one that serves "
                f"{self.base.reference} and run `export MASCOT_BASE_URL=http://localhost:8000/v1`, or choose `engine: transformers`."
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise ConfigurationError("MASCOT_API_KEY holds characters that no HTTP header may carry. Set it to the key alone.")

    @property
    def identity(self) -> Any:
        return ["http", VERSION, self.base.identity]

    def plan(self, requests: Sequence[Request]) -> list[Batch]:
        """One request a batch: its samples depend on no other of ours. The server knows the window and refuses what does not fit."""
        return [(request,) for request in requests]

    def run(self, batches: Sequence[Batch]) -> Iterator[tuple[int, list[list[Completion]]]]:
        """Answer the batches, at most `concurrency` of them at once.

        The first that fails ends the run, after all that were finished by then; what is under way is cancelled, as it is when the
        consumer stops.

        Raises:
            ConfigurationError: the endpoint cannot be reached, does not let us in, or does not know the model.
            DataError: it refused one of the requests, or gave an answer that cannot be used.
        """
        todo = iter(enumerate(batches))
        under_way: dict[asyncio.Task[list[list[Completion]]], int] = {}
        with asyncio.Runner() as runner:
            client = AsyncOpenAI(
                base_url=self._url,
                api_key=self._key or "none",
                timeout=Timeout(self.timeout, connect=min(self.timeout, 10.0)),
                max_retries=RETRIES,
            )
            try:
                while True:
                    for position, batch in islice(todo, self.concurrency - len(under_way)):
                        under_way[runner.get_loop().create_task(self._answer(client, batch))] = position
                    if not under_way:
                        return
                    done = runner.run(_first(under_way))
                    for task in sorted(done, key=lambda task: task.exception() is not None):
                        yield under_way.pop(task), task.result()
            finally:
                runner.run(_stop(client, under_way))

    async def _answer(self, client: AsyncOpenAI, batch: Batch) -> list[list[Completion]]:
        return [await self._samples(client, request) for request in batch]

    async def _samples(self, client: AsyncOpenAI, request: Request) -> list[Completion]:
        """All `n` samples. Missing ones are asked for once more, under a seed that the first `n` did not use.

        vLLM seeds the samples of a request with `seed`, `seed + 1`, ...: the same seed again would draw the same texts again.
        """
        found = await self._ask(client, request, request.n, request.seed)
        if len(found) < request.n:
            found += await self._ask(client, request, request.n - len(found), request.seed + request.n)
        if len(found) < request.n:
            raise DataError(
                f"{request.id}: the endpoint gave {len(found)} of {request.n} samples, asked twice. "
                "Use a server that honours `n`, or ask for fewer."
            )
        return found

    async def _ask(self, client: AsyncOpenAI, request: Request, n: int, seed: int) -> list[Completion]:
        """At most `n` samples, in the server's order."""
        body, answer, failure = self._body(request), None, None
        try:
            answer = await client.chat.completions.create(**body, n=n, seed=seed)
        except OpenAIError as error:
            failure = self._failure(request, error)
        except json.JSONDecodeError:
            answer = "broken JSON"
        if failure:
            raise failure  # out here, so that the client's error, which may repeat the key, is not its context
        if not isinstance(answer, ChatCompletion) or not isinstance(answer.choices, list):
            raise ConfigurationError(
                f"{request.id}: what the endpoint sent is no chat completion ({self._clean(str(answer))}). "
                "See that MASCOT_BASE_URL ends in /v1."
            )
        return [self._completion(request, choice) for choice in sorted(answer.choices, key=lambda choice: choice.index)[:n]]

    def _body(self, request: Request) -> dict[str, Any]:
        """What to send, less `n` and `seed`. At temperature 0 the cuts decide nothing, and only standard fields are sent.

        `top_k` is sent as -1 when off: left out, vLLM takes the value of the model's own generation configuration.
        """
        sampling, adapter = request.sampling, request.adapter
        extra: dict[str, Any] = {}
        if sampling.temperature > 0:
            extra["top_k"] = sampling.top_k or -1
            if sampling.min_p > 0:
                extra["min_p"] = sampling.min_p
        if request.regex is not None:
            extra["structured_outputs"] = {"regex": request.regex}
        body: dict[str, Any] = {
            "model": f"{adapter.name}-{adapter.sha256[:12]}" if adapter else self.model,
            "messages": list(request.messages),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "extra_body": extra,
        }
        if request.json_schema is not None:
            schema = {"name": "answer", "schema": json.loads(request.json_schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _completion(self, request: Request, choice: Any) -> Completion:
        """The text alone: what a server files under reasoning is no part of the answer."""
        if choice.finish_reason not in ("stop", "length"):
            raise DataError(
                f"{request.id}: the endpoint ended an answer with finish_reason {choice.finish_reason!r}; only stop and length leave "
                "a text that is the model's own. Change or leave out this context, or switch off the server's filter or tools."
            )
        return Completion(choice.message.content or "", choice.finish_reason)

    def _failure(self, request: Request, error: OpenAIError) -> MascotError:
        """What the client gave up on, as an error that says what to do."""
        status = error.status_code if isinstance(error, APIStatusError) else None
        text, body = str(error), getattr(error, "body", None)
        if body and not (isinstance(body, dict) and "message" in body):
            text += f" - {body}"
        said = self._clean(text)
        if status is None or status in (408, 409, 429) or status >= 500:
            return ConfigurationError(
                f"{request.id}: no answer from the endpoint in MASCOT_BASE_URL, after up to {RETRIES} retries ({said}). See that it runs "
                "and can be reached, lower MASCOT_CONCURRENCY or raise MASCOT_TIMEOUT, and run again: what is finished is kept."
            )
        if status == 400 and _TOO_LONG.search(f"{getattr(error, 'code', '')} {text}"):
            return DataError(f"{request.id}: prompt and reply do not fit the window ({said}). Shorten this context or lower `max_tokens`.")
        if status in (401, 403):
            return ConfigurationError(f"{request.id}: the endpoint does not let us in ({said}). Correct MASCOT_API_KEY.")
        if status == 404:
            name = self._body(request)["model"]
            way_out = f"the adapter in {request.adapter.path}" if request.adapter else "or set MASCOT_MODEL to its name there"
            return ConfigurationError(
                f"{request.id}: the endpoint has no such model or page ({said}). Serve {name!r}, {way_out}; "
                "see that MASCOT_BASE_URL ends in /v1."
            )
        return DataError(f"{request.id}: the endpoint refused the request ({said}). Change what it objects to, or use another server.")

    def _clean(self, text: str) -> str:
        """What a server said, without the key and not too long."""
        return (text.replace(self._key, "[MASCOT_API_KEY]") if self._key else text)[:500]


def open_engine(base: Path, batch_size: int) -> HttpEngine:
    """`batch_size` is for engines in process: a server batches what it is sent as it likes."""
    return HttpEngine(base)


async def _first(tasks: dict[asyncio.Task[Any], int]) -> set[asyncio.Task[Any]]:
    return (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]


async def _stop(client: AsyncOpenAI, tasks: dict[asyncio.Task[Any], int]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _number(name: str, default: float, whole: bool = False) -> float:
    """A positive number from the environment."""
    text = os.environ.get(name, "").strip() or str(default)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} is {text!r}; it must be a positive {'whole ' if whole else ''}number, such as {default}.")
    return value
