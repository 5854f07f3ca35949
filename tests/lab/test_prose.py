"""Pages and docstrings are plain English: a command lists the sentences that are not, and their share is bounded."""

import subprocess
import sys

import pytest

from lab import prose


def faults(text: str) -> list[tuple[str, ...]]:
    return [each.faults for each in prose.sentences(text)]


def texts(text: str) -> list[str]:
    return [each.text for each in prose.sentences(text)]


def test_few_sentences_are_long_or_have_an_impersonal_subject() -> None:
    found = prose.everything()
    at_fault, of_all = prose.share(found)

    assert of_all > 10_000
    assert at_fault <= prose.BAR_RATIO * of_all, [f"{each.file}:{each.line}" for each in found if each.faults]


def test_a_sentence_of_thirty_words_passes_and_one_more_is_reported() -> None:
    assert faults("The gate " + "often " * 27 + "works.") == [()]
    assert faults("The gate " + "often " * 28 + "works.") == [("31 words",)]


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("Nothing is sent for nobody.", "nobody"),
        ("Whoever leaves is forgotten.", "whoever"),
        ("It is well known that one can wait.", "that one can"),
        ("Who is back when told goes first.", "who is"),
        ("The books of who waits are bounded.", "of who waits"),
    ],
)
def test_an_impersonal_subject_is_reported(text: str, subject: str) -> None:
    assert faults(text) == [(f"subject {subject!r}",)]


@pytest.mark.parametrize(
    "text",
    [
        "A client who leaves is forgotten.",
        "One request runs, and the one that waits can see it.",
        "Who may ask?",
        "No engine is up.",
    ],
)
def test_a_named_subject_is_not(text: str) -> None:
    assert faults(text) == [()]


def test_headings_items_and_cells_end_a_sentence_and_code_has_none() -> None:
    page = (
        "# Title\n\nFirst line\ngoes on. Second `a b c` [link](x.md).\n\n- item\n  goes on\n- next\n\n"
        "| a | b |\n|---|---|\n| c | |\n\n```sh\nls. And more.\n```\n\n    indented code\n\nE.g. this, i.e. that.\n"
    )

    assert texts(page) == [
        "Title",
        "First line goes on.",
        "Second `code` link.",
        "item goes on",
        "next",
        "a",
        "b",
        "c",
        "E.g. this, i.e that.",
    ]


def test_a_sentence_knows_its_line() -> None:
    assert [each.line for each in prose.sentences("one\n\ntwo\nlines\n\n- three\n", first_line=5)] == [
        5,
        7,
        10,
    ]


def test_the_command_prints_the_share() -> None:
    command = [sys.executable, "-m", "lab", "prose"]
    printed = subprocess.run(command, cwd=prose.ROOT, capture_output=True, text=True, check=True).stdout

    assert printed.endswith("bar: 2%\n")
    assert "sentences" in printed.splitlines()[-2]
