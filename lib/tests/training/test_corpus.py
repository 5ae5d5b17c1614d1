"""The corpus: held-out text shares no source, lexeme or rule with training text, and the generators tell the truth."""

import json
import re
from random import Random

import pytest

from lib.training.corpus import arithmetic, mixture, translation, words
from lib.training.corpus.words import HELD_OUT, TRAIN, is_held_out
from lib.models import prompts
from lib.models.held_out import resolve


def held_out_words():
    return {word for kind in ("noun", "trade") for word in words.language()[f"{kind}s"] if is_held_out(kind, word)}


def nouns_of(text):
    """The noun stems and trades of the lists that stand in a text, singular or plural."""
    lists = words.language()
    known = {form: word for word in (*lists["nouns"], *lists["trades"]) for form in (word, words.plural(word))}
    verbs = {form for verb in lists["verbs"]
             for form in (verb, words.past(verb), words.plural(verb), words.gerund(verb))}
    ambiguous = verbs | set(lists["adjectives"])
    return {known[token] for token in re.findall(r"\b[a-z]+\b", text) if token in known and token not in ambiguous}


@pytest.mark.parametrize("kind", mixture.GENERATORS)
def test_splits_share_no_noun_and_no_trade(kind):
    frames = {"workshop", "coin", "letter"}  # words that the sentence frames themselves use
    train = set().union(*(nouns_of(mixture.GENERATORS[kind](Random(seed), TRAIN)) for seed in range(60))) - frames
    held = set().union(*(nouns_of(mixture.GENERATORS[kind](Random(seed), HELD_OUT)) for seed in range(60))) - frames
    assert not train & held_out_words() and not held - held_out_words()


def test_names_and_rules_are_split_by_their_own_hash():
    rng = Random(0)
    assert not any(is_held_out("name", TRAIN.name(rng)) for _ in range(300))
    assert all(is_held_out("name", HELD_OUT.name(rng)) for _ in range(300))
    for split in (TRAIN, HELD_OUT):
        drawn = [split.rule(rng, "r", range(9), range(9)) for _ in range(200)]
        assert all(is_held_out("rule", "r", *rule) == split.held_out for rule in drawn)


def committed() -> list[dict]:
    return [json.loads(line) for line in prompts.FAMILY.read_text().splitlines()]


def test_no_committed_prompt_comes_from_a_training_source():
    rows = committed()
    real = [row["source"] for row in rows if "source" in row]
    assert len(real) == 2 * len(rows) // len(mixture.KINDS)
    assert all(is_held_out("file", source["package"], source["path"], one_in=25) for source in real)
    names = {name
             for row in rows
             if row["category"] == "questions"
             for name in re.findall(r"The home of (\w+) is", row["turns"][0])}
    assert names and all(is_held_out("name", name) for name in names)
    assert {row["category"] for row in rows} == set(mixture.KINDS)


def test_a_prompts_source_is_found_again_or_refused():
    source = next(row["source"] for row in committed() if "source" in row)
    text = resolve(source)
    assert len(text) == source["end"] - source["start"]
    with pytest.raises(LookupError, match="differs from the file that the prompt was cut from"):
        resolve({**source, "sha256": "0" * 64})
    with pytest.raises(LookupError, match="is not installed"):
        resolve({**source, "path": "nowhere.py"})


def test_generated_documents_depend_on_the_seed_alone():
    for kind in mixture.GENERATORS:
        once, again = (list(mixture.generated(kind, False, 3, 2000)) for _ in range(2))
        assert once == again and once != list(mixture.generated(kind, False, 4, 2000))


@pytest.mark.parametrize("seed", range(40))
def test_arithmetic_is_right(seed):
    sheet = arithmetic.document(Random(seed), TRAIN)
    for left, result in re.findall(r"Step \d+: ([-\d +*]+) = (-?\d+)", sheet):
        assert eval(left, {"__builtins__": {}}) == int(result)
    for expression, answer in re.findall(r"compute ([-\d +*()]+)\.\n(?:Step.*\n)+Answer: (-?\d+)", sheet):
        assert eval(expression, {"__builtins__": {}}) == int(answer)


def test_velan_marks_case_number_tense_and_mood():
    one = translation.Phrase("dog", None, None, False)
    many = translation.Phrase("cat", None, "old", True)
    dog, cat, old, see = map(translation.velan, ("dog", "cat", "old", "watch"))
    told = translation.Clause(many, "watch", one, ("under", one), "past", True, True)
    assert told.english() == "Did the old cats not watch the dog under the dog?"
    assert told.velan() == f"Ka {cat}k {old}ke {dog}is dun {dog}n ne{see}tak?"
    plain = translation.Clause(one, "watch", many, None, "present", False, False)
    assert (plain.english() == "The dog watches the old cats."
            and plain.velan() == f"{dog} {cat}kan {old}ke {see}ra.".capitalize())


def test_the_lexicon_is_large_enough_in_both_splits():
    for split in (TRAIN, HELD_OUT):
        assert len(words._own("noun", split.held_out)) >= 15
        assert len(words._own("trade", split.held_out)) >= 5


def test_the_file_of_prompts_names_every_prompt_once():
    lines = [json.loads(line) for line in prompts.FAMILY.read_text().splitlines()]
    assert len({line["question_id"] for line in lines}) == len(lines)
