"""Tree speculation in transformers' own `generate`: model.generate(**inputs, custom_generate=tree_speculation(...)).

`generate` prepares inputs, logits processors and stopping criteria as usual; the callable decodes with draft trees. A
processor that reads the text before a token gets each tree node's own path.
"""

import inspect
import math
from copy import copy

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from lib.attention.registration import TREE, can_host_tree, using_attention
from lib.decoding.loop import generate, padded
from lib.decoding.records import Hooks
from lib.trees.tree import Tree

# What transformers (as of 5.23) keeps from callables, as names of variables of its `generate`.
NOT_PASSED = ("streamer", "assistant_model", "kwargs")
# Settings and keywords of `generate` that draft trees cannot honour, each with the reason.
BEAMS, DRAFTER = "beam search keeps several texts", "the drafter is given to tree_speculation"
SCORES, INPUTS = "the loop verifies trees and keeps no scores", "only input_ids are decoded"
REFUSED_SETTINGS = {
    "penalty_alpha": "contrastive search looks at hidden states", "dola_layers": "it decodes from several layers",
    "force_words_ids": f"constrained {BEAMS}", "constraints": f"constrained {BEAMS}", "use_mtp": DRAFTER,
    "assistant_early_exit": DRAFTER, "prompt_lookup_num_tokens": "it is a drafter: use make('lookup', pair)",
    "output_scores": SCORES, "output_logits": SCORES, "output_attentions": SCORES, "output_hidden_states": SCORES}
REFUSED_KEYWORDS = {
    "assistant_model": DRAFTER, "past_key_values": "the loop keeps a cache of its own",
    "streamer": "rows of a batch grow by different numbers of tokens", "inputs_embeds": INPUTS,
    "token_type_ids": INPUTS, "pixel_values": INPUTS, "position_ids": "a token's position is its index in its own text"}
# Processors that depend on a row's index in the batch or on earlier calls: all nodes of a tree share one call.
REFUSED_PROCESSORS = {
    "PrefixConstrainedLogitsProcessor", "EncoderRepetitionPenaltyLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"}


