"""The functions that an emitted Triton kernel needs."""

import triton
import triton.language as tl


@triton.jit
def begin_of(table, row, parts, part, start, R: tl.constexpr, ALIGNED: tl.constexpr):
    """Where the values of a block of a part begin; ALIGNED: at a multiple of 16 bytes."""
    address = tl.load(table + row * parts + part).to(tl.pointer_type(R))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address + start


@triton.jit
def product(word, factor):
    """The high and the low half of a product of 32-bit words, in one instruction."""
    wide = word.to(tl.uint64) * factor
    return (wide >> 32).to(tl.uint32), wide.to(tl.uint32)


@triton.jit
def words(seed, step, group, above, draw, chain):
    """Four Philox4x32-10 words of groups of sites, whose numbers have the low halves `group`, the same half `above`.

    Salmon, Moraes, Dror and Shaw (2011).
    """
    seed, step = seed.to(tl.int64).to(tl.uint64, bitcast=True), step.to(tl.int64).to(tl.uint64, bitcast=True)
    k0, k1 = seed.to(tl.uint32), ((seed ^ step) >> 32).to(tl.uint32)
    c0, c1 = group, tl.cast(above | (draw << 16), tl.uint32)
    c2, c3 = chain.to(tl.uint32), step.to(tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = product(c0, 0xD2511F53)
        high1, low1 = product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def shared_words(seed, step, draw, chain, FEW: tl.constexpr):
    """The words of chains of FEW sites, one or two, which 4 // FEW steps share."""
    group = (chain * 0 + (4294967296 - FEW)).to(tl.uint32)
    return words(seed, step // (4 // FEW), group, 0xFFFF, draw, chain)


@triton.jit
def of_step(w0, w1, w2, w3, step, FEW: tl.constexpr):
    """Of words that steps share, the two among which those of this step are."""
    later = step % (4 // FEW) * FEW >= 2
    return tl.where(later, w2, w0), tl.where(later, w3, w1)


@triton.jit
def words_of_step(seed, step, group, above, draw, chain, FEW: tl.constexpr):
    """The words of groups of sites; where a chain has FEW, one or two, those of this step are among the first two."""
    if FEW == 0:
        w0, w1, w2, w3 = words(seed, step, group, above, draw, chain)
    else:
        w0, w1, w2, w3 = shared_words(seed, step, draw, chain + group * 0, FEW)
        w0, w1 = of_step(w0, w1, w2, w3, step, FEW)
    return w0, w1, w2, w3


@triton.jit
def if_odd(step, y, x):
    """y in odd steps, x in even ones."""
    return tl.where(step % 2 == 1, y, x)


@triton.jit
def unit(word, R: tl.constexpr):
    """(x + 1/2) 2^-32."""
    return word.to(R) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def with_sign_of(x, word, R: tl.constexpr):
    """The number, of the other sign where the word's highest bit is set."""
    if R == tl.float32:
        y = (x.to(tl.uint32, bitcast=True) ^ (word & 0x80000000)).to(tl.float32, bitcast=True)
    else:
        y = tl.where((word & 0x80000000) == 0, x, -x)
    return y


@triton.jit
def point_of(word, R: tl.constexpr):
    """Cosine and sine of 2 pi (x + 1/2) 2^-32: quadrants are exact, polynomials do the rest, of at most pi/4."""
    t = (word << 2).to(tl.int32, bitcast=True).to(R) * 3.6572951981678999e-10 + 7.314590396335798e-10
    z = t * t
    if R == tl.float32:
        s = t + t * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
        c = 1.0 + z * (-0.5 + z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5)))
    else:
        s, c = 1 / 6227020800 - z * (1 / 1307674368000), -1 / 87178291200 + z * (1 / 20922789888000)
        s, c = -1 / 39916800 + z * s, 1 / 479001600 + z * c
        s, c = 1 / 362880 + z * s, -1 / 3628800 + z * c
        s, c = -1 / 5040 + z * s, 1 / 40320 + z * c
        s, c = 1 / 120 + z * s, -1 / 720 + z * c
        s, c = -1 / 6 + z * s, 1 / 24 + z * c
        s, c = t + t * z * s, 1 + z * (-0.5 + z * c)
    eighth = word + 0x20000000
    odd = (eighth & 0x40000000) != 0
    return with_sign_of(tl.where(odd, s, c), eighth + 0x40000000, R), with_sign_of(tl.where(odd, c, s), eighth, R)


@triton.jit
def log_of_unit(u, R: tl.constexpr):
    """ln u of a normal number."""
    if R == tl.float64:
        y = tl.log(u)
    else:
        # u = 2^k (1 + t), t from sqrt(1/2) - 1 to sqrt(2) - 1
        bits = u.to(tl.uint32, bitcast=True)
        power = (bits - 0x3F3504F3) & 0xFF800000
        t = (bits - power).to(tl.float32, bitcast=True) - 1
        p = 0.14952276 + t * (-0.14366811 + t * 0.08722290)
        p = 0.33334186 + t * (-0.25002074 + t * (0.19956833 + t * (-0.16562397 + t * p)))
        p = t * (0.99999997 + t * (-0.49999988 + t * p))
        y = power.to(tl.int32, bitcast=True).to(tl.float32) * 8.262958294867817e-08 + p
    return y


@triton.jit
def pair(even, odd, R: tl.constexpr):
    """Box and Muller (1958)."""
    r = tl.sqrt(-2.0 * log_of_unit(unit(even, R), R))
    cosine, sine = point_of(odd, R)
    return r * cosine, r * sine


@triton.jit
def normals(seed, step, group, above, draw, chain, FEW: tl.constexpr, R: tl.constexpr):
    """The normals of the sites of these groups, in order; where a chain has FEW sites, one or two, those come first."""
    w0, w1, w2, w3 = words_of_step(seed, step, group, above, draw, chain, FEW)
    a, b = pair(w0, w1, R)
    if FEW == 1:
        a = if_odd(step, b, a)
    c, d = pair(w2, w3, R)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def open_unit(word, R: tl.constexpr):
    """Below 1."""
    top: tl.constexpr = 0.9999999403953552 if R == tl.float32 else 0.9999999999999999
    return tl.minimum(unit(word, R), top)


@triton.jit
def words_in_order(seed, step, group, above, draw, chain, FEW: tl.constexpr):
    """The words of the sites of these groups, in order; where a chain has FEW sites, those come first."""
    w0, w1, w2, w3 = words_of_step(seed, step, group, above, draw, chain, FEW)
    if FEW == 1:
        w0 = if_odd(step, w1, w0)
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def uniforms(seed, step, group, above, draw, chain, FEW: tl.constexpr, R: tl.constexpr):
    """The uniform numbers of the sites of these groups, in order; where a chain has FEW sites, those come first."""
    return open_unit(words_in_order(seed, step, group, above, draw, chain, FEW), R)


@triton.jit
def normal_of_step(w0, w1, w2, w3, step, R: tl.constexpr):
    """The normal of one site, of words that four steps share."""
    even, odd = of_step(w0, w1, w2, w3, step, 1)
    cosine, sine = pair(even, odd, R)
    return if_odd(step, sine, cosine)


@triton.jit
def uniform_of_step(w0, w1, w2, w3, step, R: tl.constexpr):
    """The uniform number of one site, of words that four steps share."""
    even, odd = of_step(w0, w1, w2, w3, step, 1)
    return open_unit(if_odd(step, odd, even), R)


@triton.jit
def one_normal(seed, step, draw, chain, R: tl.constexpr):
    """The normal of each of these chains."""
    w0, w1, w2, w3 = shared_words(seed, step, draw, chain, 1)
    return normal_of_step(w0, w1, w2, w3, step, R)


@triton.jit
def one_uniform(seed, step, draw, chain, R: tl.constexpr):
    """The uniform number of each of these chains."""
    w0, w1, w2, w3 = shared_words(seed, step, draw, chain, 1)
    return uniform_of_step(w0, w1, w2, w3, step, R)


@triton.jit
def put_total(x, sums, row, rows, TOTALS: tl.constexpr, k: tl.constexpr, CHAINS: tl.constexpr):
    """Leave the sum of a block in its row of `sums`; of a block of several chains that of each, in rows one by one."""
    if CHAINS == 1:
        tl.store(sums + row * TOTALS + k, tl.sum(x))
    else:
        row += tl.arange(0, CHAINS)
        tl.store(sums + row * TOTALS + k, tl.sum(tl.reshape(x, (CHAINS, x.numel // CHAINS)), 1), mask=row < rows)


@triton.jit
def total_of(sums, items, chain, TOTALS: tl.constexpr, k: tl.constexpr, ROUND: tl.constexpr):
    """A total of each of these chains, from those of its blocks, ROUND of them at once, in a fixed order."""
    total = tl.zeros((chain.numel,), tl.float64)
    for start in range(0, items, ROUND):
        item = (start + tl.arange(0, ROUND))[None, :]
        parts = tl.load(sums + (chain[:, None] * items + item) * TOTALS + k, mask=item < items, other=0.0)
        total += tl.sum(parts, 1)
    return total


@triton.jit
def below(word, high):
    """floor(word high / 2^32)."""
    return ((word.to(tl.uint64) * high.to(tl.uint64)) >> 32).to(tl.int64)


@triton.jit
def row_of(w0, w1, w2, w3, r, step, rows, FEW: tl.constexpr):
    """The row of the data that is number r of a batch, which has FEW, one or two, or more."""
    j = step % 2 if FEW == 1 else r % 4
    return below(tl.where(j == 0, w0, tl.where(j == 1, w1, tl.where(j == 2, w2, w3))), rows)


@triton.jit(do_not_specialize=["chains", "sites", "first_chain", "first_step", "seed", "draw", "high"])
def fill(out, chains: tl.int64, sites: tl.int64, first_chain: tl.int64, first_step: tl.int64, seed: tl.int64,
         draw: tl.int64, high: tl.int64, KIND: tl.constexpr, R: tl.constexpr, FEW: tl.constexpr, ALIGNED: tl.constexpr,
         CHAINS: tl.constexpr, GROUPS: tl.constexpr):  # fmt: skip
    """Fill `(steps, chains, sites)` by blocks of chains and of groups of four sites, each block within one step."""
    across, along = tl.cdiv(sites, 4 * GROUPS).to(tl.int32), tl.cdiv(chains, CHAINS).to(tl.int32)
    block = tl.program_id(0)
    begin = (block % across).to(tl.int64) * GROUPS
    chain = (block // across % along).to(tl.int64) * CHAINS + tl.arange(0, CHAINS)[:, None]
    k = (block // across // along).to(tl.int64)
    group = (begin & 0xFFFFFFFF).to(tl.uint32) + tl.arange(0, GROUPS)[None, :].to(tl.uint32)
    step, above, who = first_step + k, begin >> 32, first_chain + chain
    if KIND == "normal":
        numbers = normals(seed, step, group, above, draw, who, FEW, R)
    elif KIND == "uniform":
        numbers = uniforms(seed, step, group, above, draw, who, FEW, R)
    else:
        numbers = below(words_in_order(seed, step, group, above, draw, who, FEW), high)
    site = 4 * begin + tl.arange(0, 4 * GROUPS)[None, :]
    if ALIGNED:
        sites = sites // 4 * 4  # tells the compiler
    tl.store(out + (k * chains + chain) * sites + site, numbers, mask=(chain < chains) & (site < sites))


@triton.jit
def put(x, row, places, k: tl.constexpr, chains, mask):
    """Leave a number of each chain in a draw, at its places[k] where that is not below 0."""
    place = tl.load(places + k)
    tl.store(row + place * chains, x, mask=mask & (place >= 0))


@triton.jit
def exp_of(x):
    """e^x; in float32 two instructions, and 0 below the normal numbers."""
    if x.dtype == tl.float32:
        y = tl.exp2(x * 1.4426950408889634)
    else:
        y = tl.exp(x)
    return y


@triton.jit
def phi1(x):
    """(e^x - 1)/x, and 1 at 0: by its series within 1/2."""
    if x.dtype == tl.float32:
        p = 1 / 40320 + x * (1 / 362880)
    else:
        p = 1 / 87178291200 + x * (1 / 1307674368000)
        p = 1 / 479001600 + x * (1 / 6227020800 + x * p)
        p = 1 / 3628800 + x * (1 / 39916800 + x * p)
        p = 1 / 40320 + x * (1 / 362880 + x * p)
    p = 1 / 720 + x * (1 / 5040 + x * p)
    p = 1 / 24 + x * (1 / 120 + x * p)
    p = 1 + x * (1 / 2 + x * (1 / 6 + x * p))
    return tl.where(tl.abs(x) < 0.5, p, (exp_of(x) - 1) / tl.where(x == 0, 1.0, x))


@triton.jit
def sign_of(x):
    return tl.where(x > 0, x * 0 + 1, tl.where(x < 0, x * 0 - 1, x * 0))


@triton.jit
def power_of(x, y):
    return exp_of(y * tl.log(x))


@triton.jit
def tanh_of(x):
    e, q = exp_of(-2 * tl.abs(x)), x * x
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
def near_log(x):
    """ln |x|, in float32 up to 0.06 by the bits of x; a negative number for 0."""
    if x.dtype == tl.float32:
        y = ((x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) - 0x3F800000).to(tl.float32) * 8.262958294867817e-08
    else:
        y = tl.log(tl.maximum(tl.abs(x), 1e-300))
    return y


@triton.jit
def root_of(y):
    """sqrt(1 + y^2), also where y^2 overflows."""
    return tl.minimum(tl.sqrt(1 + y * y), 1 + tl.abs(y))


@triton.jit
def braked(y, s):
    """y after a time s of dy/ds = -y/sqrt(1 + y^2).

    With root = sqrt(1 + y^2), x = e^root y/(1 + root) decays as e^-s. If e^2u = 1 + x^2 then y = x e^-u (u + p/d), with
    p and d polynomials of u, up to 1e-7; in float64 a step of Halley's rule makes y exact.
    """
    root = root_of(y)
    q = y / (1 + root)
    top = tl.maximum(root - s + near_log(q), 0.0)  # all but log(2)/2 of u, nearly: e^(2 top) is divided out
    rest, x = exp_of(-top), q * exp_of(root - s - top)
    square = tl.maximum(rest * rest + x * x, 1e-37)
    u = top + 0.5 * log_of_unit(square, y.dtype)
    v = tl.minimum(u, 2000.0)
    p = 0.010220450191431762 + v * (0.0023380244937693203 + v * 0.0006750446097352161)
    p = 0.7357588070993576 + v * (-0.041136964404352716 + v * (0.08033899284546246 + v * p))
    d = 0.026841032580800405 + v * (0.004437873380165231 + v * 0.0013537844264593642)
    d = 1 + v * (0.5738921556649517 + v * (0.292296700595234 + v * (0.10005740175118798 + v * d)))
    over = x * tl.rsqrt(square * d * d)
    z = over * d * u + over * p
    if y.dtype == tl.float64:
        then = root_of(z)
        ratio = tl.maximum(tl.where(z == 0, 1.0, z / (tl.where(z == 0, 1.0, q) * (1 + then))), 1e-300)
        step = (root - s - then - tl.log(ratio)) / then
        z += z * (step + (step / then) * (step / then) / 2)
    return z
