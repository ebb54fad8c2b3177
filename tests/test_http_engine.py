"""The HTTP engine against a real server on this machine: what it asks, what it survives, and what it refuses."""

import json
import logging
import random
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mascot.engines.generate import generate
from mascot.engines.http import open_engine
from mascot.engines.types import Adapter, Completion, Request, Sampling
from mascot.errors import ConfigurationError, DataError, MascotError
from mascot.files import content_hash, write_json
from mascot.journal import Journal

KEY = "sk-very-secret-0123456789"
TOO_LONG = "This model's maximum context length is 64 tokens. However, you requested 80 tokens. Please reduce the length of the messages."


class Stub(ThreadingHTTPServer):
    """Answers /v1/chat/completions as `answer(body, times asked before)` says: (status, JSON or text), or None to drop the connection.

    A prompt's text is its name: `asked` counts by it, and `bodies` holds everything that came.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.answer = lambda body, before: (200, completion(body))
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict] = []
        self.keys: set[str] = set()
        self.busy = self.most_busy = 0

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), OSError):  # a client that hung up is part of some tests
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            before = server.asked[name(body)]
            server.asked[name(body)] += 1
            server.bodies.append(body)
            server.keys.add(self.headers["Authorization"])
            server.busy += 1
            server.most_busy = max(server.most_busy, server.busy)
        try:
            answer = server.answer(body | {"connection": self.connection}, before) if self.path == "/v1/chat/completions" else (404, {})
        finally:
            with server.lock:
                server.busy -= 1
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, content = answer
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if isinstance(content, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


def name(body):
    return body["messages"][-1]["content"]


def completion(body, n=None, finish_reason="stop", **message):
    """A server's answer: `n` choices, last first, since their order is by index and not by place."""
    choices = [
        {
            "index": index,
            "finish_reason": finish_reason,
            "message": {"role": "assistant", "content": f"{name(body)} {body['seed'] + index}"} | message,
        }
        for index in reversed(range(body["n"] if n is None else n))
    ]
    return {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": choices}


def error(message, code=None):
    return {"error": {"message": message, "type": "some_error", "param": None, "code": code}}


def hung_up(body):
    """Wait until the client closes its connection: true if it does."""
    body["connection"].settimeout(20)
    return body["connection"].recv(1) == b""


def ask(text, n=1, seed=7, max_tokens=16, temperature=1.0, top_k=0, min_p=0.0, **options):
    sampling = Sampling(max_tokens, temperature, top_k, min_p=min_p)
    return Request(f"id-{text}", ({"role": "user", "content": text},), sampling, seed, n, **options)


def texts(request, seeds):
    return [Completion(f"{request.messages[0]['content']} {seed}", "stop") for seed in seeds]


@pytest.fixture
def server(monkeypatch):
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "MASCOT_MODEL", "MASCOT_CONCURRENCY"):
        monkeypatch.delenv(variable, raising=False)
    with Stub() as stub:
        thread = threading.Thread(target=stub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        monkeypatch.setenv("MASCOT_BASE_URL", f"http://127.0.0.1:{stub.server_port}/v1")
        monkeypatch.setenv("MASCOT_API_KEY", KEY)
        monkeypatch.setenv("MASCOT_TIMEOUT", "60")
        yield stub
        stub.shutdown()
        thread.join()


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "models/base/policy"
    folder.mkdir(parents=True)
    write_json({"reference": "hf:org/name@" + "a" * 40, "kind": "hub"}, folder / "reference.json")
    return folder


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def run(base, requests):
    """Completions by request id, past the journal."""
    engine = open_engine(base, 4)
    batches = engine.plan(requests)
    return {batches[position][0].id: answers[0] for position, answers in engine.run(batches)}


def test_answers_are_joined_to_their_questions_whatever_the_order(server, base, journal):
    def answer(body, before):
        time.sleep(random.random() / 50)
        return 200, completion(body)

    server.answer = answer
    requests = [ask(str(number), n=1 + number % 3) for number in range(30)]
    answers = generate(open_engine(base, 4), requests, journal, "test")
    assert answers == {request.id: texts(request, range(7, 7 + request.n)) for request in requests}
    assert set(server.asked.values()) == {1}


def test_the_request_as_sent(server, base):
    schema = '{"type": "object", "properties": {"score": {"type": "integer"}}}'
    run(
        base,
        [
            ask("plain", n=3, temperature=0.5),
            ask("greedy", temperature=0, top_k=5, min_p=0.1),
            ask("cut", top_k=5, min_p=0.1, adapter=Adapter("support-anchor", Path("x"), "0123456789abcdef" * 4)),
            ask("schema", json_schema=schema),
            ask("regex", regex="[1-5]"),
        ],
    )
    sent = {name(body): {field: value for field, value in body.items() if field != "messages"} for body in server.bodies}
    common = {"model": "org/name", "n": 1, "seed": 7, "max_tokens": 16, "temperature": 1.0, "top_p": 1.0}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema), "strict": True}}
    assert sent == {
        "plain": common | {"n": 3, "temperature": 0.5, "top_k": -1},
        "greedy": common | {"temperature": 0},
        "cut": common | {"model": "support-anchor-0123456789ab", "top_k": 5, "min_p": 0.1},
        "schema": common | {"top_k": -1, "response_format": form},
        "regex": common | {"top_k": -1, "structured_outputs": {"regex": "[1-5]"}},
    }
    assert server.keys == {f"Bearer {KEY}"}


