"""What each named data set is: its files with their official hashes, where they come from, and its classes.

A plain table. The md5 sums are those the sets' own distributions and torchvision publish. Means and deviations for
normalising are not kept here: `statistics` measures them on what a run really trains on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eow.data.dataset import Dataset
from eow.data.files import at_home
from eow.errors import EowError
from eow.mapping import blocks
from eow.plain import near


@dataclass(frozen=True)
class File:
    """One file below the data root, with the md5 of its plain form and, where it is also shipped as .gz, of that."""

    path: str
    md5: str | None = None
    gz_md5: str | None = None


@dataclass(frozen=True)
class Archive:
    """One thing to download: `path` below the root, the addresses in the order to try, and the folder it unpacks to."""

    path: str
    urls: tuple[str, ...]
    md5: str
    folder: str | None = None


@dataclass(frozen=True)
class Entry:
    """A named data set. `classes` is empty where the class names stand in the files themselves."""

    about: str
    shape: tuple[int, int, int]
    class_count: int
    classes: tuple[str, ...] = ()
    train: tuple[File, ...] = ()
    test: tuple[File, ...] = ()
    archives: tuple[Archive, ...] = ()
    augmentation: str = "none"
    model: str = "mlp"
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    by_hand: str = ""

    @property
    def files(self) -> tuple[File, ...]:
        """Each file once, whichever split reads it."""
        return tuple(dict.fromkeys(self.train + self.test))


IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TEN_DIGITS = tuple("0123456789")


def _idx_entry(
    about: str,
    classes: tuple[str, ...],
    folder: str,
    mirrors: tuple[str, ...],
    hashes: tuple[tuple[str, str], ...],
    far: tuple[str, ...],
) -> Entry:
    """A set laid out like MNIST: four idx files, whose (plain, gz) hashes come in the order of IDX_NAMES."""
    files = tuple(File(f"{folder}/raw/{name}", plain, gz) for name, (plain, gz) in zip(IDX_NAMES, hashes))
    archives = tuple(
        Archive(f"{folder}/raw/{name}.gz", tuple(f"{mirror}{name}.gz" for mirror in mirrors), gz)
        for name, (_, gz) in zip(IDX_NAMES, hashes)
    )
    return Entry(about, (1, 28, 28), len(classes), classes, files[:2], files[2:], archives, far=far)


_CIFAR10_META = File("cifar-10-batches-py/batches.meta", "5ff9c542aee3614f3951f8cda6e48888")
_CIFAR10_BATCHES = (
    "c99cafc152244af753f735de768cd75f",
    "d4bba439e000b95fd0a9bffe97cbabec",
    "54ebc095f3ab1f0389bbae665268c751",
    "634d18415352ddfa80567beed471001a",
    "482c414d41f54cd18b22e5b47cb7c3cb",
)
_CIFAR100_META = File("cifar-100-python/meta", "7973b15100ade9c7d40fb424638fde48")
_TINY_LISTS = (File("tiny-imagenet-200/wnids.txt"), File("tiny-imagenet-200/words.txt"))

CATALOG: dict[str, Entry] = {
    "digits": Entry(
        about="handwritten digits of scikit-learn, 1,797 images (built in)",
        shape=(1, 8, 8),
        class_count=10,
        classes=TEN_DIGITS,
        far=("noise", "permuted:digits"),
    ),
    "mnist": _idx_entry(
        "handwritten digits, 60,000 + 10,000 images",
        TEN_DIGITS,
        "MNIST",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        (
            ("6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ("a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
            ("2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
            ("27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        far=("fashion_mnist", "notmnist", "noise", "permuted:mnist"),
    ),
    "fashion_mnist": _idx_entry(
        "articles of clothing, 60,000 + 10,000 images",
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        "FashionMNIST",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        (
            ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("9018921c3c673c538a1fc5bad174d6f9", "25c81989df183df01b3e8a0aad5dffbe"),
            ("8181f5470baa50b63fa0f6fddb340f0a", "bef4ecab320f06d8554ea6380940ec79"),
            ("15d484375f8d13e6eb1aabb0c3f46965", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        far=("mnist", "notmnist", "noise", "permuted:fashion_mnist"),
    ),
    "cifar10": Entry(
        about="photographs of 10 kinds of things, 50,000 + 10,000 images",
        shape=(3, 32, 32),
        class_count=10,
        train=(
            *(File(f"cifar-10-batches-py/data_batch_{i}", md5) for i, md5 in enumerate(_CIFAR10_BATCHES, 1)),
            _CIFAR10_META,
        ),
        test=(File("cifar-10-batches-py/test_batch", "40351d587109b95175f43aff81a1287e"), _CIFAR10_META),
        archives=(
            Archive(
                "cifar-10-python.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
                "c58f30108f718f92721af3b95e74349a",
                "cifar-10-batches-py",
            ),
        ),
        augmentation="crop_flip",
        model="vgg11",
        near=("cifar100",),
        far=("svhn", "noise", "permuted:cifar10"),
    ),
    "cifar100": Entry(
        about="photographs of 100 kinds of things, 50,000 + 10,000 images",
        shape=(3, 32, 32),
        class_count=100,
        train=(File("cifar-100-python/train", "16019d7e3df5f24257cddd939b257f8d"), _CIFAR100_META),
        test=(File("cifar-100-python/test", "f0ef6b0ae62326f3e7ffdfab6717acfc"), _CIFAR100_META),
        archives=(
            Archive(
                "cifar-100-python.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
                "eb9058c3a382ffc7106e4002c42a8d85",
                "cifar-100-python",
            ),
        ),
        augmentation="crop_flip",
        model="resnet50",
        near=("cifar10",),
        far=("svhn", "noise", "permuted:cifar100"),
    ),
    "svhn": Entry(
        about="digits of house numbers, 73,257 + 26,032 images",
        shape=(3, 32, 32),
        class_count=10,
        classes=TEN_DIGITS,
        train=(File("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),),
        test=(File("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),),
        archives=(
            Archive(
                "train_32x32.mat",
                ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
                "e26dedcc434d2e4c54c9b2d4a06d8373",
            ),
            Archive(
                "test_32x32.mat",
                ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
                "eb5a983be6a315427106f1b164d9cef3",
            ),
        ),
        augmentation="crop",
        model="resnet18",
        far=("cifar10", "cifar100", "noise", "permuted:svhn"),
    ),
    "tiny_imagenet": Entry(
        about="200 classes of ImageNet at 64x64, 100,000 + 10,000 images (its validation images are the test split)",
        shape=(3, 64, 64),
        class_count=200,
        train=_TINY_LISTS,
        test=(*_TINY_LISTS, File("tiny-imagenet-200/val/val_annotations.txt")),
        archives=(
            Archive(
                "tiny-imagenet-200.zip",
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "90528d7ca1a48142e341f4ef8d21d0de",
                "tiny-imagenet-200",
            ),
        ),
        augmentation="crop_flip",
        model="resnet50",
        far=("noise", "permuted:tiny_imagenet"),
    ),
    "notmnist": Entry(
        about="letters A to J in many typefaces, 10,000 images, an outlier set for MNIST",
        shape=(1, 28, 28),
        class_count=10,
        classes=tuple("ABCDEFGHIJ"),
        test=(File("notMNIST/raw/t10k-images-idx3-ubyte"), File("notMNIST/raw/t10k-labels-idx1-ubyte")),
        by_hand="notMNIST has no official idx files to fetch: put t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte "
        "into notMNIST/raw below the data root",
    ),
}


def how_to_get(name: str) -> str:
    """What to do where the set's files are missing."""
    return CATALOG[name].by_hand or f"fetch it with `eow data fetch {name}`, or set EOW_DATA to the folder that has it"


