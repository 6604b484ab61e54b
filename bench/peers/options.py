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


def problem(text):
    try:
        found = problems.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found.op != "forward":
        raise argparse.ArgumentTypeError(f"op: '{found.op}' (allowed here: forward)")
    return found


def problem_file(path):
    """Problems, one a line; empty lines and what follows a # are skipped."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return [problem(line) for line in lines if line]
