"""Measures of plain text that need no model: content words, copying, loops."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from nltk.stem.snowball import SnowballStemmer

_STEMMER = SnowballStemmer("english")

# Words that carry grammar and not matter. NLTK's own list needs a download at run time; this one is ours.
FUNCTION_WORDS = frozenset(
    """a about above after again against all almost also although always am an and another any anybody anyone anything are aren't as
    at away back be because been before being below between both but by can can't cannot come comes could couldn't did didn't do
    does doesn't doing don't done down during each either else enough even ever every everybody everyone everything few for from
    get gets give given go goes going gone got had hadn't has hasn't have haven't having he he'd he'll he's her here hers herself
    him himself his how however i i'd i'll i'm i've if in into is isn't it it's its itself just keep kept know known last least
    less let let's like made make makes making many may maybe me meeting might mine more most much must my myself need needs
    neither never new next no nobody none nor not nothing now of off often old on once one ones only onto or other others our
    ours ourselves out over own perhaps put quite rather really said same say says see seem seems seen set shall she she'd she'll
    she's should shouldn't since so some somebody someone something soon still such take taken takes than that that's think
    thinks thinking thought thoughts the their theirs them themselves then there there's these they they'd they'll they're
    they've thing things this those though through till to together too took toward towards under until up upon us use used uses
    using very want wants was wasn't way we we'd we'll we're we've well went were weren't what what's whatever when where whether
    which while who who's whole whom whose why will with within without won't would wouldn't yes yet you you'd you'll you're
    you've your yours yourself""".split()
)

# Irregular forms that the stemmer leaves apart: the first word of each group stands for all.
_IRREGULAR = {
    form: group[0]
    for group in (
        line.split()
        for line in """begin began begun; bite bit bitten; bleed bled; blow blew blown; break broke broken; breed bred; bring brought;
        build built; burn burnt; buy bought; catch caught; child children; choose chose chosen; cling clung; creep crept;
        cut cutting; deal dealt; dig dug; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate
        eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; fling flung; fly flew flown; foot feet;
        forget forgot forgotten; forgive forgave forgiven; freeze froze frozen; grow grew grown; hang hung; hear heard;
        hide hid hidden; hold held; kneel knelt; lead led; lean leant; leap leapt; learn learnt; leave left; lend lent; lie
        lying lay lain; lose lost; man men; mean meant; meet met; mouse mice; pay paid; person people; ride rode ridden;
        ring rang rung; rise rose risen; run ran; seek sought; sell sold; send sent; shake shook shaken; shine shone; shoot
        shot; show shown; shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept; slide slid; smell
        smelt; speak spoke spoken; spell spelt; spend spent; spin spun; split splitting; spring sprang sprung; stand stood;
        steal stole stolen; stick stuck; sting stung; strike struck; swear swore sworn; sweep swept; swell swollen; swim
        swam swum; swing swung; teach taught; tear tore torn; tell told; think thought; throw threw thrown; tooth teeth;
        two twice; understand understood; wake woke woken; wear wore worn; weave wove woven; weep wept; wife wives; win
        won; wind wound; woman women; write wrote written""".split(";")
    )
    for form in group[1:]
}

_PERSONS = {word: "YOU" for word in ["i", "you", "me", "my", "your", "mine", "yours", "myself", "yourself", "we", "us", "our", "ours"]} | {
    "am": "are",
    "was": "were",
    "i'm": "you're",
    "i've": "you've",
    "i'll": "you'll",
    "i'd": "you'd",
}


def words(text: str) -> list[str]:
    """Lower-case words and numbers, apostrophes kept.

    >>> words("It's 9 o'clock, Ana!")
    ["it's", '9', "o'clock", 'ana']
    """
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.casefold().replace("\u2019", "'"))


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    word = word.removesuffix("'s")
    return _STEMMER.stem(_IRREGULAR.get(word, word))


def content_stems(text: str) -> list[str]:
    """The stems of the words that carry matter, in order."""
    return [stem(word) for word in words(text) if word not in FUNCTION_WORDS]


def rarity(texts: Iterable[str]) -> dict[str, float]:
    """How rare each content stem is among `texts`: inverse document frequency, from 0 (in every text) towards 1.

    >>> rarity(["a dog barks", "the dog sleeps", "dogs"])["dog"]
    0.0
    """
    documents = [set(content_stems(text)) for text in texts]
    size = math.log(len(documents) + 1)
    return {stem: 1 - math.log(count + 1) / size for stem, count in Counter(stem for one in documents for stem in one).items()}


def shared_rarity(reply: str, context: str, rarity: Mapping[str, float]) -> float:
    """The summed rarity of the content stems that a reply shares with its context; a stem that is not in `rarity` counts 1."""
    return sum((rarity.get(stem, 1.0) for stem in sorted(set(content_stems(reply)) & set(content_stems(context)))), 0.0)


def copied_share(reply: str, source: str) -> float:
    """The share of the reply's words that stand, in the same order, in `source`, whoever says I and you (ROUGE-L precision).

    >>> copied_share("You lost your keys today", "I lost my keys today!")
    1.0
    """
    said = [_PERSONS.get(word, word) for word in words(reply)]
    given = [_PERSONS.get(word, word) for word in words(source)]
    if not said or not given:
        return 0.0
    row = [0] * (len(given) + 1)
    for word in said:
        diagonal = 0
        for place, other in enumerate(given, start=1):
            diagonal, row[place] = row[place], diagonal + 1 if word == other else max(row[place], row[place - 1])
    return row[-1] / len(said)


def overlap(reply: Iterable[str], source: Iterable[str]) -> float:
    """The share of the items of `reply` that are among those of `source`; 0 when there are none."""
    items, known = list(reply), set(source)
    return sum(item in known for item in items) / len(items) if items else 0.0


def repeated_share(text: str, n: int = 2) -> float:
    """The share of word n-grams that repeat an earlier one; 0 for a text without repetition.

    >>> repeated_share("so it goes so it goes")
    0.4
    """
    grams = Counter(zip(*(words(text)[start:] for start in range(n)), strict=False))
    total = sum(grams.values())
    return 1 - len(grams) / total if total else 0.0
