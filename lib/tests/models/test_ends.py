"""The tokens that end a target's text: of its settings, its tokenizer, its GGUF file and its chat template, joined."""

import json
import warnings
from pathlib import Path

import pytest
from transformers import LlamaConfig

from lib import forward
from lib.models import load
from lib.tests.models.test_models import SMALL, make_folder, make_tokenizer

TURNS = "{% for m in messages %}<|start|>{{ m.role }}"
# As Llama 3: all turns end with one token, which is not that of a text.
LLAMA = TURNS + ("<|message|>\n\n{{ m.content | trim }}<|end|>{% endfor %}"
                 "{% if add_generation_prompt %}<|start|>assistant<|message|>\n\n{% endif %}")
BLIND = TURNS + ("{% if m.thinking %}<|message|>{{ m.thinking }}<|end|>{% endif %}<|message|>{{ m.content }}<|end|>"
                 "{% endfor %}")
TOKENS = ("<|text|>", "<|return|>", "<|end|>", "<|start|>", "<|message|>")
TEXT, RETURN, END = range(3)


def folder(path, template, *, eos="<|text|>", listed=TEXT, in_config=TEXT):
    """A model whose tokenizer, config.json and generation_config.json name these tokens; None for no such file."""
    tokenizer = make_tokenizer(names=TOKENS)
    tokenizer.eos_token, tokenizer.chat_template = eos, template
    made = make_folder(path, LlamaConfig(vocab_size=len(tokenizer), **SMALL | {"eos_token_id": in_config}), tokenizer)
    settings = Path(made) / "generation_config.json"
    settings.unlink() if listed is None else settings.write_text(json.dumps({"eos_token_id": listed}))
    return made


@pytest.mark.parametrize("settings, ends", [
    (dict(template=LLAMA), (TEXT, END)), (dict(template=LLAMA, listed=[END, TEXT]), (END, TEXT)),
    (dict(template=LLAMA, eos="<|return|>"), (TEXT, RETURN, END)), (dict(template=None, listed=END), (END, TEXT)),
    (dict(template=LLAMA, listed=[RETURN, 40]), (RETURN, 40, TEXT, END)),
    (dict(template=None, listed=None, in_config=[END]), (END, TEXT)), (dict(template=None, listed=-1), (TEXT,))])
def test_settings_tokenizer_and_template_are_joined_in_this_order(tmp_path, settings, ends):
    made = folder(tmp_path / "model", **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load.load_pair(made).eos_token_ids == ends
        assert forward.load_served(made, []).eos_token_ids == ends


def test_a_template_that_does_not_show_how_a_turn_ends_is_warned_of(tmp_path):
    made = folder(tmp_path / "model", BLIND)
    for read in (lambda: load.load_pair(made), lambda: forward.load_served(made, [])):
        with pytest.warns(UserWarning, match=r"template of model does not show .* they end at <\|text\|>; .* write"):
            assert read().eos_token_ids == (TEXT,)
