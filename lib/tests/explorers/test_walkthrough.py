"""A decoding told round by round is the decoding, with the drafter's own probabilities, and pictures show all of it."""

import re
from html import unescape
from types import SimpleNamespace

import matplotlib
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.decoding import generate
from lib.decoding.walkthrough import DRAFT, PROMPT, TARGET, UNFINISHED, added_texts, walk
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.drafters.merged import MergedDrafter
from lib.tests.plain_drafter import PlainDrafter
from lib.explorers.rounds_explorer import describe_round, legend, of_step, running_text
from lib.forward.reduced import reduced
from lib.lab.theme import ROLES
from lib.tests import small_models
from lib.tests.letters import Letters
from lib.trees.picture import visible

matplotlib.use("agg")
MODEL = small_models.llama(0)
OTHER = small_models.related(MODEL, 1, noise=0.3)
PROMPT_IDS = small_models.prompts(2, (9,))[0]
NEW = 20


def pair(eos=()):
    return SimpleNamespace(target=MODEL, tokenizer=Letters(),
                           eos_token_ids=eos)


def seeded(temperature):
    return torch.Generator().manual_seed(3) if temperature else None


def told(shape="kary:2@6", drafter=None, temperature=0.0, eos=(), new=NEW):
    return walk(pair(eos), drafter or LanguageModelDrafter(OTHER), PROMPT_IDS, shape, temperature=temperature,
                rule="naive" if temperature else "greedy", new_tokens=new, generator=seeded(temperature))


def decoded(shape="kary:2@6", drafter=None, temperature=0.0):
    return generate(MODEL, drafter or LanguageModelDrafter(OTHER), PROMPT_IDS[None], shape=shape,
                    temperature=temperature, rule="naive" if temperature else "greedy", max_new_tokens=NEW,
                    generator=seeded(temperature))


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", ["chain:4", "kary:2@6", "star:5", "expansion:2,2,1"])
def test_the_steps_are_the_decoding(shape, temperature):
    steps, done = told(shape, temperature=temperature), decoded(shape, temperature=temperature)
    assert "".join(text for text, _ in steps[-1].text) == Letters().decode(done.sequences[0])
    for step, found in zip(steps, done.rounds, strict=True):
        ours = step.text[-step.fresh:]
        assert len(step.text) - 1 == found.position + step.fresh
        whole = [*((step.tokens[node], DRAFT) for node in step.accepted), (step.bonus, TARGET)]
        assert [*ours] == whole[: NEW - found.position] and len(step.accepted) == found.accepted
    assert [who for _, who in steps[0].text[:2]] == [PROMPT, TARGET], "the first token is the prefill's"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_totals_are_those_of_the_rounds_so_far(temperature):
    rounds = decoded(temperature=temperature).rounds
    for number, step in enumerate(told(temperature=temperature), 1):
        assert (step.number, step.rounds) == (number, len(rounds))
        length = sum(found.accepted for found in rounds[:number]) / number
        assert step.so_far.acceptance_length == length and step.so_far.acceptance_rate == pytest.approx(length / 6)


@pytest.mark.parametrize("drafter", [
    LanguageModelDrafter(reduced(OTHER, torch.arange(3, 20))), PlainDrafter(OTHER),
    LanguageModelDrafter(OTHER, proposal="iid", temperature=0.7),
    LanguageModelDrafter(OTHER, proposal="without_replacement")])
def test_probabilities_are_those_of_a_forward_without_cache_behind_each_path(drafter):
    for step in told("expansion:2,2,1", drafter, temperature=1.0):
        committed = [*Letters.ids("".join(text for text, _ in step.text[: len(step.text) - step.fresh]))]
        own = Letters.ids("".join(step.tokens))
        assert committed[-1] == own[0] and step.probabilities[0] == 1
        for node in range(1, step.tree.size):
            path = [own[above] for above in step.tree.path(node)[1:-1]]
            logits = drafter.model(torch.tensor([committed + path])).logits[0, -1]
            expected = torch.softmax(logits / drafter.temperature, -1)[own[node]].item()
            assert step.probabilities[node] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("drafter", [
    LookupDrafter(), MergedDrafter(LanguageModelDrafter(OTHER), LanguageModelDrafter(MODEL))])
def test_drafters_that_are_no_language_model_are_told_without_probabilities(drafter):
    steps = told("kary:2@6", drafter)
    assert {step.probabilities for step in steps} == {None}
    drawn = of_step(max(steps, key=lambda step: step.tree.budget))
    assert re.search(r">(<1|&lt;1|\d+)%</text>", drawn) and "%/" not in drawn, "the target's alone"