def tree_speculation(drafter, shape: str | Tree = "chain:4", rule: str = "naive"):
    """A callable for `custom_generate`: speculation with this drafter (see `lib.drafters`) and shape.

    rule: how sampled texts are verified (see `lib.verify.RULES`); without sampling it is "greedy". The drafter's model
    has attn_implementation "tree"; the target may have any, and has it again afterwards. Give stop strings as a
    StopStringCriteria: transformers does not pass `tokenizer` to callables. ValueError names an argument of `generate`
    that draft trees cannot honour, such as a cache of the caller's.
    """

    def custom_generate(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        # the arguments, some of them from the frame of `generate`, which offers no other way to them
        caller = inspect.currentframe().f_back.f_locals
        streamer, assistant, keywords = map(caller.get, NOT_PASSED)
        _refuse(model, generation_config, logits_processor, (keywords or {}) | {
            "assistant_model": assistant, "streamer": streamer if len(input_ids) > 1 else None})
        # the ends: the loop itself observes the tokens that end a text, and its greatest length
        ends, longest, others = [], math.inf, StoppingCriteriaList()
        for criterion in stopping_criteria:
            if type(criterion) is EosTokenCriteria:
                ends += criterion.eos_token_id.flatten().tolist()
            elif type(criterion) is MaxLengthCriteria:
                longest = min(longest, criterion.max_length)
            else:
                others.append(criterion)
        # the text
        sampled = generation_config.do_sample
        processors = [_of_row(logits_processor, row) for row in range(len(input_ids))]
        _refuse_states(processors[0], input_ids[:1], model.get_output_embeddings().out_features)
        with using_attention(model, TREE):
            done = generate(
                model, drafter, input_ids, attention_mask=model_kwargs.get("attention_mask"), shape=shape,
                rule=rule if sampled else "greedy", temperature=float(sampled),  # the processors have warped already
                max_new_tokens=max(1, longest - input_ids.shape[1]),  # criteria of length are evaluated after a token
                eos_token_id=ends, hooks=_hooks(input_ids.cpu(), processors, others, streamer),
                # seeded from torch's own generator, which transformers' sampling uses
                generator=torch.Generator().manual_seed(int(torch.randint(2**62, ()))) if sampled else None)
        if streamer is not None:
            streamer.end()
        sequences = padded(input_ids, done.new_tokens, int(generation_config._pad_token_tensor or 0))
        return GenerateDecoderOnlyOutput(sequences) if generation_config.return_dict_in_generate else sequences

    return custom_generate


def _hooks(prompts: Tensor, processors: list[LogitsProcessorList], criteria: StoppingCriteriaList, streamer) -> Hooks:
    """Only the hooks that are needed: a loop without them reads best tokens directly from the logits.

    prompts: int64[B, T], with their padding as processors expect it; processors: those of each row.
    """

    def adjust(row: int, contexts: list[list[int]], logits: Tensor) -> Tensor:
        """Logits [m, V] processed for each node's own text; nodes of one depth share a call, as a batch."""
        adjusted = torch.empty_like(logits)
        for length in sorted({len(context) for context in contexts}):
            nodes = [i for i, context in enumerate(contexts) if len(context) == length]
            added = torch.tensor([contexts[i] for i in nodes], dtype=torch.long).reshape(len(nodes), length)
            text = torch.cat([prompts[row].expand(len(nodes), -1), added], dim=1).to(logits.device)
            adjusted[nodes] = processors[row](text, logits[nodes].float()).to(adjusted.dtype)
        return adjusted

    def stop(row: int, written: list[int]) -> bool:
        """Whether any criterion of the caller ends the row after its last token."""
        return bool(criteria(torch.cat([prompts[row], torch.tensor(written)])[None], None).any())

    return Hooks(adjust if any(map(len, processors)) else None, stop if len(criteria) else None,
                 None if streamer is None else lambda row, tokens: streamer.put(torch.tensor([tokens])))


def _of_row(processors: LogitsProcessorList, row: int) -> LogitsProcessorList:
    """The processors for this row alone: a penalty on repetition holds the length of each row's padding."""
    of_row = LogitsProcessorList(map(copy, processors))
    for processor in of_row:
        if isinstance(lengths := getattr(processor, "prompt_ignore_length", None), Tensor):
            processor.prompt_ignore_length = int(lengths[row])
    return of_row


def _refuse_states(processors: LogitsProcessorList, text: Tensor, vocabulary: int) -> None:
    """ValueError with the name of the first processor that gives other scores when it is called again: with a text
    int64[1, T], with two tokens after it of those that it allows, and once more. The nodes of a tree are such calls.
    """
    scores = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(0)).to(text.device)
    for processor in processors:
        try:
            first = processor(text, scores.clone())
            after = [torch.cat([text, token.view(1, 1)], dim=1) for token in first[0].topk(2).indices]
            once, again = ([processor(ids, scores.clone()) for ids in texts] for texts in (after, [text, *after]))
            is_repeated = all(torch.allclose(*pair, equal_nan=True) for pair in zip([first, *once], again))
            reason = "" if is_repeated else "it keeps a state between calls, and gives the same text other scores"
        except Exception as error:  # whatever one raises for a text that does not go on where the last one ended
            reason = f"it fails when a text is not the last one with a token more ({type(error).__name__}: {error})"
        if reason:
            raise ValueError(f"tree_speculation cannot honour {type(processor).__name__}: {reason}; leave it out, or "
                             "use plain generate")


def _refuse(model, config, processors: LogitsProcessorList, keywords: dict) -> None:
    """ValueError with the name of the first argument that draft trees cannot honour."""
    refused = [(name, reason) for name, reason in REFUSED_SETTINGS.items() if getattr(config, name, None)]
    refused += [(name, reason) for name, reason in REFUSED_KEYWORDS.items() if keywords.get(name) is not None]
    refused += [(type(processor).__name__, "it depends on a row's index in the batch or on earlier calls")
                for processor in processors if type(processor).__name__ in REFUSED_PROCESSORS]
    if (config.num_beams or 1) > 1:
        refused.append(("num_beams", BEAMS))
    if not config.use_cache:
        refused.append(("use_cache=False", "draft trees live in a cache"))
    if reason := can_host_tree(model.config):
        refused.append((type(model).__name__, reason))
    if refused:
        name, reason = refused[0]
        raise ValueError(f"tree_speculation cannot honour {name}: {reason}; leave it out, or use plain generate")
