// What an emitted kernel needs: Philox4x32-10 by hand for the vector units, the rest in loops that a compiler vectorises.

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined __AVX2__
#include <immintrin.h>
#endif

// ---- bits of numbers

template <class R> struct Bits;
template <> struct Bits<float> {
    using U = uint32_t;
    using I = int32_t;
    static constexpr int mantissa = 23, bias = 127, logs = 0, powers = 7, angles = 4;  // the last three: terms of series
};
template <> struct Bits<double> {
    using U = uint64_t;
    using I = int64_t;
    static constexpr int mantissa = 52, bias = 1023, logs = 10, powers = 13, angles = 8;
};

template <class To, class From> static inline To bits(From x) {
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

struct Series {
    double over_factorial[24] = {1.0};
    constexpr Series() {
        for (int n = 1; n < 24; ++n) over_factorial[n] = over_factorial[n - 1] / n;
    }
};
constexpr Series series;

// ---- elementary functions, without branches

// log x of a positive normal number: x = 2^k m with m in [1/sqrt 2, sqrt 2), log m = 2 artanh((m - 1)/(m + 1)) by its series;
// in float32 (m - 1) by a polynomial that is within 3e-8 of log(m)/(m - 1), as a division costs more
template <class R> static inline R log_of_normal(R x) {
    using B = Bits<R>;
    using U = typename B::U;
    using I = typename B::I;
    const U root = bits<U>(R(0.70710678118654752440)), shifted = bits<U>(x) + (((U)B::bias << B::mantissa) - root);
    const I k = (I)(shifted >> B::mantissa) - B::bias;
    const R m = bits<R>((U)((shifted & (((U)1 << B::mantissa) - 1)) + root));
    if constexpr (sizeof(R) == 4) {
        constexpr float c[] = {0.99999997f, -0.49999988f, 0.33334186f, -0.25002074f, 0.19956833f, -0.16562397f, 0.14952276f, -0.14366811f};
        const R t = m - 1;
        R p = 0.08722290f;
#pragma GCC unroll 8
        for (int j = 7; j >= 0; --j) p = p * t + c[j];
        return (R)k * R(0.69314718055994530942) + t * p;
    } else {
        const R s = (m - 1) / (m + 1), q = s * s;
        R p = R(1.0 / (2 * B::logs + 1));
#pragma GCC unroll 16
        for (int j = B::logs - 1; j >= 0; --j) p = p * q + R(1.0 / (2 * j + 1));
        return (R)k * R(0.69314718055994530942) + 2 * s * p;
    }
}

// log x: of subnormal numbers by scaling, nan below 0
template <class R> static inline R log_of(R x) {
    using B = Bits<R>;
    const R least = bits<R>((typename B::U)1 << B::mantissa), large = bits<R>((typename B::U)(2 * B::bias + 1) << B::mantissa);
    const R scale = R((uint64_t)1 << B::mantissa);
    const bool small = x < least;
    const R y = log_of_normal(small ? x * scale : x) - (small ? R(B::mantissa * 0.69314718055994530942) : R(0));
    const R ends = x == 0 ? -large : x < large ? y : x;
    return x < 0 ? large - large : ends;
}

// e^x = 2^k e^r with |r| <= log(2)/2; 2^k in two factors, for results beyond the normal numbers
template <class R> static inline R exp_of(R x) {
    using B = Bits<R>;
    using U = typename B::U;
    using I = typename B::I;
    const R top = R((B::bias + 2) * 0.69314718055994530942), low = R(-(B::bias + B::mantissa + 2) * 0.69314718055994530942);
    const R y = x > top ? top : x < low ? low : x, k = std::floor(y * R(1.44269504088896340736) + R(0.5));
    const R high = B::mantissa == 23 ? R(0.693359375) : R(0.6931471803691238);  // of log 2, so short that k high is exact
    const R rest = B::mantissa == 23 ? R(-2.12194440054690583e-4) : R(1.9082149292705877e-10);
    const R r = (y - k * high) - k * rest;
    R p = R(series.over_factorial[B::powers]);
#pragma GCC unroll 16
    for (int j = B::powers - 1; j >= 0; --j) p = p * r + R(series.over_factorial[j]);
    const I whole = (I)k, half = whole >> 1;
    const R e = p * bits<R>((U)(half + B::bias) << B::mantissa) * bits<R>((U)(whole - half + B::bias) << B::mantissa);
    return x == x ? e : x;
}

// cos and sin of a quarter turn times `quarters` and an angle x within pi/4
template <class R> static inline void quarter_turns(typename Bits<R>::I quarters, R x, R& c, R& s) {
    using B = Bits<R>;
    using U = typename B::U;
    const R q = x * x;
    R even = 0, odd = 0;
#pragma GCC unroll 16
    for (int j = B::angles; j >= 0; --j) {
        even = even * q + R(j % 2 ? -series.over_factorial[2 * j] : series.over_factorial[2 * j]);
        odd = odd * q + R(j % 2 ? -series.over_factorial[2 * j + 1] : series.over_factorial[2 * j + 1]);
    }
    odd *= x;
    const U swapped = (bits<U>(even) ^ bits<U>(odd)) & (U)-(quarters & 1);
    c = bits<R>((U)(bits<U>(even) ^ swapped ^ ((U)((quarters + 1) & 2) << (8 * sizeof(R) - 2))));
    s = bits<R>((U)(bits<U>(odd) ^ swapped ^ ((U)(quarters & 2) << (8 * sizeof(R) - 2))));
}

// cos and sin of 2 pi u, u in [0, 1]
template <class R> static inline void turn(R u, R& c, R& s) {
    const typename Bits<R>::I quarters = (typename Bits<R>::I)(u * 4 + R(0.5));
    quarter_turns<R>(quarters, (u - (R)quarters * R(0.25)) * R(6.28318530717958647693), c, s);
}

template <class R> static inline R sin_of(R x) { return std::sin(x); }
template <class R> static inline R cos_of(R x) { return std::cos(x); }
template <class R> static inline R tanh_of(R x) {
    const R e = exp_of(-2 * std::abs(x)), q = x * x;
    const R small = x * (1 + q * (R(-1.0 / 3) + q * (R(2.0 / 15) + q * (R(-17.0 / 315) + q * R(62.0 / 2835)))));
    const R t = (1 - e) / (1 + e);
    return q < R(4e-4) ? small : x < 0 ? -t : t;
}
template <class R> static inline R largest(R a, R b) { return a > b || a != a ? a : b; }
template <class R> static inline R smallest(R a, R b) { return a < b || a != a ? a : b; }
template <class R> static inline R sign_of(R x) { return R((x > 0) - (x < 0)); }
template <int n, class R> static inline R power(R x) {
    if constexpr (n < 0) return 1 / power<-n>(x);
    else if constexpr (n == 0) return R(1);
    else if constexpr (n % 2) return x * power<n - 1>(x);
    else return power<n / 2>(x * x);
}

// (e^x - 1)/x, and 1 at 0: by its series within 1/2
template <class R> static inline R phi1(R x) {
    R p = R(series.over_factorial[Bits<R>::powers + 2]);
#pragma GCC unroll 16
    for (int j = Bits<R>::powers + 1; j >= 1; --j) p = p * x + R(series.over_factorial[j]);
    return std::abs(x) < R(0.5) ? p : (exp_of(x) - 1) / x;
}

// y after a time s of dy/ds = -y/sqrt(1 + y^2): sqrt(1 + y^2) + log(y/(1 + sqrt(1 + y^2))) falls by s, by Newton's rule
template <class R> static inline R braked(R y, R s) {
    const R size = largest(std::abs(y), bits<R>((typename Bits<R>::U)1 << Bits<R>::mantissa));
    R root = std::sqrt(1 + size * size);
    const R level = root + log_of(size / (1 + root)) - s;
    R v = smallest(level - 1 + R(0.69314718055994530942), log_of(largest(level + R(0.8814), R(1))));
    for (int j = 0; j < 12; ++j) {
        root = std::sqrt(1 + exp_of(2 * v));
        v -= (root + v - log_of(1 + root) - level) / root;
    }
    return sign_of(y) * exp_of(v);
}

// ---- noise: Philox4x32-10 of (group of four sites, draw, chain, step) under the seed

// where the numbers of a site and those after it are: a chain of one or two sites shares a group among 4/n steps
struct Place {
    uint64_t group, step;
    int64_t at;  // among the numbers of the group
};
static inline Place place_of(int64_t sites, int64_t site, uint64_t step) {
    if (sites > 2) return {(uint64_t)site / 4, step, site % 4};
    const uint64_t shared = 4 / sites;
    return {((uint64_t)1 << 48) - sites, step / shared, site + (int64_t)(step % shared) * sites};
}

#if defined __AVX512F__
constexpr int LANES = 8;
#elif defined __AVX2__
constexpr int LANES = 4;
#else
constexpr int LANES = 2;
#endif
typedef uint64_t Lane __attribute__((vector_size(8 * LANES)));
typedef uint32_t Half __attribute__((vector_size(4 * LANES), aligned(4)));

// the 64-bit product of the low halves
static inline Lane times(Lane a, Lane b) {
#if defined __AVX512F__
    return (Lane)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined __AVX2__
    return (Lane)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (a & 0xFFFFFFFFu) * b;
#endif
}

// four words for each of W groups of sites of one chain, or for one group of W chains
template <int W, bool along_chains>
static inline void words(uint32_t (&w)[4][W], uint64_t group, uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {
    Lane count = {};
    for (int l = 0; l < LANES; ++l) count[l] = l;
    const Lane zero = {}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
    for (int l = 0; l < W; l += LANES) {
        const Lane groups = along_chains ? zero + group : count + (group + l);
        Lane c0 = groups, c1 = groups >> 32 | (uint64_t)draw << 16;
        Lane c2 = along_chains ? count + (uint64_t)(chain + l) : zero + chain, c3 = zero + (uint32_t)step;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32) ^ (uint32_t)(step >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; ++round) {
            const Lane p0 = times(c0, m0), p1 = times(c2, m1);
            c0 = (p1 >> 32) ^ c1 ^ k0;
            c1 = p1;
            c2 = (p0 >> 32) ^ c3 ^ k1;
            c3 = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        *(Half*)&w[0][l] = __builtin_convertvector(c0, Half);
        *(Half*)&w[1][l] = __builtin_convertvector(c1, Half);
        *(Half*)&w[2][l] = __builtin_convertvector(c2, Half);
        *(Half*)&w[3][l] = __builtin_convertvector(c3, Half);
    }
}

// (x + 1/2) 2^-32; without AVX-512 unsigned numbers convert slowly: the halves are exact, so that their sum is rounded once
template <class R> static inline R unit(uint32_t x) {
#if defined __AVX512F__
    const R whole = (R)x;
#else
    const R whole = (R)(int32_t)(x >> 16) * R(65536) + (R)(int32_t)(x & 0xFFFF);
#endif
    return whole * R(0x1p-32) + R(0x1p-33);
}

// below 1
template <class R> static inline R open_unit(uint32_t x) {
    return smallest(unit<R>(x), R(1) - (sizeof(R) == 4 ? R(0x1p-24) : R(0x1p-53)));
}

// Box and Muller (1958): the pairs of words (0, 1) and (2, 3)
template <class R> static inline void pair_of_normals(uint32_t even, uint32_t odd, R& x, R& y) {
    const R r = std::sqrt(-2 * log_of_normal(unit<R>(even)));
    R c, s;
    turn(unit<R>(odd), c, s);
    x = r * c;
    y = r * s;
}

// the numbers of W groups of sites
template <class R, bool normal, int W>
static inline void fill(R* out, uint64_t group, uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {
    alignas(64) uint32_t w[4][W];
    words<W, false>(w, group, draw, chain, step, seed);
#pragma omp simd
    for (int l = 0; l < W; ++l) {
        if constexpr (normal) {
            pair_of_normals(w[0][l], w[1][l], out[4 * l], out[4 * l + 1]);
            pair_of_normals(w[2][l], w[3][l], out[4 * l + 2], out[4 * l + 3]);
        } else {
            for (int k = 0; k < 4; ++k) out[4 * l + k] = open_unit<R>(w[k][l]);
        }
    }
}

// the number of a scalar
template <class R> static inline R one_normal(uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {
    alignas(64) uint32_t w[4][LANES];
    const Place place = place_of(1, 0, step);
    words<LANES, false>(w, place.group, draw, chain, place.step, seed);
    R x, y;
    pair_of_normals(w[place.at & 2][0], w[place.at | 1][0], x, y);
    return place.at % 2 ? y : x;
}

template <class R> static inline R one_uniform(uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {
    alignas(64) uint32_t w[4][LANES];
    const Place place = place_of(1, 0, step);
    words<LANES, false>(w, place.group, draw, chain, place.step, seed);
    return open_unit<R>(w[place.at][0]);
}
