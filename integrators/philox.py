"""The bijection of counters that noise is made of: Philox4x32-10.

Source: Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3".
"""

from collections.abc import Sequence
from typing import Any

import torch

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # four words in [0, 2^32)

MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
GRAIN = 2**15  # words that torch leaves to one thread, for which numpy's operations cost half of torch's


def philox(counter: Sequence[torch.Tensor], key: tuple[int | torch.Tensor, int | torch.Tensor]) -> Words:
    """The Philox4x32-10 bijection of a 128-bit counter under a 64-bit key.

    One of ten rounds, with (hi, lo) the halves of a 64-bit product:
    (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)), k <- k + W.

    counter: four int64 tensors in [0, 2^32) that broadcast together; key: two ints, or tensors that
    broadcast to the counter's shape. Returns four int64 tensors in [0, 2^32) of that shape.

    >>> zero = torch.tensor(0)
    >>> [f"{int(word):08x}" for word in philox((zero, zero, zero, zero), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    words = torch.broadcast_tensors(*counter)
    if words[0].device.type != "cpu" or words[0].numel() > GRAIN:
        return _rounds([word.clone() for word in words], *key)
    k0, k1 = (k.numpy() if isinstance(k, torch.Tensor) else k for k in key)
    c0, c1, c2, c3 = map(torch.from_numpy, _rounds([word.numpy().copy() for word in words], k0, k1))
    return c0, c1, c2, c3


def _rounds(words: Sequence[Any], k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Philox's ten rounds, of tensors or of arrays, which it overwrites."""
    c0, c1, c2, c3 = words
    for _ in range(10):
        # c1, c3 and the key carry bits above 32 until the mask; only a factor must be below 2^32.
        c0 *= _M0
        c2 *= _M1
        c1 ^= k0
        c1 ^= c2 >> 32
        c1 &= MASK
        c3 ^= k1
        c3 ^= c0 >> 32
        c3 &= MASK
        c0, c1, c2, c3 = c1, c2, c3, c0
        k0, k1 = k0 + _W0, k1 + _W1
    c1 &= MASK
    c3 &= MASK
    return c0, c1, c2, c3
