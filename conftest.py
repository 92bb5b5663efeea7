"""Leaves out the examples of modules whose extra is missing, by name. Other import errors are errors."""

from tests.support.optional_modules import modules_left_out

_LEFT_OUT = modules_left_out()

collect_ignore = [
    module.replace(".", "/") + ending for module in _LEFT_OUT for ending in (".py", "/__init__.py")
]


def pytest_report_header() -> list[str]:
    """Names the modules whose examples are left out."""
    return [f"no examples of {module}: {package} is not installed" for module, package in _LEFT_OUT.items()]


# Lightning takes seconds to import. A slow test runs its example: tests/integrations/lightning.
collect_ignore += ["adamas/integrations/lightning"]
