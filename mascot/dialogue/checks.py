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

    text = "\n".join(text.splitlines())
    own_forms = [*_name_forms(name), *(f"the {form}" for form in _name_forms(name))]
    other_forms = [form for other in (*others, *_ALWAYS_OTHERS) for form in _name_forms(other) if form not in own_forms]
    own, others_line = _speaker_line(own_forms), _speaker_line(other_forms)
    while found := own.match(text):
        text = text[found.end() :]
        flags.append("own_name")
    if found := others_line.search(text):
        text = text[: found.start()]
        flags.append("other_speaker")
    if own.search(text):
        text = own.sub(" ", text)
        flags.append("own_name")
    flags = list(dict.fromkeys(flags))

    return Reply(_unquoted(" ".join(unicodedata.normalize("NFC", text).split())), tuple(flags))


def same_text(text: str) -> str:
    """The form under which two replies count as the same: case, spacing and punctuation do not matter."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def _unquoted(text: str) -> str:
    """Without the quotes round the whole, and without a closing mark whose opening one went with a name."""
    if len(text) > 1 and text[0] + text[-1] in ('""', "\u201c\u201d") and text[0] not in text[1:-1]:
        return text[1:-1].strip()
    lone = len(text) > 1 and ((text[-1] in '"*_`' and text.count(text[-1]) == 1) or (text[-1] == "\u201d" and "\u201c" not in text))
    return text[:-1].strip() if lone else text


def _name_forms(name: str) -> list[str]:
    """How a speaker may be called, in lower case: `The Anchor` or `Anchor`; `Priya (project manager)` or `Priya`."""
    bare = re.sub(r"\s*\(.*\)\s*$", "", name.casefold()).strip()
    core = re.sub(r"^the\s+", "", bare)
    return sorted({form for form in (name.casefold(), bare, core) if form}, key=len, reverse=True)


def _speaker_line(names: Sequence[str]) -> re.Pattern[str]:
    """A line that begins with one of the names and a colon, with the brackets, stars and quotes that models put round it."""
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    marks, colon = "\"'*_`\u2018\u2019\u201c\u201d", "[:\uff1a]"
    return re.compile(
        rf"(?:\A|\n)\s*(?:role\s*{colon}\s*)?[{marks}\[(<#>\s]*(?:{alternatives})[{marks}\])>\s]*{colon}[{marks}]*[ \t]*", re.IGNORECASE
    )
