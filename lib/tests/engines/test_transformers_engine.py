"""transformers as an engine: its worker on small models counts what replay counts; its look-up as its own drafts."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from lib.engines.methods import Way
from lib.engines.transformers import CutLookupDrafter, EndedModelDrafter, Transformers
from lib.tests import small_models
from lib.tests.engines.stand_in import import_worker, replayed
from lib.trees import shapes

MODELS = {"target": small_models.llama(3), "drafter": small_models.related(small_models.llama(3), 4, 0.3)}
PROMPTS, TOKENS, DRAFTED = small_models.prompts(5, (9, 6, 12)), 24, 3


@pytest.fixture
def decode(monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda name, dtype: deepcopy(MODELS[name]))
    worker = import_worker("transformers_worker")

    def decode(method, *prompts, tokens=TOKENS, drafter="", ends=(), drafted=None, **options):
        worker.start("target", method, DRAFTED, drafter, options, torch.float64, torch.get_num_threads())
        return worker.decode([prompt.tolist() for prompt in prompts], tokens, list(ends), drafted)

    return decode


@pytest.mark.parametrize("method, name, drafter, options", [
    ("prompt_lookup", "", CutLookupDrafter([], 2), {"prompt_lookup_num_tokens": DRAFTED, "max_matching_ngram_size": 2}),
    ("assistant_model", "drafter", EndedModelDrafter(MODELS["drafter"], [0]), {})])
def test_rounds_start_at_the_prompts_last_token_and_are_those_of_replay(decode, method, name, drafter, options):
    """Look-up gives a draft its whole length wherever a token fits; a draft model shortens it to what fits."""
    (of_engine,) = (one for one in Transformers.methods if one.name == method)
    way = Way("", method, shapes.chain(DRAFTED), drafter=drafter, ending=of_engine.ending, at_prompt=True)
    for prompt in PROMPTS:
        (text,) = decode("plain", prompt, tokens=TOKENS + DRAFTED + 1)["tokens"]
        found, sizes = decode(method, prompt, drafter=name, **options), replayed(way, prompt, text, TOKENS)
        assert found["tokens"] == [text[:TOKENS]] and found["prefill"] < found["seconds"]
        assert (found["drafts"], found["drafted"], found["accepted"]) == ((sizes[:, 0] > 0).sum(), *sizes[:, :2].sum(0))


def test_forced_drafts_are_not_accepted_and_prompts_are_decoded_together_plainly_alone(decode):
    forced = decode("forced", PROMPTS[0], drafted=5, prompt_lookup_num_tokens=1)
    texts = [decode("plain", prompt)["tokens"][0] for prompt in PROMPTS]
    assert (forced["drafts"], forced["drafted"], forced["accepted"]) == (TOKENS, 5 * TOKENS, 0)
    end = texts[1][4]
    assert decode("plain", *PROMPTS, ends=[end])["tokens"] == [
        text[: text.index(end) + 1] if end in text else text for text in texts]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=30), st.integers(1, 4), st.integers(1, 5),
       st.sets(st.integers(0, 4), max_size=2))
def test_look_up_drafts_as_transformers_does(text, longest, count, ends):
    own = PromptLookupCandidateGenerator(torch.tensor(sorted(ends)) if ends else None, count, longest, max_length=99)
    (known := (drafter := CutLookupDrafter(ends, longest)).new_text()).extend(text)
    theirs = own.get_candidates(torch.tensor([text]))[0][0, len(text) :].tolist()
    assert drafter.draft(known, shapes.chain(count)).tokens.tolist()[1:] == theirs
