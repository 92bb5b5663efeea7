"""Stand-ins for packages that a library imports, and that the workloads do not need."""

import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
import types

from torch import nn


class StubModule(types.ModuleType):
    """A module whose attributes are empty classes or further stubs."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper() or "Conv1D" in name:
            value = type(name, (nn.Module,), {})
        elif name == "logging":
            value = types.SimpleNamespace(get_logger=logging.getLogger)
        else:
            value = importlib.import_module(self.__name__ + "." + name)
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a stub for each module of some packages."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module):
        pass


def stub_packages(*packages):
    """Replaces packages by stubs.

    fastDP and private-transformers import Hugging Face's classes only for `isinstance` checks, and no workload uses them.
    """
    sys.meta_path.insert(0, StubFinder(packages))
