"""Fashion-MNIST (Xiao et al., 2017), from the Debian package `dataset-fashion-mnist`: 60,000 and 10,000.

References:
    Han Xiao, Kashif Rasul, Roland Vollgraf. "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
    Learning Algorithms." 2017. arXiv:1708.07747.
"""

from adamas.data.apt import apt_files
from adamas.data.base import Data
from adamas.data.idx import FILES, idx_data
from adamas.data.local import local_folder, read_verified

# Digests of the unpacked files, and of the files as Debian packs them.
_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_PACKED_SHA256 = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
# Mean and standard deviation of the training pixels: the values in common use.
_MEAN, _STD = 0.2860, 0.3530


def fashion_mnist() -> Data:
    """Loads 60,000 training and 10,000 test images of clothes in ten classes, standardised."""
    folder = local_folder("FashionMNIST/raw", FILES) or apt_files(
        "dataset-fashion-mnist",
        "0.0~git20200523.55506a9-1",
        {f"usr/share/datasets/fashion-mnist/{name}": digest for name, digest in _PACKED_SHA256.items()},
    )
    return idx_data("fashion-mnist", read_verified(folder, _SHA256), _MEAN, _STD)
