"""The functions that an emitted Triton kernel needs."""

import triton
import triton.language as tl


@triton.jit
def words(key, group, draw, chain):
    """Four Philox4x32-10 words of each group of sites: `key` points at the seed and the step."""
    seed, step = tl.load(key), tl.load(key + 1)
    mixed = (seed ^ ((step >> 32) << 32)).to(tl.uint64, bitcast=True)
    c0 = (group & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((group >> 32) | (draw << 16)).to(tl.uint32)
    c2 = (group * 0 + chain).to(tl.uint32)
    c3 = (group * 0 + (step & 0xFFFFFFFF)).to(tl.uint32)
    return tl.philox(mixed, c0, c1, c2, c3)


@triton.jit
def unit(word, R: tl.constexpr):
    """(x + 1/2) 2^-32."""
    return word.to(R) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def pair(even, odd, R: tl.constexpr):
    """Box and Muller (1958)."""
    r = tl.sqrt(-2.0 * tl.log(unit(even, R)))
    angle = unit(odd, R) * 6.283185307179586
    return r * tl.cos(angle), r * tl.sin(angle)


@triton.jit
def normals(key, group, draw, chain, R: tl.constexpr):
    """The normals of the sites of these groups, in order."""
    w0, w1, w2, w3 = words(key, group, draw, chain)
    a, b = pair(w0, w1, R)
    c, d = pair(w2, w3, R)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def open_unit(word, R: tl.constexpr):
    """Below 1."""
    top: tl.constexpr = 0.9999999403953552 if R == tl.float32 else 0.9999999999999999
    return tl.minimum(unit(word, R), top)


@triton.jit
def uniforms(key, group, draw, chain, R: tl.constexpr):
    """The uniform numbers of the sites of these groups, in order."""
    w0, w1, w2, w3 = words(key, group, draw, chain)
    even = tl.interleave(open_unit(w0, R), open_unit(w2, R))
    return tl.interleave(even, tl.interleave(open_unit(w1, R), open_unit(w3, R)))


@triton.jit
def one_normal(key, draw, chain, R: tl.constexpr):
    """The normal of a chain."""
    x = normals(key, tl.arange(0, 1).to(tl.int64), draw, chain, R)
    return tl.sum(tl.where(tl.arange(0, 4) == 0, x, 0.0))


@triton.jit
def one_uniform(key, draw, chain, R: tl.constexpr):
    """The uniform number of a chain."""
    x = uniforms(key, tl.arange(0, 1).to(tl.int64), draw, chain, R)
    return tl.sum(tl.where(tl.arange(0, 4) == 0, x, 0.0))


@triton.jit
def total_of(sums, items, chain, TOTALS: tl.constexpr, k: tl.constexpr):
    """A total of a chain, from those of its blocks, in a fixed order."""
    found = tl.zeros((1024,), tl.float64)
    for start in range(0, items, 1024):
        item = start + tl.arange(0, 1024)
        found += tl.load(sums + (chain * items + item) * TOTALS + k, mask=item < items, other=0.0)
    return tl.sum(found)


@triton.jit
def phi1(x):
    """(e^x - 1)/x, and 1 at 0: by its series within 1/2."""
    p = x * 0 + 1
    for j in tl.static_range(14):
        p = 1 + p * x / (15 - j)
    return tl.where(tl.abs(x) < 0.5, p, (tl.exp(x) - 1) / tl.where(x == 0, 1.0, x))


@triton.jit
def sign_of(x):
    return tl.where(x > 0, x * 0 + 1, tl.where(x < 0, x * 0 - 1, x * 0))


@triton.jit
def power_of(x, y):
    return tl.exp(y * tl.log(x))


@triton.jit
def tanh_of(x):
    e, q = tl.exp(-2 * tl.abs(x)), x * x
    small = x * (1 + q * (-1.0 / 3 + q * (2.0 / 15 + q * (-17.0 / 315 + q * 62.0 / 2835))))
    return tl.where(q < 4e-4, small, sign_of(x) * (1 - e) / (1 + e))


@triton.jit
def wrapped(x, low: tl.constexpr, high: tl.constexpr):
    """The point of the circle from low to high that x is."""
    width = x * 0 + high - low
    y = x - width * tl.floor((x - low) / width)
    return tl.where((y < low) | (y >= high), x * 0 + low, y)


@triton.jit
def from_end(x, low: tl.constexpr, high: tl.constexpr):
    """How far a path at x is from low after its reflections, negative where their number is odd."""
    twice = 2 * (x * 0 + high - low)
    return x - low - twice * tl.floor((x - low) / twice + 0.5)


@triton.jit
def folded(x, low: tl.constexpr, high: tl.constexpr):
    y = tl.abs(from_end(x, low, high)) + low
    return tl.where(y < low, x * 0 + low, tl.where(y > high, x * 0 + high, y))


@triton.jit
def turned(x, low: tl.constexpr, high: tl.constexpr):
    return tl.where(from_end(x, low, high) < 0, x * 0 - 1, x * 0 + 1)


@triton.jit
def braked(y, s):
    """y after a time s of dy/ds = -y/sqrt(1 + y^2), by Newton's rule."""
    size = tl.maximum(tl.abs(y), 1.1754943508222875e-38)
    root = tl.sqrt(1 + size * size)
    level = root + tl.log(size / (1 + root)) - s
    v = tl.minimum(level - 1 + 0.6931471805599453, tl.log(tl.maximum(level + 0.8814, 1.0)))
    for _ in tl.static_range(12):
        root = tl.sqrt(1 + tl.exp(2 * v))
        v = v - (root + v - tl.log(1 + root) - level) / root
    return sign_of(y) * tl.exp(v)
