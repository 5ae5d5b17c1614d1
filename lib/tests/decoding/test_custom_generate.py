"""`generate` with draft trees is `generate`: token for token in float64, whatever its configuration asks for.

`custom_generate` reads some arguments in the frame of `generate`: streamers and refusals fail where a new transformers
calls it otherwise.
"""

import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StopStringCriteria

from lib.decoding.custom_generate import tree_speculation
from lib.drafters.language_model import LanguageModelDrafter
from lib.models import SHIPPED
from lib.tests import small_models

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6))
SPECULATION = tree_speculation(LanguageModelDrafter(DRAFTER), "kary:2@6")


def batch(prompts=PROMPTS):
    """Left-padded inputs, as transformers wants them."""
    ids, mask = (pad_sequence(rows, batch_first=True, padding_side="left")
                 for rows in (prompts, [torch.ones_like(prompt) for prompt in prompts]))
    return dict(input_ids=ids, attention_mask=mask, pad_token_id=0)


def both(inputs, **settings):
    settings = dict(max_new_tokens=16, do_sample=False, eos_token_id=None) | settings
    return TARGET.generate(**inputs, **settings, custom_generate=SPECULATION), TARGET.generate(**inputs, **settings)


class AfterSeven(StoppingCriteria):
    """Stops a row at the first token above 15 after its fourth."""

    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids[:, -1] > 15) & (input_ids.shape[1] >= 15)


@pytest.mark.parametrize("settings", [
    {},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 9, "eos_token_id": [3, 5, 7]},
    {"repetition_penalty": 1.2, "bad_words_ids": [[4], [5, 6]], "suppress_tokens": [8]},
    {"max_new_tokens": 1},
    {"max_length": 20, "max_new_tokens": None},
    # a criterion may end a row inside a draft; one of length or end takes the place of the configuration's
    {"stopping_criteria": [AfterSeven()], "eos_token_id": 23},
    *({"stopping_criteria": [MaxLengthCriteria(max_length=length)]} for length in (16, 30, 4)),
    {"stopping_criteria": [EosTokenCriteria([3, 5, 7, 9, 11])]},
    {"stopping_criteria": [EosTokenCriteria(torch.tensor(5))], "eos_token_id": [3, 7]},
])
def test_greedy_is_the_models_own(settings):
    ours, theirs = both(batch(), **settings)
    assert torch.equal(ours, theirs)


def test_a_model_with_another_attention_has_it_again_afterwards():
    TARGET.set_attn_implementation("sdpa")
    try:
        ours, theirs = both(batch(), return_dict_in_generate=True)
        assert torch.equal(ours.sequences, theirs.sequences) and TARGET.config._attn_implementation == "sdpa"
    finally:
        TARGET.set_attn_implementation("tree")


class Collecting:
    """A streamer that keeps its tokens."""

    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, tokens):
        self.tokens += tokens.flatten().tolist()

    def end(self):
        self.ended = True


def test_a_streamer_gets_the_prompt_and_every_token_once_and_in_order():
    ours, theirs = Collecting(), Collecting()
    for stream, custom in ((ours, SPECULATION), (theirs, None)):
        output = TARGET.generate(**batch(PROMPTS[:1]), max_new_tokens=12, streamer=stream, custom_generate=custom)
    assert ours.tokens == theirs.tokens == output[0].tolist() and ours.ended


def test_sampling_follows_the_seed_and_the_processors():
    """top_k = 1 leaves greedy's choice alone; the same seed gives the same text."""
    assert torch.equal(both(batch(), do_sample=True, temperature=0.7, top_k=1)[0], both(batch())[1])
    runs = []
    for _ in range(2):
        torch.manual_seed(4)
        settings = dict(max_new_tokens=16, do_sample=True, temperature=1.5, top_p=0.9, num_return_sequences=2)
        runs.append(TARGET.generate(**batch(), **settings, custom_generate=SPECULATION))
    assert torch.equal(*runs) and len(runs[0]) == 6 and not torch.equal(runs[0][0], runs[0][1])


def test_the_law_of_a_sampled_token_is_the_processed_one():
    """Second token of a prompt, whose law depends on the first through the repetition penalty: counted."""
    inputs = {"input_ids": PROMPTS[0][None].expand(600, -1), "pad_token_id": 0}
    torch.manual_seed(0)
    counts = [torch.bincount(sampled[:, -2] * 24 + sampled[:, -1], minlength=576) / len(sampled)
              for sampled in both(inputs, max_new_tokens=2, do_sample=True, top_k=3, repetition_penalty=1.5)]
    assert 0.5 * (counts[0] - counts[1]).abs().sum() < 0.12


def test_stop_strings_come_as_a_criterion():
    """A text ends after the token that completes its string, wherever in a draft that is."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(SHIPPED / "tiny")
    for token in TARGET.generate(PROMPTS[1][None], max_new_tokens=9, do_sample=False, eos_token_id=None)[0, 13:]:
        criteria = [StopStringCriteria(tokenizer, [tokenizer.decode(token)])]
        ours, theirs = both(batch(PROMPTS[1:2]), stopping_criteria=criteria)
        assert torch.equal(ours, theirs) and ours.shape[1] < 11 + 16


@pytest.mark.parametrize("settings, message", [
    ({"num_beams": 2}, "num_beams: beam search"),
    ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
    ({"prefix_allowed_tokens_fn": lambda row, ids: [1, 2]}, "PrefixConstrainedLogitsProcessor"),
    ({"use_cache": False}, "use_cache"),
    ({"assistant_model": DRAFTER}, "assistant_model"),
    ({"assistant_early_exit": 1}, "assistant_early_exit"),
    ({"past_key_values": DynamicCache()}, "past_key_values: the loop keeps a cache of its own"),
    ({"force_words_ids": [[4]]}, "force_words_ids: constrained beam search"),
    ({"streamer": Collecting()}, "streamer: rows of a batch"),
    ({"position_ids": torch.arange(7, 18)[None]}, "position_ids"),
])
def test_what_cannot_be_honoured_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=f"tree_speculation cannot honour .*{message}"):
        TARGET.generate(**batch(), max_new_tokens=4, custom_generate=SPECULATION, **settings)
