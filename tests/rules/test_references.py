"""Every rule cites the paper that it follows, with an arXiv number or a DOI."""

import ast
import re
import sys
from pathlib import Path

import pytest

from adamas.rules import RULES

IDENTIFIER = re.compile(r"\barXiv:(\d{4}\.\d{4,5}|[a-z-]+/\d{7})\b|\bdoi:10\.\d{4,}/\S+", re.ASCII)

# Rule -> why its source has neither.
WITHOUT_IDENTIFIER = {"rmsprop": "published only in the slides of a lecture"}


def section(docstring: str) -> str:
    """Returns the section `References:` of a docstring."""
    _, heading, text = docstring.partition("\nReferences:\n")
    assert heading, "no section References"
    return text


def references(name: str) -> str:
    """Returns the section `References:` of the docstring of a rule's module."""
    return section(sys.modules[RULES[name].__module__].__doc__ or "")


def entries(text: str) -> list[str]:
    """Returns the papers of a section, each with its authors, title and year."""
    found = [" ".join(entry.split()) for entry in re.split(r"\n\n+", text.strip("\n"))]
    for entry in found:
        assert re.match(r'[^"]+\. "[^"]+[.?]" .*\b(19|20)\d\d\b', entry), f"not authors, title, year: {entry}"
    return found


@pytest.mark.parametrize("name", RULES)
def test_every_rule_cites_its_paper(name):
    for entry in entries(references(name)):
        if name not in WITHOUT_IDENTIFIER:
            assert IDENTIFIER.search(entry), f"no arXiv number or DOI: {entry}"


def test_the_rule_that_contributors_copy_cites_its_paper():
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (entry,) = entries(section(ast.get_docstring(ast.parse(code))))
    assert IDENTIFIER.search(entry)


@pytest.mark.parametrize("name", WITHOUT_IDENTIFIER)
def test_exempt_sources_have_no_identifier(name):
    assert not IDENTIFIER.search(references(name))


@pytest.mark.parametrize("text", ["arXiv:2312.14334.", "arXiv:cs/0506075.", "doi:10.1109/5.726791."])
def test_identifiers_are_recognised(text):
    assert IDENTIFIER.search(text)


@pytest.mark.parametrize("text", ["AAAI 2024.", "arXiv 2024", "arXiv:2024", "doi:11.1/2"])
def test_other_text_is_no_identifier(text):
    assert not IDENTIFIER.search(text)
