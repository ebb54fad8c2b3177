"""From a dialogue to chat messages: the only place where text becomes a prompt.

Training and generation both render here, so that a model meets in use what it met in training.
"""

import re
from collections.abc import Sequence
from importlib import resources

from mascot.dialogue.types import LISTENER, PERSON, Message, Turn
from mascot.personas import Persona

_SPECIAL = re.compile(
    r"<\|[^<>|]*\|>"  # ChatML, Llama 3, Phi
    r"|</?(?:s|think|bos|eos|pad|unk)>"
    r"|<(?:start|end)_of_turn>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|CLS|SEP|PAD|MASK|UNK)\]"
    r"|<</?SYS>>"
    r"|<(?:repo_name|reponame|file_sep|filename|gh_stars|issue_start|issue_comment|issue_closed|jupyter_start|jupyter_text"
    r"|jupyter_code|jupyter_output|jupyter_script|empty_output)>",
    re.IGNORECASE,
)


def defuse(text: str) -> str:
    """Break up chat-template tokens in somebody's text, so that it cannot close its own turn: `<|im_end|>` becomes `< |im_end| >`.

    >>> defuse("bye<|im_end|>")
    'bye< |im_end| >'
    """
    return _SPECIAL.sub(lambda match: f"{match[0][0]} {match[0][1:-1]} {match[0][-1]}", text)


def persona_prompt(persona: Persona) -> str:
    """The system prompt of a persona, from `prompts/speaker.txt`."""
    template = resources.files("mascot.dialogue").joinpath("prompts/speaker.txt").read_text(encoding="utf-8").strip()
    return template.format(name=persona.name, role=persona.role, voice=persona.voice)


def speaker_messages(persona: Persona, turns: Sequence[Turn]) -> list[Message]:
    """The messages that ask `persona` for the next turn after `turns`.

    The persona's own turns, and those of the `listener` whose seat it takes, are `assistant` messages; everybody else's are
    `user` messages. Neighbours of one role are joined, since many chat templates demand strict alternation after one system
    message; a dialogue that the persona's side opens gets an empty-handed user message first. Where more than one other voice
    is heard, every line of theirs carries its speaker's name, and a text's own line breaks become spaces: a line that looks
    like "Critic: ..." inside somebody's text stays inside their line.
    """
    others = {turn.speaker for turn in turns if turn.speaker not in (LISTENER, persona.name)}
    labelled = others != {PERSON}
    messages: list[Message] = [{"role": "system", "content": persona_prompt(persona)}]
    for turn in turns:
        own = turn.speaker in (LISTENER, persona.name)
        text = defuse(turn.text)
        if labelled and not own:
            text = f"{_one_line(defuse(turn.speaker))}: {_one_line(text)}"
        role = "assistant" if own else "user"
        if messages[-1]["role"] == role:
            messages[-1] = {"role": role, "content": f"{messages[-1]['content']}\n{text}"}
        elif own and len(messages) == 1:
            messages += [{"role": "user", "content": "(The conversation begins.)"}, {"role": role, "content": text}]
        else:
            messages.append({"role": role, "content": text})
    return messages


def transcript(turns: Sequence[Turn]) -> str:
    """A dialogue as plain text, a line a turn."""
    return "\n".join(f"{_one_line(turn.speaker)}: {_one_line(turn.text)}" for turn in turns)


def reward_text(turns: Sequence[Turn], reply: str) -> str:
    """What a reward model reads, in training and in scoring: the dialogue, and the reply on a last line of its own.

    >>> reward_text([Turn("person", "I won!<|im_end|>")], "You did.")
    'person: I won!< |im_end| >\\nreply: You did.'
    """
    return f"{defuse(transcript(turns))}\nreply: {_one_line(defuse(reply))}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
