"""Rules a second time, as a sceptic would check them: in exact fractions, as papers print them, sharing nothing with
lib.

A shape is a tuple of shapes, one a child: ((), ()) has two leaves. A draft is a tuple of (token, times drawn, draft
below), in draw order or by rank. A language maps a path of tokens to a list of fractions. Where lib's rules draw
numbers, these split a chance; a law maps what is emitted, bonus token included, to its chance.
"""

import math
from collections import defaultdict
from fractions import Fraction
from itertools import product

ONE, NONE = Fraction(1), Fraction(0)


# --------------------------------------------------------------------------------------------------------- drafting


def drafts(q, shape, how, path=()):
    """Every draft of a shape with its chance; a repeated draw is one node, with what is below the first."""
    for chance, drawn in _draws(q(path), len(shape), how):
        tokens = list(dict.fromkeys(drawn))
        families = [list(drafts(q, shape[drawn.index(token)], how, (*path, token))) for token in tokens]
        for below in product(*families):
            nodes = tuple((token, drawn.count(token), draft) for token, (_, draft) in zip(tokens, below))
            yield chance * math.prod(share for share, _ in below), nodes


def _draws(q, count, how):
    if how == "top_k":
        yield ONE, tuple(sorted(range(len(q)), key=lambda token: -q[token])[:count])
        return
    ways = [(ONE, ())]
    for _ in range(count if how == "iid" else min(count, len(q))):
        ways = [
            (chance * share, (*drawn, token))
            for chance, drawn in ways
            for token, share in enumerate(q if how == "iid" else others(q, drawn))
            if share
        ]
    yield from ways


# ----------------------------------------------------------------------------------------- rules that go down siblings


def down(decide):
    """A rule from decide(P, Q, {token: times}) -> ({token: chance that it is accepted}, masses of the bonus token)."""

    def rule(p, q, draft, how, path=()):
        said = defaultdict(Fraction)
        taken, rest = decide(p(path), q(path), {token: times for token, times, _ in draft}) if draft else ({}, p(path))
        for token, mass in enumerate(rest):
            said[*path, token] += mass
        for token, _, below in draft:
            for longer, chance in rule(p, q, below, how, (*path, token)).items() if taken.get(token) else ():
                said[longer] += taken[token] * chance
        return said

    return rule


def naive(P, Q, children):
    return {token: P[token] for token in children}, [NONE if x in children else mass for x, mass in enumerate(P)]


def multi_step(P, Q, children):
    taken, rest = defaultdict(Fraction), [NONE] * len(P)

    def tries(P, left, mass):
        if not left:
            rest[:] = [before + mass * part for before, part in zip(rest, P)]
        for place, token in enumerate(left):
            share, chance = mass / len(left), min(ONE, P[token] / Q[token])
            taken[token] += share * chance
            if chance < 1:
                tries(normal(minus(P, Q)), left[:place] + left[place + 1 :], share * (1 - chance))

    tries(P, [token for token, times in children.items() for _ in range(times)], ONE)
    return taken, rest


def without_replacement(P, Q, children):
    taken, mass, tried = {}, ONE, []
    for token in children:
        chance = min(ONE, P[token] / Q[token])
        taken[token], mass, tried = mass * chance, mass * (1 - chance), [*tried, token]
        if not mass:
            return taken, [NONE] * len(P)
        P, Q = normal(minus(P, Q)), others(Q, tried)
    return taken, [mass * part for part in P]


def k_seq(P, Q, children):
    left = [token for token, times in children.items() for _ in range(times)]
    k, low, high = len(left), ONE, Fraction(len(left))

    def b(rho):
        return sum(min(p / rho, q) for p, q in zip(P, Q))

    for _ in range(30):
        rho = (low + high) / 2
        low, high = (rho, high) if 1 - (1 - b(rho)) ** k > rho * b(rho) else (low, rho)
    taken, missed = defaultdict(Fraction), ONE
    any_taken = 1 - (1 - b(high)) ** k
    chances = [min(ONE, P[token] / (high * Q[token])) for token in left]
    for place, token in enumerate(left):  # an order of draws is as likely as its reverse, each with others before it
        for size in range(k):
            before = _elementary([1 - chance for chance in chances[:place] + chances[place + 1 :]])[size]
            taken[token] += chances[place] * before / (k * math.comb(k - 1, size))
        missed *= 1 - chances[place]
    share = any_taken / b(high) if b(high) else ONE
    rest = normal([p - min(p / high, q) * share for p, q in zip(P, Q)]) if missed else P
    return taken, [missed * part for part in rest]


def _elementary(values):
    """The sums of products of every size of these values."""
    sums = [ONE] + [NONE] * len(values)
    for value in values:
        for size in range(len(values), 0, -1):
            sums[size] += value * sums[size - 1]
    return sums


def at_least(share):
    """The deterministic rule, P >= share Q: the first that qualifies, else the bonus token from P."""

    def decide(P, Q, children):
        for token in children:
            if P[token] >= share * Q[token]:
                return {token: ONE}, [NONE] * len(P)
        return {}, P

    return decide