def how_to_repair(name: str) -> str:
    """What to do where the set's files do not hold what they should."""
    return CATALOG[name].by_hand or f"fetch it again with `eow data fetch {name}`"


def entry_of(name: str) -> Entry:
    """The catalog's entry, or an error that lists the names there are."""
    if name not in CATALOG:
        kind = "folder" if os.path.isdir(name) else Path(name).suffix[1:].lower()
        own = kind in ("folder", "npz", "csv")
        hint = f"to read that {kind}, write {kind}:{name}; else " if own else near(name, CATALOG)
        raise EowError(
            f"there is no data set named {name!r}: {hint}use one of {', '.join(CATALOG)}, noise:CxHxW, permuted:NAME, "
            "folder:PATH, npz:PATH or csv:PATH"
        )
    return CATALOG[name]


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets lie: the argument, else $EOW_DATA, else the user's cache folder."""
    if root is not None:
        return at_home(root)
    if os.environ.get("EOW_DATA"):
        return at_home(os.environ["EOW_DATA"])
    try:
        import platformdirs
    except ImportError:
        raise EowError(
            "without platformdirs there is no cache folder to look in: name the folder of the data sets with EOW_DATA "
            "or --root, or install platformdirs"
        ) from None
    return Path(platformdirs.user_cache_dir("eow"))


def statistics(dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) measured on the data: per channel of images scaled to 0..1, or per feature; a std of 0 becomes 1.

    Two passes in float64 over chunks: the mean of squares minus the squared mean would lose its digits at a large mean.
    """
    images = dataset.inputs.ndim == 4
    axes = (0, 2, 3) if images else (0,)
    scale = 255.0 if images else 1.0
    count = dataset.inputs.size // dataset.inputs.shape[1]
    total = sum(block.sum(axis=axes, dtype=np.float64) for block in blocks(dataset.inputs))
    mean = total / count
    centre = mean.reshape(-1, 1, 1) if images else mean
    squares = sum(np.square(block - centre).sum(axis=axes) for block in blocks(dataset.inputs))
    std = np.sqrt(squares / count) / scale
    std = np.where(std == 0, 1.0, std)
    return tuple((mean / scale).tolist()), tuple(std.tolist())
