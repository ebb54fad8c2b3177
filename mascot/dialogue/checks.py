"""From a model's reply to a turn: what does not belong into it is taken out, and what was taken out is counted."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mascot.dialogue.types import LISTENER, PERSON

Flag = Literal["thinking", "template_token", "own_name", "other_speaker"]

_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_UNOPENED_THINK = re.compile(r"\A.*?</think>", re.DOTALL | re.IGNORECASE)
_TEMPLATE_TOKEN = re.compile(r"<\|[^<>|]*\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>", re.IGNORECASE)
_ALWAYS_OTHERS = (PERSON, LISTENER, "user", "assistant", "system", "human")


@dataclass(frozen=True)
class Reply:
    """A checked reply. `text` is empty when nothing usable was said; `flags` name what was removed, in order."""

    text: str
    flags: tuple[Flag, ...]


def check_reply(raw: str, name: str, others: Sequence[str] = ()) -> Reply:
    """Clean a generated reply of the speaker `name` in a conversation with `others`.

    Removes `<think>` blocks (an unclosed one swallows the rest), cuts at the first chat-template token, strips the speaker's own
    name prefix however often it is repeated, and cuts where another speaker's line begins. A reply that starts as somebody
    else's line is empty.

    >>> check_reply("**Critic:** Who says so?\\nAnna: I do.", "Critic", ["Anna"])
    Reply(text='Who says so?', flags=('own_name', 'other_speaker'))
    """
    flags: list[Flag] = []

    text = _UNOPENED_THINK.sub("", _THINK.sub("", raw))
    if text != raw:
        flags.append("thinking")

    if found := _TEMPLATE_TOKEN.search(text):
        text = text[: found.start()]
        flags.append("template_token")

    own = _speaker_line(_name_forms(name), anchored=True)
    while found := own.match(text):
        text = text[found.end() :]
        if "own_name" not in flags:
            flags.append("own_name")

    forms = [form for other in (*others, *_ALWAYS_OTHERS) for form in _name_forms(other) if form not in _name_forms(name)]
    if found := _speaker_line(forms, anchored=False).search(text):
        text = text[: found.start()]
        flags.append("other_speaker")

    text = " ".join(unicodedata.normalize("NFC", text).split())
    if len(text) > 1 and text[0] + text[-1] in ('""', "\u201c\u201d") and text[0] not in text[1:-1]:
        text = text[1:-1].strip()
    return Reply(text, tuple(flags))


def same_text(text: str) -> str:
    """The form under which two replies count as the same: case, spacing and punctuation do not matter."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def _name_forms(name: str) -> list[str]:
    """How a speaker may be called: `The Anchor` or `Anchor`; `Priya (project manager)` or `Priya`."""
    bare = re.sub(r"\s*\(.*\)\s*$", "", name).strip()
    forms = {name, bare, re.sub(r"^the\s+", "", bare, flags=re.IGNORECASE)}
    return sorted((form for form in forms if form), key=len, reverse=True)


def _speaker_line(names: Sequence[str], anchored: bool) -> re.Pattern[str]:
    """A line that begins with one of the names and a colon, with the brackets, stars and quotes that models put round it."""
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    start = r"\A\s*" if anchored else r"(?:\A|\n)\s*"
    return re.compile(rf"{start}(?:role\s*:\s*)?[\"'*_\[(#>\s]*(?:{alternatives})[\"'*_\])\s]*:[*_\"']*[ \t]*", re.IGNORECASE)
