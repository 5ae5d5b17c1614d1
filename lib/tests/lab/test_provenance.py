"""Fingerprints follow each of their parts."""

from lib.lab import provenance


def written(home, texts):
    """Files with these texts, two of them with one name."""
    paths = [home / name for name, _ in zip(("heads/base/eagle", "heads/small/eagle", "tests/__pycache__"), texts)]
    for path, text in zip(paths, texts):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths


def test_a_fingerprint_follows_each_of_its_parts_and_stays_when_the_project_moves(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "machine", lambda device: device)
    monkeypatch.setattr(provenance, "LIB", tmp_path / "lib")
    provenance.LIB.mkdir()

    def mark(texts="123", home="here", code="", **changes):
        parts = dict(files=written(tmp_path / home, texts), parameters={"count": 1}) | changes
        written(tmp_path / "lib", code)
        return provenance.fingerprint(**parts)

    first = mark()
    assert first == mark(home="there/deeper") and len(first) == 12
    others = [*map(mark, ("023", "103", "120", "213")), mark(parameters={}), mark(device="cuda"), mark(code="1"),
              mark(code="12")]
    assert len({first, *others}) == 9
    assert mark(code="123") == others[-1], "tests make no rows"
