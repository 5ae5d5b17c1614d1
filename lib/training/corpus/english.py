"""Generated English: dialogues with a purpose, stories of high entropy, questions on a passage, and summaries that
extract the topic sentence of each paragraph.
"""

from random import Random

from lib.training.corpus import words
from lib.training.corpus.words import Lexicon


def dialogue(rng: Random, lexicon: Lexicon) -> str:
    """Two people settle something in several turns; topics and opening form the rule."""
    frames, (a, b) = words.language()["dialogue"], lexicon.names(rng, 2)
    openings, turns = frames["openings"], frames["turns"]
    first, second, opening = lexicon.rule(rng, "dialogue", turns, turns, range(len(openings)))
    exchanges = [[(b, openings[opening])]]
    for topic in (first, second):
        exchanges += [[(a, ask), (b, answer)] for ask, answer in rng.sample(turns[topic], rng.randint(2, 3))]
    exchanges.append(list(zip((a, b), rng.choice(frames["closings"]))))
    written = []
    for exchange in exchanges:
        fields = dict(_conversation_words(rng, lexicon), a=a, b=b)
        written += [f"{name}: {words.sentence(text.format(**fields))}" for name, text in exchange]
    return f"A conversation between {a} and {b}.\n\n" + "\n".join(written)


def story(rng: Random, lexicon: Lexicon) -> str:
    """A story of freely drawn sentences, most of which are unpredictable."""
    hero, friend = lexicon.names(rng, 2)
    beginnings, middles, endings = words.language()["story"].values()
    begin, second, end = lexicon.rule(rng, "story", range(len(beginnings)), range(len(middles)), range(len(endings)))
    forms = [beginnings[begin], middles[second], *(rng.choice(middles) for _ in range(rng.randint(14, 26))),
             endings[end]]
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


def questions(rng: Random, lexicon: Lexicon) -> str:
    """A passage about several people, then questions with answers from the passage."""
    statements, forms = words.language()["questions"].values()
    names, towns = lexicon.names(rng, 5), lexicon.names(rng, 5)
    trades = {lexicon.trade(rng) for _ in range(40)}
    trades = rng.sample(sorted(trades), min(5, len(trades)))
    births, things = rng.sample(range(1890, 2010), 5), lexicon.nouns(rng, 5)
    people = [dict(name=name, town=town, a_trade=words.article(trade), born=born, years=rng.randint(2, 40),
                   time=lexicon.time(rng), a_thing=words.article(f"{lexicon.adjective(rng)} {thing}"))
              for name, town, trade, born, thing in zip(names, towns, trades, births, things)]
    facts = [(person, kind) for person in people for kind in statements if rng.random() < 0.85]
    rng.shuffle(facts)
    passage = " ".join(rng.choice(statements[kind]).format(**person) for person, kind in facts)
    questioned = rng.sample(facts, min(len(facts), rng.randint(6, 10)))
    order = lexicon.rule(rng, "questions", *[range(2)] * len(questioned))
    pairs = []
    for (person, kind), form in zip(questioned, order):
        question, answer = forms[kind][form]
        pairs.append(f"Question: {question}\nAnswer: {answer}".format(**person))
    return "Read the passage and answer the questions.\n\n" + passage + "\n\n" + "\n".join(pairs)


def summary(rng: Random, lexicon: Lexicon) -> str:
    """An article of several paragraphs, then a summary that lists the first sentence of each."""
    leads, details = words.language()["summary"].values()
    paragraphs, topics = [], []
    order = lexicon.rule(rng, "topics", *[range(len(leads))] * rng.randint(3, 5))
    for form in order:
        first = words.sentence(leads[form].format(**_article_words(rng, lexicon)))
        rest = [words.sentence(rng.choice(details).format(**_article_words(rng, lexicon)))
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
