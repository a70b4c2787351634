"""Data in the format of MNIST, made up: ten blurs with noise, 120 to learn from and 40 to test on."""

import gzip

import torch


def idx(array) -> bytes:
    return bytes([0, 0, 8, array.dim(), *b"".join(n.to_bytes(4, "big") for n in array.shape)]) + array.numpy().tobytes()


def write_blurs(folder):
    """The four files; some are gzipped."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(0)
    classes = torch.randint(0, 200, (10, 28, 28), generator=random)
    for name, rows in (("train", 120), ("t10k", 40)):
        labels = torch.randint(0, 10, (rows,), generator=random)
        pixels = classes[labels] + torch.randint(0, 56, (rows, 28, 28), generator=random)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels.to(torch.uint8))))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels.to(torch.uint8)))
