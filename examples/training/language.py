"""A made-up language to learn: its words come from a fixed vocabulary, and each text is about a topic.

Nothing is downloaded, and a seed always gives the same texts. The letters that came before say how a word goes on,
and the words that came before say which words come again: both can be read from a text by attention alone.
"""

import collections
import math
import random

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
WORDS = 64  # in the vocabulary
WORD_LENGTHS = (3, 7)
TOPIC = 6  # words that one text uses


def vocabulary(seed):
    chooser = random.Random(f"vocabulary {seed}")
    words = set()
    while len(words) < WORDS:
        length = chooser.randint(*WORD_LENGTHS)
        words.add("".join(chooser.choices(ALPHABET[1:], k=length)))
    return sorted(words)


def texts(count, length, seed):
    """So many texts of so many characters, each a bytes object of indices into ALPHABET."""
    words = vocabulary(seed)
    chooser = random.Random(f"texts {seed}")
    codes = bytes.maketrans(ALPHABET.encode(), bytes(range(len(ALPHABET))))
    longest = length // (WORD_LENGTHS[0] + 1) + 2  # words that fill a text in any case
    made = []
    for _ in range(count):
        topic = chooser.sample(words, TOPIC)
        text = " ".join(chooser.choices(topic, k=longest))
        begin = chooser.randrange(WORD_LENGTHS[0])  # not always at a word's beginning
        made.append(text[begin : begin + length].encode().translate(codes))
    return made


def pair_entropy(listed):
    """Nats of surprise left in a character to somebody who knows all frequencies, but sees only the character before:
    the least loss of a model without attention."""
    pairs = collections.Counter()
    for text in listed:
        pairs.update(zip(text, text[1:]))
    firsts = collections.Counter()
    for (first, _), count in pairs.items():
        firsts[first] += count
    total = sum(pairs.values())
    return sum(count / total * math.log(firsts[first] / count) for (first, _), count in pairs.items())
