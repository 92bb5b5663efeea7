"""Every rule cites the paper that it follows, with an arXiv number or a DOI."""

import re
import sys

import pytest

from adamas.rules import RULES

IDENTIFIER = re.compile(r"\barXiv:(\d{4}\.\d{4,5}|[a-z-]+/\d{7})\b|\bdoi:10\.\d{4,}/\S+", re.ASCII)

# Rule -> why its source has neither.
WITHOUT_IDENTIFIER = {"rmsprop": "published only in the slides of a lecture"}


def references(name: str) -> str:
    """Returns the section `References:` of the docstring of a rule's module."""
    text = sys.modules[RULES[name].__module__].__doc__ or ""
    _, heading, section = text.partition("\nReferences:\n")
    assert heading, f"the docstring of {RULES[name].__module__} has no section References"
    return section


@pytest.mark.parametrize("name", RULES)
def test_every_rule_cites_its_paper(name):
    entries = re.split(r"\n\n+", references(name).strip("\n"))
    for entry in entries:
        text = " ".join(entry.split())
        assert re.match(r'[^"]+\. "[^"]+[.?]" .*\b(19|20)\d\d\b', text), (
            f"not of the form authors, title, year: {text}"
        )
        if name not in WITHOUT_IDENTIFIER:
            assert IDENTIFIER.search(text), f"no arXiv number or DOI: {text}"


@pytest.mark.parametrize("name", WITHOUT_IDENTIFIER)
def test_exempt_sources_have_no_identifier(name):
    assert not IDENTIFIER.search(references(name))


@pytest.mark.parametrize("text", ["arXiv:2312.14334.", "arXiv:cs/0506075.", "doi:10.1109/5.726791."])
def test_identifiers_are_recognised(text):
    assert IDENTIFIER.search(text)


@pytest.mark.parametrize("text", ["AAAI 2024.", "arXiv 2024", "arXiv:2024", "doi:11.1/2"])
def test_other_text_is_no_identifier(text):
    assert not IDENTIFIER.search(text)
