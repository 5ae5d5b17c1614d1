"""Dialogue with a purpose, and open-ended stories of high entropy."""

from random import Random

from lib.making.corpus import words
from lib.making.corpus.lexicon import Lexicon

OPENINGS = [
    "Good morning, {b} speaking.",
    "Hello {a}, what can I do for you?",
    "Workshop of {b}, how may I help?",
    "Yes, {a}?",
]
TURNS = {
    "order": [
        ("I would like to order {count} {adj} {nouns}.", "Certainly, {count} {adj} {nouns}. That makes {price} coins."),
        ("Do you still have {a_noun}?", "We have {count} left, at {price} coins each."),
        ("Please send {a_noun} to {town}.", "It will reach {town} {time}."),
    ],
    "repair": [
        ("My {adj} {noun} is broken.", "Bring it {time}, and {other} will look at it."),
        ("Can you {verb} the {noun} too?", "Yes, but to {verb} it costs {price} coins."),
        ("How long does it take?", "About {count} days, since {other} has to {verb} the {noun}."),
    ],
    "meeting": [
        ("Could we meet {time}?", "Not {time}, I have to {verb} the {noun}. What about {time2}?"),
        ("Shall we meet in {town}?", "Rather at the {noun} in {town}."),
        ("Who else will be there?", "{other} and {a_trade} from {town}."),
    ],
    "news": [
        ("Have you heard about the {noun}?", "No. Did somebody {verb} it?"),
        (
            "{other} said that the {adj} {noun} was {verbed} {time}.",
            "I am not surprised, {other} always wanted {a_noun}.",
        ),
        ("They paid {price} coins for it.", "For {a_noun}? That is {adj}."),
    ],
}
CLOSINGS = [
    ("Thank you, {b}.", "You are welcome, {a}. Good day."),
    ("That is all.", "Then the number of your order is {code}."),
    ("I will call again {time}.", "Please ask for {other}."),
    ("Goodbye then.", "Goodbye, {a}."),
]


def dialogue(rng: Random, lexicon: Lexicon) -> str:
    """Two people settle something in several turns; topic and sequence of moves form the rule."""
    a, b = lexicon.names(rng, 2)
    first, second, opening = lexicon.rule(rng, "dialogue", TURNS, TURNS, range(len(OPENINGS)))
    lines = [(b, OPENINGS[opening])]
    for topic in (first, second):
        for ask, answer in rng.sample(TURNS[topic], rng.randint(2, 3)):
            lines.append((a, (ask, answer)))
    lines.append((a, rng.choice(CLOSINGS)))
    written = []
    for speaker, line in lines:
        slots = dict(_slots(rng, lexicon), a=a, b=b)
        exchange = [(speaker, line)] if isinstance(line, str) else [(a, line[0]), (b, line[1])]
        written += [f"{who}: {words.sentence(text.format(**slots))}" for who, text in exchange]
    return f"A conversation between {a} and {b}.\n\n" + "\n".join(written)


BEGINNINGS = [
    "{hero} had never wanted {a_noun}.",
    "There was once {a_trade} called {hero}, who lived by the {noun} of {town}.",
    "Nobody in {town} could {verb} like {hero}.",
    "{time}, {hero} left {town} with {a_noun} and {count} coins.",
    "The letter that reached {hero} {time} smelled of {noun}.",
]
MIDDLES = [
    "{hero} {verbed} the {noun} and {verbed2} {a_noun2}.",
    '"{verb} the {noun}," said {other}, "or {verb2} it {time}."',
    "The {adj} {noun} was {adj2} and {adj3}.",
    "{time}, {a_trade} from {town} came with {count} {nouns}.",
    "It was {adj} in {town}, and the {nouns} were {adj2}.",
    "{other} {verbed} it {time}.",
    "While {verbing} the {noun}, {hero} thought of {other}.",
    "Behind the {noun} stood {a_noun2}, {adj} and {adj2}.",
    '"What is {a_noun} worth in {town}?" asked {hero}.',
    "{other} did not answer but {verbed} the {adj} {noun}.",
    "There were {count} {nouns} in the {noun2}, and not one was {adj}.",
    "So {hero} and {other} {verbed} {time} until the {noun} was {adj}.",
    "A {adj} {noun} is worth more than {count} {adj2} {nouns}, as they say in {town}.",
]
ENDINGS = [
    "And {hero} never {verbed} again.",
    "The {noun} is still in {town}, {adj} as ever.",
    "{other} kept the {noun}, and {hero} kept the {noun2}.",
    "That is why the {nouns} of {town} are {adj}.",
]


def story(rng: Random, lexicon: Lexicon) -> str:
    """A story whose sentences are drawn freely, so that little of it can be foreseen."""
    hero, friend = lexicon.names(rng, 2)
    begin, second, end = lexicon.rule(rng, "story", range(len(BEGINNINGS)), range(len(MIDDLES)), range(len(ENDINGS)))
    forms = [
        BEGINNINGS[begin],
        MIDDLES[second],
        *(rng.choice(MIDDLES) for _ in range(rng.randint(14, 26))),
        ENDINGS[end],
    ]
    told = []
    for form in forms:
        slots = dict(_slots(rng, lexicon), hero=hero)
        slots["other"] = friend if rng.random() < 0.6 else slots["other"]
        told.append(words.sentence(form.format(**slots)))
    cut = rng.randint(5, 9)
    return "\n\n".join(" ".join(told[i : i + cut]) for i in range(0, len(told), cut))


def _slots(rng: Random, lexicon: Lexicon) -> dict:
    verb, verb2, noun, noun2 = lexicon.verb(rng), lexicon.verb(rng), lexicon.noun(rng), lexicon.noun(rng)
    adj, adj2, adj3 = (lexicon.adjective(rng) for _ in range(3))
    return dict(
        other=lexicon.name(rng),
        town=lexicon.name(rng),
        time=lexicon.time(rng),
        time2=lexicon.time(rng),
        verb=verb,
        verb2=verb2,
        verbed=words.past(verb),
        verbed2=words.past(verb2),
        verbing=words.gerund(verb),
        noun=noun,
        noun2=noun2,
        nouns=words.plural(noun),
        a_noun=words.article(noun),
        a_noun2=words.article(noun2),
        adj=adj,
        adj2=adj2,
        adj3=adj3,
        a_trade=words.article(lexicon.trade(rng)),
        count=rng.randint(2, 90),
        price=rng.randint(3, 400),
        code=f"{rng.randint(1, 99):02d}-{rng.randint(100, 9999)}",
    )
