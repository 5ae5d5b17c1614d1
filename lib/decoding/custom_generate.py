"""Tree speculation in transformers' own `generate`: model.generate(**inputs, custom_generate=tree_speculation(...)).

`generate` prepares inputs, logits processors and stopping criteria as usual; the callable decodes with draft trees. A
processor that reads the text before a token gets each tree node's own path.
"""

import inspect
from copy import copy
from types import FrameType

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMixin

from lib.attention.registration import TREE, can_host_tree, using_attention
from lib.decoding.loop import generate, padded
from lib.decoding.records import Hooks
from lib.trees.tree import Tree

# Processors that depend on a row's place in the batch or on earlier calls: all nodes of a tree share one call.
REFUSED_PROCESSORS = frozenset({
    "PrefixConstrainedLogitsProcessor", "EncoderRepetitionPenaltyLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"})
# Arguments of `generate` that transformers (seen in 5.23) keeps from callables, as names of its local variables.
KEPT_BACK = ("streamer", "assistant_model", "kwargs")
UNKNOWN_KEYWORDS = ("inputs_embeds", "token_type_ids", "encoder_outputs", "pixel_values")


def tree_speculation(drafter, shape: str | Tree = "chain:4", rule: str = "naive"):
    """A callable for `custom_generate`: speculation with this drafter (see `lib.drafters`) and shape.

    rule: how sampled texts are verified (see `lib.verify.RULES`); without sampling it is "greedy". The drafter's model
    has attn_implementation "tree"; the target may have any, and has it again afterwards. Give stop strings as a
    StopStringCriteria: transformers keeps `tokenizer` from callables, and refuses its own `stop_strings` without one.
    ValueError names an argument of `generate` that draft trees cannot honour, such as a cache of the caller's.
    """

    def custom_generate(model, input_ids, logits_processor, stopping_criteria, generation_config, streamer=None,
                        **model_kwargs):
        given = _kept_back(inspect.currentframe().f_back)
        streamer = streamer or given["streamer"]  # `generate` has already given it the prompt
        model_kwargs["assistant_model"] = given["assistant_model"]
        model_kwargs["streamer"] = streamer if len(input_ids) > 1 else None
        if given["kwargs"] is not None:  # the caller's cache alone: transformers has prepared an empty one otherwise
            model_kwargs["past_key_values"] = given["kwargs"].get("past_key_values")
        _refuse(model, generation_config, logits_processor, model_kwargs)
        processors = [_of_row(logits_processor, row) for row in range(len(input_ids))]
        # The loop observes the tokens that end a text and its greatest length itself. A caller's own criterion of these
        # has replaced the one that the configuration makes.
        ends = {token for criterion in stopping_criteria if type(criterion) is EosTokenCriteria
                for token in criterion.eos_token_id.flatten().tolist()}
        longest = min(criterion.max_length for criterion in stopping_criteria if type(criterion) is MaxLengthCriteria)
        others = StoppingCriteriaList(criterion for criterion in stopping_criteria
                                      if type(criterion) not in (EosTokenCriteria, MaxLengthCriteria))
        sampled = generation_config.do_sample
        with using_attention(model, TREE):
            done = generate(
                model, drafter, input_ids, attention_mask=model_kwargs.get("attention_mask"), shape=shape,
                rule=rule if sampled else "greedy",
                temperature=1.0 if sampled else 0.0,  # the processors have warped already
                max_new_tokens=max(1, longest - input_ids.shape[1]),  # criteria of length are evaluated after a token
                eos_token_id=sorted(ends), hooks=_hooks(input_ids.cpu(), processors, others, streamer),
                # seeded from torch's own generator, which transformers' sampling uses
                generator=torch.Generator().manual_seed(int(torch.randint(2**62, ()))) if sampled else None)
        if streamer is not None:
            streamer.end()
        pad = generation_config._pad_token_tensor
        sequences = padded(input_ids, done.new_tokens, 0 if pad is None else int(pad))
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)
        return sequences

    return custom_generate