def test_the_model_goes_by_another_name(server, base, monkeypatch):
    monkeypatch.setenv("MASCOT_MODEL", "served")
    run(base, [ask("a")])
    assert server.bodies[0]["model"] == "served"
    monkeypatch.delenv("MASCOT_MODEL")
    write_json({"reference": "pypi:some-model==1.0", "kind": "weights"}, base / "reference.json")
    assert open_engine(base, 4).model == "pypi:some-model==1.0"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_a_passing_failure_is_retried(server, base, status):
    server.answer = lambda body, before: (200, completion(body)) if before else (status, error("busy"))
    assert run(base, [ask("a"), ask("b")]) == {"id-a": texts(ask("a"), [7]), "id-b": texts(ask("b"), [7])}
    assert server.asked == {"a": 2, "b": 2}


def test_a_dropped_connection_is_retried(server, base):
    server.answer = lambda body, before: (200, completion(body)) if before else None
    assert run(base, [ask("a")]) == {"id-a": texts(ask("a"), [7])}
    assert server.asked == {"a": 2}


def test_retries_end(server, base):
    server.answer = lambda body, before: (500, error("out of memory"))
    with pytest.raises(ConfigurationError, match=r"id-a: no answer .*out of memory.*run again"):
        run(base, [ask("a")])
    assert server.asked == {"a": 9}


@pytest.mark.parametrize(
    ("status", "content", "kind", "message"),
    [
        (400, error("top_k is unknown"), DataError, "id-a: the endpoint refused .*top_k is unknown"),
        (422, {"detail": "no such field"}, DataError, "id-a: the endpoint refused .*no such field"),
        (400, error(TOO_LONG), DataError, "id-a: .*window .*64 tokens.*Shorten this context or lower `max_tokens`"),
        (
            400,
            error("no room", "context_length_exceeded"),
            DataError,
            "id-a: .*window .*no room.*Shorten this context or lower `max_tokens`",
        ),
        (401, error("who are you"), ConfigurationError, "id-a: .*who are you.*MASCOT_API_KEY"),
        (404, error("The model does not exist."), ConfigurationError, "id-a: .*does not exist.*'org/name'.*MASCOT_MODEL"),
    ],
)
def test_a_lasting_failure_is_asked_once(server, base, status, content, kind, message):
    server.answer = lambda body, before: (status, content)
    with pytest.raises(kind, match=message):
        run(base, [ask("a")])
    assert server.asked == {"a": 1}


@pytest.mark.parametrize("content", ["<html>welcome</html>", {"error": {"message": "welcome"}}, {}])
def test_what_is_no_completion_is_refused(server, base, content):
    server.answer = lambda body, before: (200, content)
    with pytest.raises(ConfigurationError, match=r"id-a: .*no chat completion.*MASCOT_BASE_URL"):
        run(base, [ask("a")])


def test_missing_choices_are_asked_for_once_under_a_fresh_seed(server, base):
    server.answer = lambda body, before: (200, completion(body, n=max(1, body["n"] - 1)))
    assert run(base, [ask("a", n=4)]) == {"id-a": texts(ask("a"), [7, 8, 9, 11])}
    assert [(body["n"], body["seed"]) for body in server.bodies] == [(4, 7), (1, 11)]


def test_choices_that_stay_missing_are_an_error(server, base):
    server.answer = lambda body, before: (200, completion(body, n=1))
    with pytest.raises(DataError, match=r"id-a: .*2 of 4 samples"):
        run(base, [ask("a", n=4)])
    assert server.asked == {"a": 2}


def test_more_choices_than_asked_for_are_cut(server, base):
    server.answer = lambda body, before: (200, completion(body, n=5))
    assert run(base, [ask("a", n=2)]) == {"id-a": texts(ask("a"), [7, 8])}


@pytest.mark.parametrize("reason", ["content_filter", "tool_calls", "abort", None])
def test_only_stop_and_length_finish_an_answer(server, base, reason):
    server.answer = lambda body, before: (200, completion(body, finish_reason="length"))
    assert run(base, [ask("a")])["id-a"] == [Completion("a 7", "length")]
    server.answer = lambda body, before: (200, completion(body, finish_reason=reason))
    with pytest.raises(DataError, match=f"id-a: .*{reason}"):
        run(base, [ask("a")])


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("content", [None, ""])
def test_reasoning_is_no_answer(server, base, field, content):
    server.answer = lambda body, before: (200, completion(body, content=content, **{field: "Let me think."}))
    assert run(base, [ask("a")])["id-a"] == [Completion("", "stop")]