def threshold(single, total):
    def decide(P, Q, children):
        taken, seen, above = {}, NONE, NONE  # the number is known to be at least `above`
        for token in children:
            seen += P[token]
            reach = ONE if P[token] >= single else max(above, min(ONE, seen / total))
            taken[token], above = reach - above, reach
        rest = [NONE if x in children else mass for x, mass in enumerate(P)]
        return taken, [(1 - above) * mass for mass in (normal(rest) if any(rest) else P)]

    return decide


# ------------------------------------------------------------------------------------------------ rules about paths


def block(p, q, draft, how):
    """Block verification: h from the first token to the last, and the last that passes counts."""
    path, w, steps = (), ONE, []  # of each length: path, (w p - q)+ behind it, chance to pass
    while draft:
        token, _, below = draft[0]
        P, Q = p(path), one_hot(token, len(p(path))) if how == "top_k" else q(path)
        left = minus([w * mass for mass in P], Q)
        gain = sum(left)
        steps.append((path, left if gain else P, gain / (gain + 1 - w) if gain else NONE))
        w, path, draft = min(ONE, w * P[token] / Q[token]), (*path, token), below
    said, mass = defaultdict(Fraction), ONE
    for length, (path, left, passed) in reversed(list(enumerate([*steps, (path, p(path), w)]))):
        passed = passed if length else ONE
        for token, part in enumerate(normal(left)):
            said[*path, token] += mass * passed * part
        mass *= 1 - passed
        if not mass:
            break
    return said


def traversal(p, q, draft, how):
    """Traversal verification: the first leaf in depth-first order is accepted or deleted, until one is accepted."""
    # By path: the tokens below it that are left, both laws, and its weight once it is set.
    left, P, Q, own = {}, {}, {}, {(): ONE}

    def enter(path, draft):
        left[path], P[path], Q[path] = [token for token, _, _ in draft], p(path), q(path)
        for token, _, below in draft:
            enter((*path, token), below)

    def proposal(path):
        return one_hot(left[path][0], len(P[path])) if how == "top_k" else Q[path]

    def weight(path):
        above = path[:-1]
        return own[path] if path in own else min(ONE, weight(above) * P[above][path[-1]] / proposal(above)[path[-1]])

    enter((), draft)
    said, mass, deleted = defaultdict(Fraction), ONE, defaultdict(list)
    while mass:
        leaf = ()
        while left[leaf]:
            leaf = (*leaf, left[leaf][0])
        accepted = weight(leaf) if leaf else ONE
        for token, part in enumerate(P[leaf]):
            said[*leaf, token] += mass * accepted * part
        mass *= 1 - accepted
        if mass:
            above, token = leaf[:-1], leaf[-1]
            w = weight(above)
            gained = minus([w * part for part in P[above]], proposal(above))
            S = sum(gained)
            P[above], own[above] = (normal(gained), S / (S + 1 - w)) if S else (P[above], NONE)
            deleted[above].append(left[above].pop(0))
            Q[above] = others(Q[above], deleted[above])
    return said


def typical(epsilon, delta):
    """Typical acceptance: the deepest path of tokens that all qualify, of equals the likelier, then the first of a
    level."""

    def rule(p, q, draft, how):
        best, level = ((), ONE), [((), ONE, draft)]
        while level:
            best = max(level, key=lambda found: found[1])[:2]
            below = []
            for path, likely, children in level:
                P = p(path)
                entropy = -sum(float(mass) * math.log(mass) for mass in P if mass)
                enough = min(epsilon, delta * math.exp(-entropy))
                below += [((*path, x), likely * P[x], more) for x, _, more in children if P[x] >= enough]
            level = below
        return {(*best[0], token): mass for token, mass in enumerate(p(best[0]))}

    return rule


# ---------------------------------------------------------------------------------------------------------- the law


def law(rule, p, q, shape, how):
    """What a round emits: {tokens: chance}."""
    whole = defaultdict(Fraction)
    for chance, draft in drafts(q, shape, how):
        for said, share in rule(p, q, draft, how).items():
            whole[said] += chance * share
    return {said: chance for said, chance in whole.items() if chance}


def continued(found, p, length):
    """The law of the first `length` tokens, if the target goes on where a round ended."""
    whole = defaultdict(Fraction)
    for said, chance in found.items():
        waiting = [(said[:length], chance)]
        while waiting:
            path, mass = waiting.pop()
            if len(path) == length:
                whole[path] += mass
            else:
                waiting += [((*path, token), mass * part) for token, part in enumerate(p(path)) if part]
    return dict(whole)


def minus(P, Q):
    return [max(NONE, mass - other) for mass, other in zip(P, Q)]


def normal(masses):
    whole = sum(masses)
    return [mass / whole for mass in masses]


def others(Q, tokens):
    """Q without these tokens, normalised; uniform over the rest where nothing is left of it."""
    left = [NONE if token in tokens else mass for token, mass in enumerate(Q)]
    left = left if any(left) else [NONE if token in tokens else ONE for token in range(len(Q))]
    return normal(left) if any(left) else left


def one_hot(token, size):
    return [ONE if x == token else NONE for x in range(size)]
