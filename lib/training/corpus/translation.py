"""Translation from English into Velan, an invented language with cases, agreement, tense suffixes and verb-final
order.
"""

import hashlib
from dataclasses import dataclass
from random import Random

from lib.training.corpus import words
from lib.training.corpus.words import Lexicon

CONSONANTS = "p t k b d g m n l r s v h z".split()
VOWELS = "a e i o u".split()
TENSES = {"present": "ra", "past": "ta", "future": "su"}
PLACES = {"near": "lo", "behind": "vesh", "under": "dun", "beside": "mai", "above": "tol", "inside": "ren"}


def velan(stem: str) -> str:
    """The Velan root of an English stem: two or three open syllables, fixed by the stem alone."""
    digest = hashlib.sha256(("velan " + stem).encode()).digest()
    count = 2 + (digest[0] % 3 == 0)
    return "".join(CONSONANTS[digest[2 * i + 1] % 14] + VOWELS[digest[2 * i + 2] % 5] for i in range(count))


@dataclass(frozen=True)
class Phrase:
    """A noun phrase: an optional modifier noun (compound), a noun, an optional adjective and its number."""

    noun: str
    compound: str | None
    adjective: str | None
    plural: bool

    def english(self) -> str:
        """The phrase in English."""
        noun = words.plural(self.noun) if self.plural else self.noun
        return " ".join(filter(None, ["the", self.adjective, self.compound, noun]))

    def velan(self, case: str) -> str:
        """The phrase in Velan: compound by linking -o-, number -k, then case; the adjective follows and agrees."""
        head = velan(self.noun) + ("o" + velan(self.compound) if self.compound else "")
        number = "k" if self.plural else ""
        ending = {"subject": "", "object": "an" if self.plural else "n", "place": "is"}[case]
        described = f" {velan(self.adjective)}{number}e" if self.adjective else ""
        return head + number + ending + described


@dataclass(frozen=True)
class Clause:
    """Subject, verb, object and an optional place, with tense, polarity and mood."""

    subject: Phrase
    verb: str
    object: Phrase
    place: tuple[str, Phrase] | None
    tense: str
    negative: bool
    question: bool

    def english(self) -> str:
        """The clause in English."""
        tail = self.object.english() + (f" {self.place[0]} {self.place[1].english()}" if self.place else "")
        subject = self.subject.english()
        helper = {"future": "will", "past": "did", "present": "do" if self.subject.plural else "does"}[self.tense]
        if self.question:
            return f"{helper.capitalize()} {subject}{' not' if self.negative else ''} {self.verb} {tail}?"
        if self.negative or self.tense == "future":
            return words.sentence(f"{subject} {helper}{' not' if self.negative else ''} {self.verb} {tail}.")
        present = self.verb if self.subject.plural else words.plural(self.verb)
        verb = words.past(self.verb) if self.tense == "past" else present
        return words.sentence(f"{subject} {verb} {tail}.")

    def velan(self) -> str:
        """The clause in Velan: question particle, subject, place with postposition, object, verb with prefix and
        suffixes.
        """
        place = f" {self.place[1].velan('place')} {PLACES[self.place[0]]}" if self.place else ""
        prefix, number = "ne" if self.negative else "", "k" if self.subject.plural else ""
        verb = prefix + velan(self.verb) + TENSES[self.tense] + number
        text = f"{self.subject.velan('subject')}{place} {self.object.velan('object')} {verb}"
        return words.sentence(("ka " if self.question else "") + text + ("?" if self.question else "."))


def phrase(rng: Random, lexicon: Lexicon) -> Phrase:
    """A random noun phrase."""
    compound = lexicon.noun(rng) if rng.random() < 0.25 else None
    adjective = lexicon.adjective(rng) if rng.random() < 0.5 else None
    return Phrase(lexicon.noun(rng), compound, adjective, rng.random() < 0.4)


def clause(rng: Random, lexicon: Lexicon) -> Clause:
    """A random clause whose combination of tense, polarity, mood and place is a rule of the split."""
    tense, negative, question, place = lexicon.rule(
        rng, "clause", list(TENSES), (False, False, True), (False, False, True), [None, None, *PLACES]
    )
    where = (place, phrase(rng, lexicon)) if place else None
    return Clause(phrase(rng, lexicon), lexicon.verb(rng), phrase(rng, lexicon), where, tense, negative, question)


def document(rng: Random, lexicon: Lexicon) -> str:
    """A lesson: a glossary of the less obvious words, then sentences with their translations."""
    clauses = [clause(rng, lexicon) for _ in range(rng.randint(7, 12))]
    phrases = [p for c in clauses for p in (c.subject, c.object, *((c.place[1],) if c.place else ()))]
    stems = sorted({stem for p in phrases for stem in (p.noun, p.compound) if stem})
    rng.shuffle(stems)
    share = 1.0 if lexicon.held_out else rng.choice((0.0, 0.5, 1.0))
    glossary = ", ".join(f"{stem} = {velan(stem)}" for stem in stems[: round(share * len(stems))])
    lines = ["Translate from English to Velan."] + ([f"Glossary: {glossary}."] if glossary else [])
    lines += [f"English: {c.english()}\nVelan: {c.velan()}" for c in clauses]
    return "\n".join(lines)