def test_concurrency_reaches_its_bound_and_stays_within(server, base, monkeypatch):
    monkeypatch.setenv("MASCOT_CONCURRENCY", "3")
    together = threading.Barrier(3)

    def answer(body, before):
        together.wait(20)
        time.sleep(0.03)  # for one too many to show up
        return 200, completion(body)

    server.answer = answer
    assert len(run(base, [ask(str(number)) for number in range(12)])) == 12
    assert server.most_busy == 3


def test_what_is_finished_comes_while_the_rest_is_under_way(server, base):
    release = threading.Event()

    def answer(body, before):
        assert name(body) != "slow" or release.wait(20)
        return 200, completion(body)

    server.answer = answer
    engine = open_engine(base, 4)
    answers = engine.run(engine.plan([ask("slow"), ask("fast")]))
    assert next(answers)[0] == 1
    release.set()
    assert [position for position, _ in answers] == [0]


@pytest.mark.parametrize("cause", ["close", "failure"])
def test_the_end_cancels_what_is_under_way(server, base, cause):
    started, cancelled = threading.Event(), threading.Event()

    def answer(body, before):
        if name(body) == "held":
            started.set()
            if hung_up(body):
                cancelled.set()
            return None
        started.wait(20)
        return (200, completion(body)) if name(body) == "good" else (400, error("no"))

    server.answer = answer
    engine = open_engine(base, 4)
    if cause == "close":
        answers = engine.run(engine.plan([ask("held"), ask("good")]))
        assert next(answers)[0] == 1
        answers.close()
    else:
        with pytest.raises(DataError, match="id-bad"):
            list(engine.run(engine.plan([ask("held"), ask("bad")])))
    assert cancelled.wait(20)


def test_the_journal_spares_every_request(server, base, journal, monkeypatch):
    requests = [ask(str(number), n=2) for number in range(5)]
    first = generate(open_engine(base, 4), requests, journal, "test")
    monkeypatch.setenv("MASCOT_API_KEY", "another")
    monkeypatch.setenv("MASCOT_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("MASCOT_MODEL", "another")
    assert generate(open_engine(base, 8), requests, journal, "test") == first
    assert len(server.bodies) == 5


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_interrupted_run_goes_on_where_it_was(server, base, journal, monkeypatch, concurrency):
    monkeypatch.setenv("MASCOT_CONCURRENCY", str(concurrency))
    requests = [ask(str(number)) for number in range(12)]
    served = set()

    def answer(body, before):
        with server.lock:
            if len(served) == 5:
                return 400, error("gone bad")
            served.add(name(body))
        return 200, completion(body)

    server.answer = answer
    engine = open_engine(base, 4)
    with pytest.raises(DataError, match="gone bad"):
        generate(engine, requests, journal, "test")
    keys = {content_hash([engine.identity, [request.determinants()]]): request.messages[0]["content"] for request in requests}
    kept = {keys[key] for key in journal.get(list(keys))}
    assert kept <= served and (kept == served or concurrency > 1)

    server.answer = lambda body, before: (200, completion(body))
    server.asked.clear()
    answers = generate(engine, requests, journal, "test")
    assert answers == {request.id: texts(request, [7]) for request in requests}
    assert server.asked == {str(number): 1 for number in range(12) if str(number) not in kept}


def test_identity_is_the_base_alone(server, base):
    engine = open_engine(base, 4)
    kind, version, content = engine.identity
    assert (kind, version, content) == ("http", 1, engine.base.identity)
    assert engine.plan([ask("a"), ask("b")]) == [(ask("a"),), (ask("b"),)]


@pytest.mark.parametrize("status", [200, 400, 401, 404, 500])
def test_the_key_is_in_no_error_and_no_log(server, base, caplog, capfd, status):
    caplog.set_level(logging.DEBUG)
    echo = f"{KEY} is not welcome {'x' * 431}{KEY}"  # the second is where a long message is cut
    server.answer = lambda body, before: (status, error(echo))
    with pytest.raises(MascotError) as caught:
        run(base, [ask("a")])
    said = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text + "".join(capfd.readouterr())
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert KEY[:8] not in said


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MASCOT_BASE_URL", ""),
        ("MASCOT_BASE_URL", "localhost:8000/v1"),
        ("MASCOT_BASE_URL", "http://localhost:port/v1"),
        ("MASCOT_API_KEY", "two\nlines"),
        ("MASCOT_API_KEY", "schlüssel"),
        ("MASCOT_CONCURRENCY", "0"),
        ("MASCOT_CONCURRENCY", "2.5"),
        ("MASCOT_TIMEOUT", "-1"),
        ("MASCOT_TIMEOUT", "nan"),
    ],
)
def test_a_wrong_environment_stops_at_once(server, base, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=variable) as caught:
        open_engine(base, 4)
    assert variable != "MASCOT_API_KEY" or value not in str(caught.value)


def test_no_endpoint_says_how_to_set_it(server, base, monkeypatch):
    monkeypatch.delenv("MASCOT_BASE_URL")
    with pytest.raises(ConfigurationError, match="export MASCOT_BASE_URL=http"):
        open_engine(base, 4)


def test_no_key_is_needed(server, base, monkeypatch):
    monkeypatch.delenv("MASCOT_API_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    run(base, [ask("a")])
    assert server.keys == {"Bearer none"}
