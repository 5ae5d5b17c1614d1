"""EAGLE-3 heads of this project as serving engines read them: a folder in the layout that EAGLE's authors publish.

Checked with vLLM 0.32. Its loader, and the converter of llama.cpp (build 11434), take the names of the tensors and, at
the top level of config.json, the hidden states that the head reads, counted from the embeddings on; SGLang takes these
from `eagle_config`. The embedding is the target's, and so is the output layer, of which the folder has the rows of the
tokens that the head drafts.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from lib.drafters import heads
from lib.drafters.heads.published import FEATURES, FLAGS
from lib.forward.reduced import rows_of

OURS = ("kind", "feature_layers", "own_output", "own_embedding", "architectures", "transformers_version")


def write(where: str | Path, target, into: Path) -> Path:
    """Writes the EAGLE-3 head in a folder for a target to `into`, in the target's dtype. Returns `into`.

    ValueError for another kind of head, and for one that reads a hidden state that engines do not hand over.
    """
    head, layers = heads.load("eagle3", where, target), target.config.get_text_config().num_hidden_layers
    features, held = head.config.feature_layers, head.config.to_diff_dict()
    if features != sorted({*features} - {layers}):  # engines sort them, and read the last one before the final norm
        raise ValueError(f"the head in {where} reads the hidden states {features} of a target of {layers} layers; "
                         f"engines hand over different ones below {layers}, in ascending order; train the head anew "
                         "with `python -m lib training heads --kinds eagle3`")
    tensors = {name: tensor for name, tensor in head.state_dict().items() if name != "tokens"}
    size, tokens = held["vocab_size"], head.tokens
    if head.lm_head is None:
        whole = target.get_output_embeddings()
        tensors["lm_head.weight"] = (whole if tokens is None else rows_of(whole, tokens)).weight
    if tokens is not None:
        tensors |= {"d2t": tokens - torch.arange(len(tokens)), "t2d": torch.isin(torch.arange(size), tokens)}
    settings = {name: value for name, value in held.items() if name not in OURS} | {
        "architectures": ["LlamaForCausalLMEagle3"], "dtype": str(target.dtype).removeprefix("torch."),
        "draft_vocab_size": size if tokens is None else len(tokens), FEATURES: features,
        "eagle_config": {FEATURES: features, "use_aux_hidden_state": True}}
    settings |= {flag: bool(held.get(flag, False)) for flag in FLAGS}  # vLLM and llama.cpp differ in what they assume
    into.mkdir(parents=True, exist_ok=True)
    (into / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
              into / "model.safetensors")
    return into
