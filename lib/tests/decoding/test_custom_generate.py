"""`generate` with draft trees is `generate`: token for token in float64, whatever its configuration asks for.

`custom_generate` reads some arguments in the frame of `generate`: streamers and refusals fail where a new transformers
calls it otherwise.
"""

import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StopStringCriteria

from lib.attention.registration import using_attention
from lib.decoding.custom_generate import tree_speculation
from lib.drafters.language_model import LanguageModelDrafter
from lib.models import SHIPPED
from lib.tests import small_models

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6))
TOKENIZER = transformers.AutoTokenizer.from_pretrained(SHIPPED / "tiny")
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
    {"min_new_tokens": 9, "eos_token_id": [3, 5, 7]},
    {"repetition_penalty": 1.2, "bad_words_ids": [[4], [5, 6]], "suppress_tokens": [8]},
    {"max_length": 20, "max_new_tokens": None},
    # a criterion may end a row inside a draft; one of length or end takes the place of the configuration's
    {"stopping_criteria": [AfterSeven()], "eos_token_id": 23},
    *({"stopping_criteria": [MaxLengthCriteria(max_length=length)]} for length in (16, 30, 4)),
    {"stopping_criteria": [EosTokenCriteria([3, 5, 7, 9, 11])]},
    {"stopping_criteria": [EosTokenCriteria(torch.tensor(5))], "eos_token_id": [3, 7]},
    *({"stopping_criteria": [StopStringCriteria(TOKENIZER, [TOKENIZER.decode(token)])], "eos_token_id": 1}
      for token in (3, 7, 9, 15)),
])
def test_greedy_is_the_models_own(settings):
    ours, theirs = both(batch(), **settings)
    assert torch.equal(ours, theirs)


class Collecting(list):
    """A streamer that keeps its tokens, and that it has ended."""

    def put(self, tokens):
        self.extend(tokens.flatten().tolist())

    def end(self):
        self.append("end")


def test_a_streamer_gets_every_token_once_and_in_order_and_a_model_has_its_attention_again():
    with using_attention(TARGET, "sdpa"):
        for stream, custom in ((ours := Collecting(), SPECULATION), (theirs := Collecting(), None)):
            output = TARGET.generate(**batch(PROMPTS[:1]), max_new_tokens=12, streamer=stream, custom_generate=custom,
                                     return_dict_in_generate=True)
        assert TARGET.config._attn_implementation == "sdpa"
    assert ours == theirs == [*output.sequences[0].tolist(), "end"]


def test_sampling_follows_the_seed_and_the_processors():
    """top_k = 1 leaves greedy's choice alone; the same seed gives the same text."""
    assert torch.equal(both(batch(), do_sample=True, temperature=0.7, top_k=1)[0], both(batch())[1])
    runs = []
    for _ in range(2):
        torch.manual_seed(4)
        settings = dict(max_new_tokens=16, do_sample=True, temperature=1.5, top_p=0.9, num_return_sequences=2)
        runs.append(TARGET.generate(**batch(), **settings, custom_generate=SPECULATION))
    assert torch.equal(*runs) and len(runs[0]) == 6 and not torch.equal(runs[0][0], runs[0][1])


def matcher(is_strict):
    """A processor that allows token 3, then 4, then 3, ..., call by call; a strict one knows the last text alone."""
    lengths = []

    def allow(input_ids, scores):
        assert not is_strict or not lengths or lengths[-1] == input_ids.shape[1] - 1, "a token was left out"
        lengths.append(input_ids.shape[1])
        return scores if is_strict else scores.index_fill(1, torch.tensor(3 + len(lengths) % 2), 9.0)

    return allow


@pytest.mark.parametrize("settings, message", [
    ({"logits_processor": [matcher(is_strict=False)]}, "function: it keeps a state between calls"),
    ({"logits_processor": [matcher(is_strict=True)]}, "function: it fails when .*AssertionError: a token was left out"),
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
