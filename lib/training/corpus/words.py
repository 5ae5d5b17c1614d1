"""The words of the generators (`language.yaml`), their regular inflection, and the words and rules of each split.

Held-out text is made of held-out words and rules, not only of another seed.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Sequence

import yaml

PAST_IRREGULAR = {"hide": "hid", "sew": "sewed", "show": "showed", "light": "lit"}
VOWELS = "aeiou"


@cache
def language() -> dict:
    """Lists of English words, and the sentence frames of each kind of text."""
    content = yaml.safe_load((Path(__file__).parent / "language.yaml").read_text(encoding="utf-8"))
    return {name: value.split() if isinstance(value, str) else value for name, value in content.items()}


def plural(noun: str) -> str:
    """The regular plural of an English noun; the third person singular of a verb is spelled alike."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in VOWELS:
        return noun[:-1] + "ies"
    return noun[:-1] + "ves" if noun.endswith("loaf") else noun + "s"


def past(verb: str) -> str:
    """The simple past of an English verb of this list."""
    if verb in PAST_IRREGULAR:
        return PAST_IRREGULAR[verb]
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ied"
    return (verb + verb[-1] if _doubles(verb) else verb) + "ed"


def gerund(verb: str) -> str:
    """The -ing form of an English verb of this list."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return (verb + verb[-1] if _doubles(verb) else verb) + "ing"


def _doubles(verb: str) -> bool:
    one_syllable = sum(letter in VOWELS for letter in verb) == 1
    return one_syllable and verb[-1] not in VOWELS + "wxy" and verb[-2] in VOWELS


def article(phrase: str) -> str:
    """The indefinite article and the phrase."""
    return ("an " if phrase[0] in VOWELS else "a ") + phrase


def sentence(text: str) -> str:
    """The text with its first letter capital."""
    return text[0].upper() + text[1:]


HELD_OUT_ONE_IN = 8
ONSETS = "b br d dr f g gr h j k l m n p pr r s st t tr v w z th".split()
NUCLEI = "a e i o u ai au ei ia".split()
CODAS = ["", "", "", "l", "n", "r", "s", "m", "th", "nd", "rk"]


def is_held_out(*key, one_in: int = HELD_OUT_ONE_IN) -> bool:
    """Whether a word, rule or file belongs to the held-out split, by a hash of the key alone."""
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0


@dataclass(frozen=True)
class Lexicon:
    """Draws words and rules for one split.

    The training split has no held-out noun, name, trade or rule; the held-out split has only held-out ones. Both have
    the same verbs, adjectives and times, so that they share a language.
    """

    held_out: bool

    def noun(self, rng: Random) -> str:
        """A noun stem of this split."""
        return rng.choice(_own("noun", self.held_out))

    def trade(self, rng: Random) -> str:
        """A trade (a person's occupation) of this split."""
        return rng.choice(_own("trade", self.held_out))

    def verb(self, rng: Random) -> str:
        """A transitive verb stem."""
        return rng.choice(language()["verbs"])

    def adjective(self, rng: Random) -> str:
        """An adjective."""
        return rng.choice(language()["adjectives"])

    def time(self, rng: Random) -> str:
        """An adverbial of time or manner."""
        return rng.choice(language()["times"])

    def name(self, rng: Random) -> str:
        """An invented name of one to three syllables, of this split."""
        while True:
            syllables = range(rng.choice((1, 2, 2, 3)))
            name = "".join(rng.choice(part) for _ in syllables for part in (ONSETS, NUCLEI, CODAS)).capitalize()
            if is_held_out("name", name) == self.held_out:
                return name

    def names(self, rng: Random, count: int) -> list[str]:
        """`count` different names."""
        names: list[str] = []
        while len(names) < count:
            name = self.name(rng)
            if name not in names:
                names.append(name)
        return names

    def nouns(self, rng: Random, count: int) -> list[str]:
        """`count` different nouns."""
        return rng.sample(_own("noun", self.held_out), count)

    def rule(self, rng: Random, family: str, *choices: Sequence):
        """One combination of the choices (a rule of the family) of this split."""
        while True:
            rule = tuple(rng.choice(list(options)) for options in choices)
            if is_held_out("rule", family, *rule) == self.held_out:
                return rule


@cache
def _own(kind: str, held_out: bool) -> list[str]:
    return [stem for stem in language()[f"{kind}s"] if is_held_out(kind, stem) == held_out]


TRAIN = Lexicon(held_out=False)
HELD_OUT = Lexicon(held_out=True)
