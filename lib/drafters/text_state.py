"""What drafters share that read nothing but the text: one a row, which grows by what was kept."""

from typing import Sequence

from lib.verify.draft import Draft


class FollowsTexts:
    """`commit` and `select` for drafters with `texts`, each with `extend(tokens)`, and the last `drafts`."""

    calls = 0
    cache_bytes = 0
    texts: list
    drafts: Sequence[Draft]

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Appends what was kept to the texts, where it is known from now on."""
        for row, (nodes, token) in enumerate(zip(accepted, bonus)):
            self.texts[row].extend([*self.drafts[row].tokens_of(nodes), token] if nodes else [token])

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.texts = [self.texts[row] for row in rows]