def _hooks(prompts: Tensor, processors: list[LogitsProcessorList], criteria: StoppingCriteriaList, streamer) -> Hooks:
    """The hooks that are needed alone: a loop without them reads best tokens directly from the logits.

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
        text = torch.cat([prompts[row], torch.tensor(written)])[None]
        return bool(criteria(text, None).any())

    def emit(row: int, tokens: list[int]) -> None:
        """Gives the streamer one token at a time, as it expects them."""
        for token in tokens:
            streamer.put(torch.tensor([token]))

    return Hooks(adjust if any(map(len, processors)) else None, stop if len(criteria) else None,
                 emit if streamer is not None else None)


def _kept_back(caller: FrameType) -> dict[str, object]:
    """The arguments that `generate` keeps from callables, from its frame: it offers no other way to them.

    None for each where the callable was not called by `generate`.
    """
    if caller.f_code is not inspect.unwrap(GenerationMixin.generate).__code__:
        return dict.fromkeys(KEPT_BACK)
    return {name: caller.f_locals[name] for name in KEPT_BACK}


def _refuse(model, config, processors, keywords: dict) -> None:
    """ValueError with the name of the first argument that draft trees cannot honour."""
    unusable = [type(one).__name__ for one in processors if type(one).__name__ in REFUSED_PROCESSORS]
    cache, hosts, moved = keywords.get("past_key_values"), can_host_tree(model.config), False
    if (positions := keywords.get("position_ids")) is not None:  # [B, T], else places among a row's unpadded tokens
        mask = keywords.get("attention_mask")
        real = torch.ones_like(positions) if mask is None else mask
        moved = bool(((positions != real.cumsum(-1) - 1) & real.bool()).any())
    outputs, words, drafters = (
        [name for name in names if getattr(config, name, None)]
        for names in (("output_scores", "output_logits", "output_attentions", "output_hidden_states"),
                      ("force_words_ids", "constraints"), ("use_mtp", "assistant_early_exit")))
    refused = {
        "num_beams": (config.num_beams or 1) > 1 and "beam search keeps several texts",
        "penalty_alpha": getattr(config, "penalty_alpha", None) and "contrastive search looks at hidden states",
        "dola_layers": getattr(config, "dola_layers", None) and "it decodes from several layers",
        ", ".join(words): bool(words) and "constrained beam search keeps several texts",
        ", ".join(drafters): bool(drafters) and "the drafter is given to tree_speculation",
        "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens and "it is a drafter: use make('lookup', pair)",
        "use_cache=False": not config.use_cache and "draft trees live in a cache",
        "assistant_model": keywords.get("assistant_model") is not None and "the drafter is given to tree_speculation",
        "past_key_values": cache is not None and "the loop keeps a cache of its own",
        "streamer": keywords.get("streamer") is not None and "rows of a batch grow by different numbers of tokens",
        "position_ids": moved and "a token's position is its place in its own text",
        ", ".join(outputs): bool(outputs) and "the loop verifies trees and keeps no scores",
        ", ".join(unusable): bool(unusable) and "it depends on a row's place in the batch or on earlier calls",
        type(model).__name__: hosts,
    } | {name: keywords.get(name) is not None and "only input_ids are decoded" for name in UNKNOWN_KEYWORDS}
    for name, reason in refused.items():
        if reason:
            raise ValueError(f"tree_speculation cannot honour {name}: {reason}; leave it out, or use plain generate")


def _of_row(processors: LogitsProcessorList, row: int) -> LogitsProcessorList:
    """The processors for this row alone: some hold one number per row."""
    of_row = LogitsProcessorList(map(copy, processors))
    for processor in of_row:
        if isinstance(ignored := getattr(processor, "prompt_ignore_length", None), Tensor):
            processor.prompt_ignore_length = int(ignored[row])
    return of_row
