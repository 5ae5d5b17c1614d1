"""EAGLE-3 heads for serving engines: the layout of EAGLE's authors, with the output layer that such a head may share.

Checked with vLLM 0.32. Its loader, and the converter of llama.cpp (build 11434), read the hidden states of a head at
the top level of config.json, counted from the embeddings on; SGLang reads them from `eagle_config`.
"""

from pathlib import Path

from lib.drafters.heads import files
from lib.forward.reduced import rows_of


def write(where: str | Path, target, into: Path) -> Path:
    """Writes the EAGLE-3 head in a folder for a target to `into`, in the target's dtype, with the rows of the target's
    output layer for the tokens that it drafts. Returns `into`.

    ValueError for another kind of head, and for one that reads a hidden state that engines do not hand over.
    """
    head, layers = files.load("eagle3", where, target), target.config.get_text_config().num_hidden_layers
    features = head.config.feature_layers
    if features != sorted({*features} - {layers}):  # engines sort them, and read the last one before the final norm
        raise ValueError(f"the head in {where} reads the hidden states {features} of a target of {layers} layers; "
                         f"engines hand over different ones below {layers}, in ascending order; train the head anew "
                         "with `python -m lib training heads --kinds eagle3`")
    if head.lm_head is None:
        head.lm_head = rows_of(target.get_output_embeddings(), slice(None) if head.tokens is None else head.tokens)
    files.save(head, into, target.dtype)
    return into