def test_a_round_that_passes_the_limit_counts_whole_and_writes_what_fits():
    full = told("chain:5", LanguageModelDrafter(MODEL), new=13)  # its own drafter: 1, then 6 a round, so that 13 fit
    short = told("chain:5", LanguageModelDrafter(MODEL), new=11)
    assert [step.fresh for step in full] == [6, 6] and [step.fresh for step in short] == [6, 4]
    assert short[1].accepted == full[1].accepted and (short[1].number, short[1].so_far.acceptance_length) == (2, 5.0)
    assert "the text ends after the first 4" in describe_round(short[1])
    assert "ends" not in describe_round(full[1])
    assert "–" in describe_round(told("chain:0", new=3)[0]), "without draft tokens there is no rate"


def test_without_a_round_there_is_no_step():
    first = decoded().new_tokens[0][0]
    assert told(eos=(first,)) == [] and told(new=1) == []


def test_what_cannot_be_decoded_is_refused_by_name():
    with pytest.raises(ValueError, match="window has 256"):
        told(new=400)
    with pytest.raises(ValueError, match="one prompt of at least a token"):
        walk(pair(), LanguageModelDrafter(OTHER), PROMPT_IDS[:0], "chain:2")


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids, **options):
        return bytes(ids).decode(errors="replace")


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet=st.characters(exclude_characters=UNFINISHED, codec="utf-8")),
       st.text(alphabet="aé你🌲\n ", max_size=12))
def test_texts_of_tokens_add_up_and_split_no_character(before, text):
    pieces = added_texts(Bytes(), list(before.encode()), list(text.encode()))
    assert "".join(pieces) == text and len(pieces) == len(text.encode())
    assert [piece for piece in pieces if piece] == list(text)


def test_the_drawing_holds_every_token_and_both_probabilities():
    step = max(told(), key=lambda step: len(step.accepted))
    written = [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", of_step(step))]
    for label in (*step.tokens, step.bonus):
        assert visible(label) in written
    for both in list(zip(step.probabilities, step.target_probabilities))[1:]:
        assert "/".join("<1%" if chance < 0.005 else f"{chance:.0%}" for chance in both) in written


def test_the_targets_probabilities_are_those_of_a_forward_behind_each_path():
    for step in told("expansion:2,2,1"):
        committed = [*Letters.ids("".join(text for text, _ in step.text[: len(step.text) - step.fresh]))]
        own = Letters.ids("".join(step.tokens))
        for node in range(1, step.tree.size):
            path = [own[above] for above in step.tree.path(node)[1:-1]]
            logits = MODEL(torch.tensor([committed + path])).logits[0, -1]
            expected = torch.softmax(logits, -1)[own[node]].item()
            assert step.target_probabilities[node] == pytest.approx(expected, abs=1e-9)


def test_the_speed_is_that_of_the_rounds_so_far():
    steps = told()
    tokens = [sum(len(each.accepted) + 1 for each in steps[:number]) for number in range(1, len(steps) + 1)]
    assert [step.written for step in steps] == tokens
    assert [step.seconds for step in steps] == sorted(step.seconds for step in steps)
    assert "tokens per second (50 plainly)." in describe_round(steps[0], 50.0)


def test_the_running_text_says_who_wrote_what_and_escapes_it():
    step = told()[2]
    html = running_text(step)
    assert html.count('title="draft"') == sum(who == DRAFT for _, who in step.text)
    assert html.count('title="target"') == sum(who == TARGET for _, who in step.text)
    assert html.count("border-bottom:2px") == step.fresh and "<pre" in html
    odd = SimpleNamespace(text=(("<b>", PROMPT), ("$x$ &", DRAFT), ("\n", TARGET)), fresh=1)
    assert "&lt;b&gt;" in running_text(odd) and "$x$ &amp;" in running_text(odd) and "↵" in running_text(odd)
    long = SimpleNamespace(text=(("first\n" * 9 + "last " * 99, PROMPT),), fresh=0)
    assert "first" not in running_text(long) and ">…" in running_text(long) and "last </span>" in running_text(long)
    assert all(ROLES[role] in legend() for role in ("root", "accepted", "rejected", "bonus"))


@pytest.mark.parametrize("text, label", [
    (" the", "·the"), ("\n        ", "↵·×8"), ("\t\r\n", "⇥↵"), ("   x", "···x"), ("x" * 30, "x" * 11 + "…"),
    ("\x00你", UNFINISHED + "你"), ("", "")])
def test_labels_show_white_space_and_stay_short(text, label):
    assert visible(text) == label
