"""The words of the generators: English stems, their regular inflection, and the words and rules of each split.

Held-out text is made of held-out words and rules, not only of another seed.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Sequence

NOUNS = """anchor apple arch archive armchair arrow badge bakery balcony ballad bank barge barn barrel basin basket
battery beacon bell bench bicycle blanket boat book boot bottle boulder bowl bracelet branch brick bridge broom bucket
button cabin cable candle canal canvas captain carpet cart castle cellar chain chapel chart chest chimney circus clock
cloud coat coin compass copper corridor cottage counter cradle crate creek crown cupboard curtain desk diary dome door
drawer drum engine falcon farm feather fence ferry fiddle field flag flask flute forest fountain fox furnace garden gate
glove goat guitar hammer harbour harp hatch hedge helmet hill horse hotel island jacket jar journal kettle key kitchen
kite ladder lamp lantern lawyer ledger lemon lens letter library lighthouse loaf lock lorry magnet map market mast
meadow medal melon mill mine mirror monument motor mountain museum needle nest net notebook oar office onion orchard
oven owl package paddle palace paper parcel path pearl pedal pencil piano pigeon pillar pillow pipe plank planet plate
plough pocket pond porch portrait pump puzzle quarry quilt rabbit radio raft railway recipe ribbon ring river road robe
rocket roof rope rowboat ruler sack saddle sail scarf school scissor scroll shed shelter ship shop shovel signal sketch
sledge spade spoon stable stair statue stove street sword table tailor tank telescope temple tent theatre ticket tile
tower tractor train treasure tunnel turbine valley vase vault village violin wagon wall wallet warehouse watch waterfall
well wheel whistle willow window wing workshop yard zebra""".split()

VERBS = """add admire answer arrange ask assemble attach balance bake borrow boil bolt brush bundle call carry check
chase clean climb close collect colour compare connect cook copy count cover deliver describe design discover divide
drag dry empty enter examine explain explore fasten fetch fill film finish fix fold follow gather greet guard guide
hammer hand heat help hide hire imagine inspect invent join juggle kick label land lift light list load lock look map
mark measure melt mend mention move name need notice obtain offer open order own pack paint pass paste pick plant play
point polish pour praise prepare present press print protect pull push raise reach record remember remove rent repair
replace rescue return roll sail scan scratch search serve sew shape share shift show sign sketch smell sort stack start
stitch store study supply surprise test thank tie touch trace trade train trust turn visit wait wash watch water weigh
wrap""".split()

ADJECTIVES = """ancient amber bitter blank bold brave brief bright brittle broad calm careful cheap clean clear clever
cold common cool crisp curious damp dark deep distant dry dull dusty early eager empty faint fair famous fierce final
fine firm flat foreign formal fragile free fresh gentle giant golden grand grave green grey hasty heavy hollow honest
humble humid idle iron keen large late light little lively local lonely long loose loud lucky merry mild modern modest
narrow neat new noble odd old open pale patient plain polite proud public pure quick quiet rapid rare red rich rough
round royal rusty sad scarlet secret sharp short shy silent silver simple slender slow small smooth soft solid sour
stern stiff strange strong sturdy sudden sweet swift tall tame thick thin tidy tiny tired tough vast violet warm weak
wide wild wise wooden young""".split()

TRADES = """archivist baker barber botanist builder butcher carpenter cartographer chemist clerk cobbler cook dentist
doctor driver editor electrician engineer farmer fisher florist gardener geologist glazier goldsmith grocer guide
historian interpreter jeweller judge librarian locksmith mason mechanic midwife miller musician nurse optician painter
pilot plumber porter potter printer sailor sculptor singer smith surgeon surveyor tanner teacher translator vet weaver
welder""".split()

TIMES = """at dawn|before breakfast|in the early morning|around noon|after lunch|in the late afternoon|at dusk|
near midnight|on Monday|on Tuesday|on Wednesday|on Thursday|on Friday|on Saturday|on Sunday|
in January|in March|in April|in June|in July|in September|in October|in December|last winter|
last spring|two summers ago|three weeks ago|the day before|a year later|without warning|
for the first time|once again|by accident|on purpose|in silence|with great care|
in a hurry""".replace("\n", "").split("|")

PAST_IRREGULAR = {"hide": "hid", "sew": "sewed", "show": "showed", "light": "lit"}
VOWELS = "aeiou"


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
        return self._draw(rng, "noun", NOUNS)

    def trade(self, rng: Random) -> str:
        """A trade (a person's occupation) of this split."""
        return self._draw(rng, "trade", TRADES)

    def verb(self, rng: Random) -> str:
        """A transitive verb stem."""
        return rng.choice(VERBS)

    def adjective(self, rng: Random) -> str:
        """An adjective."""
        return rng.choice(ADJECTIVES)

    def time(self, rng: Random) -> str:
        """An adverbial of time or manner."""
        return rng.choice(TIMES)

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
        return rng.sample(_own("noun", tuple(NOUNS), self.held_out), count)

    def rule(self, rng: Random, family: str, *choices: Sequence):
        """One combination of the choices (a rule of the family) of this split."""
        while True:
            rule = tuple(rng.choice(list(options)) for options in choices)
            if is_held_out("rule", family, *rule) == self.held_out:
                return rule

    def _draw(self, rng: Random, kind: str, stems: Sequence[str]) -> str:
        return rng.choice(_own(kind, tuple(stems), self.held_out))


@cache
def _own(kind: str, stems: tuple[str, ...], held_out: bool) -> list[str]:
    return [stem for stem in stems if is_held_out(kind, stem) == held_out]


TRAIN = Lexicon(held_out=False)
HELD_OUT = Lexicon(held_out=True)
