"""Arithmetic with written steps: expressions solved inside out, and column addition and multiplication."""

from random import Random

from lib.training.corpus.words import Lexicon

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def problem(rng: Random, lexicon: Lexicon) -> str:
    """One problem with its steps and answer; its kind, its size and the last digits of two operands form the rule."""
    # "reckoning" is part of the hash that splits the rules: another name would be another text
    kind, size, *endings = lexicon.rule(rng, "reckoning", KINDS, (2, 3, 4), range(2, 10), range(2, 10))
    return KINDS[kind](rng, lexicon, size, *endings)


def document(rng: Random, lexicon: Lexicon) -> str:
    """A sheet of problems."""
    return "Solve step by step.\n\n" + "\n\n".join(problem(rng, lexicon) for _ in range(rng.randint(4, 7)))


def _ending(rng: Random, digit: int, low: int, high: int) -> int:
    return rng.randint(low // 10, high // 10) * 10 + digit


def _chain(rng: Random, lexicon: Lexicon, size: int, first: int, second: int) -> str:
    value = _ending(rng, first, 0, 90)
    text, steps = str(value), []
    for step in range(size):
        sign = rng.choice("++--*")
        other = rng.randint(2, 12) if sign == "*" else rng.randint(2, 10 ** min(size, 3) - 1)
        other = other if step else second
        result = OPERATIONS[sign](value, other)
        steps.append(f"Step {step + 1}: {value} {sign} {other} = {result}")
        text = f"({text} {sign} {other})" if step + 1 < size else f"{text} {sign} {other}"
        value = result
    return f"Problem: compute {text}.\n" + "\n".join(steps) + f"\nAnswer: {value}"


def _add(rng: Random, lexicon: Lexicon, size: int, *endings: int) -> str:
    first, second = (_ending(rng, digit, 10 ** (size - 1), 10**size - 1) for digit in endings)
    steps, carry = [], 0
    for place in range(size):
        a, b = first // 10**place % 10, second // 10**place % 10
        total = a + b + carry
        carried = f" + {carry}" if carry else ""
        steps.append(f"Step {place + 1}: {a} + {b}{carried} = {total}, write {total % 10}, carry {total // 10}")
        carry = total // 10
    return f"Problem: add {first} and {second} in columns.\n" + "\n".join(steps) + f"\nAnswer: {first + second}"


def _times(rng: Random, lexicon: Lexicon, size: int, *endings: int) -> str:
    first, second = _ending(rng, endings[0], 10, 10**size - 1), _ending(rng, endings[1], 10, 99)
    ones, tens = first * (second % 10), first * (second // 10) * 10
    return (f"Problem: multiply {first} by {second}.\nStep 1: {first} * {second % 10} = {ones}\n"
            f"Step 2: {first} * {second // 10 * 10} = {tens}\nStep 3: {ones} + {tens} = {ones + tens}\n"
            f"Answer: {ones + tens}")


def _shop(rng: Random, lexicon: Lexicon, size: int, count: int, price: int) -> str:
    name, goods = lexicon.name(rng), lexicon.nouns(rng, size)
    counts = [count, *(rng.randint(2, 9) for _ in goods[1:])]
    prices = [_ending(rng, price, 0, 50), *(rng.randint(2, 60) for _ in goods[1:])]
    wanted = ", ".join(f"{count} {good} boxes at {price} coins" for count, good, price in zip(counts, goods, prices))
    steps = [f"Step {i + 1}: {count} * {price} = {count * price} coins for the {good} boxes"
             for i, (count, good, price) in enumerate(zip(counts, goods, prices))]
    total = sum(count * price for count, price in zip(counts, prices))
    sums = " + ".join(str(count * price) for count, price in zip(counts, prices))
    return (f"Problem: {name} buys {wanted}. What is the bill?\n"
            + "\n".join(steps)
            + f"\nStep {size + 1}: {sums} = {total}\nAnswer: {total}")


KINDS = {"chain": _chain, "add": _add, "times": _times, "shop": _shop}
