"""`python -m lib.corpus TOKENIZER.json PROMPTS.jsonl [PER_KIND]`: cuts the held-out prompts of the shipped family."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

from lib.corpus import held_out


def main() -> None:
    """Writes one prompt a line."""
    tokenizer, target = Tokenizer.from_file(sys.argv[1]), Path(sys.argv[2])
    per_kind = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    lines = [json.dumps(row) for row in held_out.rows(lambda text: len(tokenizer.encode(text)), per_kind)]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
