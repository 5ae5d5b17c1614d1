"""Generated English: dialogues with a purpose, stories of high entropy, questions on a passage, and summaries that
extract the topic sentence of each paragraph.
"""

from random import Random

from lib.making.corpus import words
from lib.making.corpus.words import Lexicon

OPENINGS = ["Good morning, {b} speaking.", "Hello {a}, what can I do for you?", "Workshop of {b}, how may I help?",
            "Yes, {a}?"]
TURNS = {
    "order": [
        ("I would like to order {count} {adj} {nouns}.", "Certainly, {count} {adj} {nouns}. That makes {price} coins."),
        ("Do you still have {a_noun}?", "We have {count} left, at {price} coins each."),
        ("Please send {a_noun} to {town}.", "It will reach {town} {time}."),
    ],
    "repair": [("My {adj} {noun} is broken.", "Bring it {time}, and {other} will look at it."),
               ("Can you {verb} the {noun} too?", "Yes, but to {verb} it costs {price} coins."),
               ("How long does it take?", "About {count} days, since {other} has to {verb} the {noun}.")],
    "meeting": [("Could we meet {time}?", "Not {time}, I have to {verb} the {noun}. What about {time2}?"),
                ("Shall we meet in {town}?", "Rather at the {noun} in {town}."),
                ("Who else will be there?", "{other} and {a_trade} from {town}.")],
    "news": [("Have you heard about the {noun}?", "No. Did somebody {verb} it?"),
             ("{other} said that the {adj} {noun} was {verbed} {time}.",
              "I am not surprised, {other} always wanted {a_noun}."),
             ("They paid {price} coins for it.", "For {a_noun}? That is {adj}.")],
}
CLOSINGS = [("Thank you, {b}.", "You are welcome, {a}. Good day."),
            ("That is all.", "Then the number of your order is {code}."),
            ("I will call again {time}.", "Please ask for {other}."), ("Goodbye then.", "Goodbye, {a}.")]


def dialogue(rng: Random, lexicon: Lexicon) -> str:
    """Two people settle something in several turns; topics and opening form the rule."""
    a, b = lexicon.names(rng, 2)
    first, second, opening = lexicon.rule(rng, "dialogue", TURNS, TURNS, range(len(OPENINGS)))
    lines = [(b, OPENINGS[opening])]
    for topic in (first, second):
        for ask, answer in rng.sample(TURNS[topic], rng.randint(2, 3)):
            lines.append((a, (ask, answer)))
    lines.append((a, rng.choice(CLOSINGS)))
    written = []
    for speaker, line in lines:
        fields = dict(_conversation_words(rng, lexicon), a=a, b=b)
        exchange = [(speaker, line)] if isinstance(line, str) else [(a, line[0]), (b, line[1])]
        written += [f"{name}: {words.sentence(text.format(**fields))}" for name, text in exchange]
    return f"A conversation between {a} and {b}.\n\n" + "\n".join(written)


BEGINNINGS = ["{hero} had never wanted {a_noun}.",
              "There was once {a_trade} called {hero}, who lived by the {noun} of {town}.",
              "Nobody in {town} could {verb} like {hero}.",
              "{time}, {hero} left {town} with {a_noun} and {count} coins.",
              "The letter that reached {hero} {time} smelled of {noun}."]
MIDDLES = ["{hero} {verbed} the {noun} and {verbed2} {a_noun2}.",
           '"{verb} the {noun}," said {other}, "or {verb2} it {time}."', "The {adj} {noun} was {adj2} and {adj3}.",
           "{time}, {a_trade} from {town} came with {count} {nouns}.",
           "It was {adj} in {town}, and the {nouns} were {adj2}.", "{other} {verbed} it {time}.",
           "While {verbing} the {noun}, {hero} thought of {other}.",
           "Behind the {noun} stood {a_noun2}, {adj} and {adj2}.", '"What is {a_noun} worth in {town}?" asked {hero}.',
           "{other} did not answer but {verbed} the {adj} {noun}.",
           "There were {count} {nouns} in the {noun2}, and not one was {adj}.",
           "So {hero} and {other} {verbed} {time} until the {noun} was {adj}.",
           "A {adj} {noun} is worth more than {count} {adj2} {nouns}, as they say in {town}."]
ENDINGS = ["And {hero} never {verbed} again.", "The {noun} is still in {town}, {adj} as ever.",
           "{other} kept the {noun}, and {hero} kept the {noun2}.", "That is why the {nouns} of {town} are {adj}."]


def story(rng: Random, lexicon: Lexicon) -> str:
    """A story of freely drawn sentences, most of which are unpredictable."""
    hero, friend = lexicon.names(rng, 2)
    begin, second, end = lexicon.rule(rng, "story", range(len(BEGINNINGS)), range(len(MIDDLES)), range(len(ENDINGS)))
    forms = [BEGINNINGS[begin], MIDDLES[second], *(rng.choice(MIDDLES) for _ in range(rng.randint(14, 26))),
             ENDINGS[end]]
    sentences = []
    for form in forms:
        fields = dict(_conversation_words(rng, lexicon), hero=hero)
        fields["other"] = friend if rng.random() < 0.6 else fields["other"]
        sentences.append(words.sentence(form.format(**fields)))
    cut = rng.randint(5, 9)
    return "\n\n".join(" ".join(sentences[i : i + cut]) for i in range(0, len(sentences), cut))


