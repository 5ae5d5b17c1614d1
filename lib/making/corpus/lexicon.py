"""Which words and rules a split may use: held-out text is made of held-out lexemes and rules, not of another seed."""

import hashlib
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Sequence

from lib.making.corpus import words

HELD_OUT_ONE_IN = 8
ONSETS = "b br d dr f g gr h j k l m n p pr r s st t tr v w z th".split()
NUCLEI = "a e i o u ai au ei ia".split()
CODAS = ["", "", "", "l", "n", "r", "s", "m", "th", "nd", "rk"]


def is_held_out(*key, one_in: int = HELD_OUT_ONE_IN) -> bool:
    """Whether a lexeme, rule or file belongs to the held-out split: a hash of the key alone decides, for ever."""
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0


@dataclass(frozen=True)
class Lexicon:
    """Draws words and rules for one split.

    The training split sees no held-out noun, name, trade or rule; the held-out split takes all of these from the
    held-out part. Verbs, adjectives and times are common to both, so that the splits share a language.
    """

    held_out: bool

    def noun(self, rng: Random) -> str:
        """A noun stem of this split."""
        return self._draw(rng, "noun", words.NOUNS)

    def trade(self, rng: Random) -> str:
        """A trade (a person's occupation) of this split."""
        return self._draw(rng, "trade", words.TRADES)

    def verb(self, rng: Random) -> str:
        """A transitive verb stem."""
        return rng.choice(words.VERBS)

    def adjective(self, rng: Random) -> str:
        """An adjective."""
        return rng.choice(words.ADJECTIVES)

    def time(self, rng: Random) -> str:
        """An adverbial of time or manner."""
        return rng.choice(words.TIMES)

    def name(self, rng: Random) -> str:
        """An invented name of one to three syllables, of this split."""
        while True:
            syllables = [
                rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS) for _ in range(rng.choice((1, 2, 2, 3)))
            ]
            name = "".join(syllables).capitalize()
            if is_held_out("name", name) == self.held_out:
                return name

    def names(self, rng: Random, count: int) -> list[str]:
        """So many different names."""
        found: list[str] = []
        while len(found) < count:
            name = self.name(rng)
            if name not in found:
                found.append(name)
        return found

    def nouns(self, rng: Random, count: int) -> list[str]:
        """So many different nouns."""
        return rng.sample(_own("noun", tuple(words.NOUNS), self.held_out), count)

    def rule(self, rng: Random, family: str, *choices: Sequence):
        """One combination of the choices (a rule of the family) that this split may use."""
        while True:
            picked = tuple(rng.choice(list(options)) for options in choices)
            if is_held_out("rule", family, *picked) == self.held_out:
                return picked

    def _draw(self, rng: Random, kind: str, stems: Sequence[str]) -> str:
        return rng.choice(_own(kind, tuple(stems), self.held_out))


@cache
def _own(kind: str, stems: tuple[str, ...], held_out: bool) -> list[str]:
    return [stem for stem in stems if is_held_out(kind, stem) == held_out]


TRAIN = Lexicon(held_out=False)
HELD_OUT = Lexicon(held_out=True)
