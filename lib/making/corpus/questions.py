"""Reading tasks: questions answered from a passage, and summaries that extract each paragraph's topic sentence."""

from random import Random

from lib.making.corpus import words
from lib.making.corpus.lexicon import Lexicon

STATEMENTS = {
    "trade": [
        "{name} works as {a_trade}.",
        "{name} has been {a_trade} for {years} years.",
        "By trade, {name} is {a_trade}.",
    ],
    "town": ["{name} lives in {town}.", "The home of {name} is in {town}.", "{name} moved to {town} {time}."],
    "owns": ["{name} owns {a_thing}.", "What {name} likes best is {a_thing}.", "{name} would never sell {a_thing}."],
    "born": ["{name} was born in {born}.", "In {born}, {name} was born.", "{name} came into the world in {born}."],
}
QUESTIONS = {
    "trade": [
        ("What is the trade of {name}?", "{name} is {a_trade}."),
        ("Who works as {a_trade}?", "{name} works as {a_trade}."),
    ],
    "town": [
        ("Where does {name} live?", "{name} lives in {town}."),
        ("Who lives in {town}?", "{name} lives in {town}."),
    ],
    "owns": [("What does {name} own?", "{name} owns {a_thing}."), ("Who owns {a_thing}?", "{name} owns {a_thing}.")],
    "born": [
        ("When was {name} born?", "{name} was born in {born}."),
        ("Who was born in {born}?", "{name} was born in {born}."),
    ],
}


def questions(rng: Random, lexicon: Lexicon) -> str:
    """A passage about several people, then questions with answers that the passage holds."""
    names, towns = lexicon.names(rng, 5), lexicon.names(rng, 5)
    trades = {lexicon.trade(rng) for _ in range(40)}
    people = [
        dict(
            name=name,
            town=town,
            a_trade=words.article(trade),
            born=born,
            years=rng.randint(2, 40),
            time=lexicon.time(rng),
            a_thing=words.article(f"{lexicon.adjective(rng)} {thing}"),
        )
        for name, town, trade, born, thing in zip(
            names,
            towns,
            rng.sample(sorted(trades), min(5, len(trades))),
            rng.sample(range(1890, 2010), 5),
            lexicon.nouns(rng, 5),
        )
    ]
    facts = [(person, kind) for person in people for kind in STATEMENTS if rng.random() < 0.85]
    rng.shuffle(facts)
    passage = " ".join(rng.choice(STATEMENTS[kind]).format(**person) for person, kind in facts)
    asked = rng.sample(facts, min(len(facts), rng.randint(6, 10)))
    order = lexicon.rule(rng, "questions", *[range(2)] * len(asked))
    pairs = []
    for (person, kind), form in zip(asked, order):
        question, answer = QUESTIONS[kind][form]
        pairs.append(f"Question: {question}\nAnswer: {answer}".format(**person))
    return "Read the passage and answer the questions.\n\n" + passage + "\n\n" + "\n".join(pairs)


TOPICS = [
    "The town council of {town} decided {time} to {verb} the {adj} {noun}.",
    "{name}, {a_trade} from {town}, has {verbed} {a_noun} that nobody had noticed.",
    "A {adj} {noun} was found {time} in {town}.",
    "The price of the {adj} {noun} has risen to {number} coins.",
    "Visitors to {town} can now {verb} the {noun} of {name}.",
    "{name} will {verb} the {noun} of {town} {time}.",
    "More than {number} people came to {town} to {verb} the {adj} {noun}.",
    "The {noun} that {name} {verbed} {time} belongs to {town} again.",
]
DETAILS = [
    "It had been {adj} for {number} years.",
    "Few people remember the {adj} {noun}.",
    '"We had to {verb} it," said {other}, who works as {a_trade}.',
    "The {noun} was {verbed} {time}.",
    "Nobody expected the {noun} to be so {adj}.",
    "{other} paid {number} coins for it.",
    "Others would rather {verb} the {noun}.",
    "According to {other}, this is {adj} news.",
    "The work took {number} days and {a_noun}.",
    "Only {a_noun} was left behind.",
]


def summary(rng: Random, lexicon: Lexicon) -> str:
    """An article of several paragraphs, and the summary that lists the first sentence of each."""
    paragraphs, topics = [], []
    order = lexicon.rule(rng, "topics", *[range(len(TOPICS))] * rng.randint(3, 5))
    for form in order:
        first = words.sentence(TOPICS[form].format(**_slots(rng, lexicon)))
        rest = [words.sentence(rng.choice(DETAILS).format(**_slots(rng, lexicon))) for _ in range(rng.randint(2, 4))]
        topics.append(first)
        paragraphs.append(" ".join([first, *rest]))
    listed = "\n".join(f"{number}. {topic}" for number, topic in enumerate(topics, 1))
    return (
        "Summarise the article in its most important sentences.\n\n"
        + "\n\n".join(paragraphs)
        + "\n\nSummary:\n"
        + listed
    )


def _slots(rng: Random, lexicon: Lexicon) -> dict:
    verb, noun = lexicon.verb(rng), lexicon.noun(rng)
    return dict(
        name=lexicon.name(rng),
        other=lexicon.name(rng),
        town=lexicon.name(rng),
        time=lexicon.time(rng),
        verb=verb,
        verbed=words.past(verb),
        noun=noun,
        a_noun=words.article(noun),
        adj=lexicon.adjective(rng),
        a_trade=words.article(lexicon.trade(rng)),
        number=rng.randint(3, 980),
    )
