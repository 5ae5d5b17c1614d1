"""N-gram tables of a chat model: counted in its answers alone."""

import json
from types import SimpleNamespace

from lib.drafters.text_drafters import load_tables
from lib.tests import small_models
from lib.tests.training.test_own_text import Chat
from lib.training import ngrams, own_text


def test_a_chat_models_tables_are_counted_in_its_answers(tmp_path, monkeypatch):
    greedy, sampled, question = [13, 8, 9, 2], [11, 12, 2], [3, 4, 2]
    rows = [(question, greedy, 0.0), (question, sampled, 0.7), ([5, 2], greedy, 0.0), ([6, 2], [11, 12, 2], 0.7)]
    monkeypatch.setattr(own_text, "TEXT", tmp_path)
    own_text.packed(rows * 3).save(own_text.path_of("t"))
    pair = SimpleNamespace(tokenizer=Chat(), vocabulary=small_models.VOCABULARY)
    monkeypatch.setattr(ngrams, "load_pair", lambda name, **settings: pair)
    monkeypatch.setattr(ngrams, "HELD_OUT_SHARE", 1 / 3)
    made = ngrams.make("t", tmp_path)
    assert [made.orders[0][token,] for token in (13, 8, 9, 11, 12)] == [8, 9, 2, 12, 2]
    assert (5,) not in made.orders[0] and (3,) not in made.orders[0], "neither template nor turns are learned"
    folder = tmp_path / "heads" / "t" / "ngrams"
    assert load_tables(folder, small_models.llama(3)).orders == made.orders
    assert json.loads((folder / "config.json").read_text())["held_out_named"] == {"answers": 0.75}
