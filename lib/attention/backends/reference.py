"""The definition of tree attention, in float64: the oracle of all other backends."""

import torch


def reference(query, key, value, mask, prefix, scale, return_lse=True):
    """softmax(q k^T scale + mask) v in float64 with an explicit mask, row by row."""
    group, mk = query.shape[1] // key.shape[1], mask.visible.shape[-1]
    tree_mask = mask.visible.to(query.device).expand(len(prefix), -1, -1)
    outputs, lses = [], []
    for row, length in enumerate(prefix):
        k = key[row, :, : length + mk].double().repeat_interleave(group, 0)  # [Hq, prefix + mk, d]
        v = value[row, :, : length + mk].double().repeat_interleave(group, 0)
        scores = query[row].double() @ k.mT * scale  # [Hq, mq, prefix + mk]
        scores[..., length:].masked_fill_(~tree_mask[row], float("-inf"))
        lse = scores.logsumexp(-1)
        outputs.append((scores - lse[..., None]).exp() @ v)
        lses.append(lse)
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return torch.stack(outputs).to(query.dtype), torch.stack(lses).to(lse_dtype)