def _conversation_words(rng: Random, lexicon: Lexicon) -> dict:
    verb, verb2, noun, noun2 = lexicon.verb(rng), lexicon.verb(rng), lexicon.noun(rng), lexicon.noun(rng)
    adj, adj2, adj3 = (lexicon.adjective(rng) for _ in range(3))
    return dict(  # drawn in this order
        other=lexicon.name(rng), town=lexicon.name(rng), time=lexicon.time(rng), time2=lexicon.time(rng),
        verb=verb, verb2=verb2, verbed=words.past(verb), verbed2=words.past(verb2), verbing=words.gerund(verb),
        noun=noun, noun2=noun2, nouns=words.plural(noun), a_noun=words.article(noun), a_noun2=words.article(noun2),
        adj=adj, adj2=adj2, adj3=adj3, a_trade=words.article(lexicon.trade(rng)), count=rng.randint(2, 90),
        price=rng.randint(3, 400), code=f"{rng.randint(1, 99):02d}-{rng.randint(100, 9999)}",
    )


STATEMENTS = {
    "trade": ["{name} works as {a_trade}.", "{name} has been {a_trade} for {years} years.",
              "By trade, {name} is {a_trade}."],
    "town": ["{name} lives in {town}.", "The home of {name} is in {town}.", "{name} moved to {town} {time}."],
    "owns": ["{name} owns {a_thing}.", "What {name} likes best is {a_thing}.", "{name} would never sell {a_thing}."],
    "born": ["{name} was born in {born}.", "In {born}, {name} was born.", "{name} came into the world in {born}."],
}
QUESTIONS = {
    "trade": [("What is the trade of {name}?", "{name} is {a_trade}."),
              ("Who works as {a_trade}?", "{name} works as {a_trade}.")],
    "town": [("Where does {name} live?", "{name} lives in {town}."),
             ("Who lives in {town}?", "{name} lives in {town}.")],
    "owns": [("What does {name} own?", "{name} owns {a_thing}."), ("Who owns {a_thing}?", "{name} owns {a_thing}.")],
    "born": [("When was {name} born?", "{name} was born in {born}."),
             ("Who was born in {born}?", "{name} was born in {born}.")],
}


def questions(rng: Random, lexicon: Lexicon) -> str:
    """A passage about several people, then questions with answers from the passage."""
    names, towns = lexicon.names(rng, 5), lexicon.names(rng, 5)
    trades = {lexicon.trade(rng) for _ in range(40)}
    trades = rng.sample(sorted(trades), min(5, len(trades)))
    births, things = rng.sample(range(1890, 2010), 5), lexicon.nouns(rng, 5)
    people = [dict(name=name, town=town, a_trade=words.article(trade), born=born, years=rng.randint(2, 40),
                   time=lexicon.time(rng), a_thing=words.article(f"{lexicon.adjective(rng)} {thing}"))
              for name, town, trade, born, thing in zip(names, towns, trades, births, things)]
    facts = [(person, kind) for person in people for kind in STATEMENTS if rng.random() < 0.85]
    rng.shuffle(facts)
    passage = " ".join(rng.choice(STATEMENTS[kind]).format(**person) for person, kind in facts)
    questioned = rng.sample(facts, min(len(facts), rng.randint(6, 10)))
    order = lexicon.rule(rng, "questions", *[range(2)] * len(questioned))
    pairs = []
    for (person, kind), form in zip(questioned, order):
        question, answer = QUESTIONS[kind][form]
        pairs.append(f"Question: {question}\nAnswer: {answer}".format(**person))
    return "Read the passage and answer the questions.\n\n" + passage + "\n\n" + "\n".join(pairs)


TOPICS = ["The town council of {town} decided {time} to {verb} the {adj} {noun}.",
          "{name}, {a_trade} from {town}, has {verbed} {a_noun} that nobody had noticed.",
          "A {adj} {noun} was found {time} in {town}.", "The price of the {adj} {noun} has risen to {number} coins.",
          "Visitors to {town} can now {verb} the {noun} of {name}.", "{name} will {verb} the {noun} of {town} {time}.",
          "More than {number} people came to {town} to {verb} the {adj} {noun}.",
          "The {noun} that {name} {verbed} {time} belongs to {town} again."]
DETAILS = ["It had been {adj} for {number} years.", "Few people remember the {adj} {noun}.",
           '"We had to {verb} it," said {other}, who works as {a_trade}.', "The {noun} was {verbed} {time}.",
           "Nobody expected the {noun} to be so {adj}.", "{other} paid {number} coins for it.",
           "Others would rather {verb} the {noun}.", "According to {other}, this is {adj} news.",
           "The work took {number} days and {a_noun}.", "Only {a_noun} was left behind."]


def summary(rng: Random, lexicon: Lexicon) -> str:
    """An article of several paragraphs, then a summary that lists the first sentence of each."""
    paragraphs, topics = [], []
    order = lexicon.rule(rng, "topics", *[range(len(TOPICS))] * rng.randint(3, 5))
    for form in order:
        first = words.sentence(TOPICS[form].format(**_article_words(rng, lexicon)))
        rest = [words.sentence(rng.choice(DETAILS).format(**_article_words(rng, lexicon)))
                for _ in range(rng.randint(2, 4))]
        topics.append(first)
        paragraphs.append(" ".join([first, *rest]))
    listed = "\n".join(f"{number}. {topic}" for number, topic in enumerate(topics, 1))
    article = "\n\n".join(paragraphs)
    return f"Summarise the article in its most important sentences.\n\n{article}\n\nSummary:\n{listed}"


def _article_words(rng: Random, lexicon: Lexicon) -> dict:
    verb, noun = lexicon.verb(rng), lexicon.noun(rng)
    return dict(  # drawn in this order
        name=lexicon.name(rng), other=lexicon.name(rng), town=lexicon.name(rng), time=lexicon.time(rng),
        verb=verb, verbed=words.past(verb), noun=noun, a_noun=words.article(noun), adj=lexicon.adjective(rng),
        a_trade=words.article(lexicon.trade(rng)), number=rng.randint(3, 980),
    )
