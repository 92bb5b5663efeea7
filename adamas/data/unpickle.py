"""Reads pickled arrays of data sets without running code that a pickle names."""

import collections
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np


class _SparseMatrix:
    """Holds the fields of a pickled SciPy matrix, whose class has changed since."""


_RECONSTRUCT = np.empty(0).__reduce__()[0]  # its module is named differently across versions of NumPy

# Constructors of arrays, sparse matrices and adjacency lists; none of them runs code that a file chooses.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
    ("__builtin__", "object"): object,
    ("builtins", "object"): object,
    ("_codecs", "encode"): lambda text, *_: text.encode("latin1"),  # how Python 3 writes bytes for Python 2
    ("copy_reg", "_reconstructor"): lambda *_: _SparseMatrix(),
    ("copyreg", "_reconstructor"): lambda *_: _SparseMatrix(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("scipy.sparse") and name == "csr_matrix":
            return _SparseMatrix
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return _ALLOWED[module, name]


def read_pickle(path: Path) -> Any:
    """Reads a file pickled by Python 2 or 3: arrays, sparse matrices (as arrays), dicts and lists.

    Raises:
        RuntimeError: If the file is damaged or asks for anything else.
    """
    try:
        value = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        return _dense(value) if isinstance(value, _SparseMatrix) else value
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise RuntimeError(
            f"The file {path} is no pickle of plain arrays: {error}. Delete it and download it again."
        ) from error


def _dense(matrix: Any) -> np.ndarray:
    """Builds the dense array from the fields of a matrix in compressed rows."""
    fields = vars(matrix)
    shape = fields.get("_shape", fields.get("shape"))
    result = np.zeros(shape, dtype=np.float32)
    rows = np.repeat(np.arange(shape[0]), np.diff(fields["indptr"]))
    result[rows, fields["indices"]] = fields["data"]
    return result
