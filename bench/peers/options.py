"""Types of command line options that the scripts share."""

import argparse

import problem as problems


def numbers(text):
    return [int(word) for word in text.split(",") if word]


def words_of(*allowed):
    """The type of a list of some of these words."""

    def words(text):
        found = [word for word in text.split(",") if word]
        if not set(found) <= set(allowed):
            raise argparse.ArgumentTypeError(f"'{text}' (allowed: a list of {', '.join(allowed)})")
        return found

    return words


def problem(op):
    """The type of a problem of this op, which its text may leave out."""

    def parsed(text):
        try:
            found = problems.parse(text, op)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if found.op != op:
            raise argparse.ArgumentTypeError(f"op: '{found.op}' (allowed here: {op})")
        return found

    return parsed


def problem_file(op):
    """The type of a file of such problems, one a line."""
    parsed = problem(op)
    return lambda path: [parsed(line) for _, line in _lines(path)]


def pair_file(op):
    """The type of a file of pairs "problem | config", one a line."""
    parsed = problem(op)

    def pairs(path):
        found = []
        for number, line in _lines(path):
            text, bar, config = (part.strip() for part in line.partition("|"))
            if not (text and config):
                raise argparse.ArgumentTypeError(f"{path}:{number}: '{line}' is not PROBLEM | CONFIG")
            found.append((parsed(text), config))
        return found

    return pairs


def _lines(path):
    """Number and text of each line; empty lines and what follows a # are skipped."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return [(number, line) for number, line in enumerate(lines, 1) if line]
