// What an emitted kernel needs: Philox4x32-10 by hand for vector units, the rest in loops that a compiler vectorises.

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined __AVX2__
#include <immintrin.h>
#endif
#define INLINE inline __attribute__((always_inline))

// ---- bits of numbers

template <class R> struct Bits;
template <> struct Bits<float> {
    using U = uint32_t;
    using I = int32_t;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr int logs = 0, powers = 7, angles = 0;  // terms of series
};
template <> struct Bits<double> {
    using U = uint64_t;
    using I = int64_t;
    static constexpr int mantissa = 52, bias = 1023, logs = 10, powers = 13, angles = 10;
};

template <class To, class From> static inline To bits(From x) {
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

// a number as one of another type, or each of a vector
template <class To, class From> static inline To converted(From x) {
    if constexpr (sizeof(To) <= 8) return (To)x;
    else return __builtin_convertvector(x, To);
}

struct Series {
    double over_factorial[24] = {1.0};
    constexpr Series() {
        for (int n = 1; n < 24; ++n) over_factorial[n] = over_factorial[n - 1] / n;
    }
};
constexpr Series series;

// ---- elementary functions, without branches

// -2 log x of a positive normal number in float32 is -2 k log 2 + t p(t), x = 2^k (1 + t), 1 + t in [1/sqrt 2, sqrt 2);
// p is within 3e-8 of -2 log(1 + t)/t. Of numbers or of vectors; `scaled` is 2^23 k, which needs no shift
constexpr float LOG[] = {-1.99999994f, 0.99999976f,  -0.66668372f, 0.50004148f, -0.39913666f,
                         0.33124794f,  -0.29904552f, 0.28733622f,  -0.17444580f};
constexpr float LOG_OF_2 = float(-2 * 0.69314718055994530942 * 0x1p-23);
template <class I, class F> static inline void split(F x, F& t, F& scaled) {
    const I exponent = (bits<I>(x) - 0x3F3504F3) & -0x800000;
    t = bits<F>(bits<I>(x) - exponent) - 1.0f;
    scaled = converted<F>(exponent);
}

// log x of a positive normal number: in float64 x = 2^k m, log m = 2 artanh((m - 1)/(m + 1)) by its series
template <class R> static inline R log_of_normal(R x) {
    using B = Bits<R>;
    using U = typename B::U;
    using I = typename B::I;
    if constexpr (sizeof(R) == 4) {
        R t, scaled, p = LOG[8];
        split<I>(x, t, scaled);
#pragma GCC unroll 8
        for (int j = 7; j >= 0; --j) p = p * t + LOG[j];
        return R(-0.5) * (scaled * LOG_OF_2 + t * p);
    } else {
        const U root = bits<U>(R(0.70710678118654752440)), shifted = bits<U>(x) + (((U)B::bias << B::mantissa) - root);
        const I k = (I)(shifted >> B::mantissa) - B::bias;
        const R m = bits<R>((U)((shifted & (((U)1 << B::mantissa) - 1)) + root));
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
    const R least = bits<R>((typename B::U)1 << B::mantissa);
    const R large = bits<R>((typename B::U)(2 * B::bias + 1) << B::mantissa);
    const R scale = R((uint64_t)1 << B::mantissa);
    const bool small = x < least;
    const R y = log_of_normal(small ? x * scale : x) - (small ? R(B::mantissa * 0.69314718055994530942) : R(0));
    const R ends = x == 0 ? -large : x < large ? y : x;
    return x < 0 ? large - large : ends;
}

// x or an end that it is beyond, by bits: of a choice between numbers a compiler makes branches, and a text for each
template <class R> static inline R beyond(bool is_beyond, R x, R end) {
    using U = typename Bits<R>::U;
    return bits<R>(bits<U>(x) ^ ((bits<U>(x) ^ bits<U>(end)) & -(U)is_beyond));
}
template <class R> static inline R at_least(R x, R end) { return beyond(x < end, x, end); }
template <class R> static inline R at_most(R x, R end) { return beyond(x > end, x, end); }

// e^x = 2^k e^r with |r| <= log(2)/2; 2^k in two factors, for results beyond the normal numbers
template <class R> static inline R exp_of(R x) {
    using B = Bits<R>;
    using U = typename B::U;
    using I = typename B::I;
    const R top = R((B::bias + 2) * 0.69314718055994530942);
    const R low = R(-(B::bias + B::mantissa + 2) * 0.69314718055994530942);
    const R y = at_least(at_most(x, top), low), k = std::floor(y * R(1.44269504088896340736) + R(0.5));
    const R high = B::mantissa == 23 ? R(0.693359375) : R(0.6931471803691238);  // of log 2; k high is exact
    const R rest = B::mantissa == 23 ? R(-2.12194440054690583e-4) : R(1.9082149292705877e-10);
    const R r = (y - k * high) - k * rest;
    R p = R(series.over_factorial[B::powers]);
#pragma GCC unroll 16
    for (int j = B::powers - 1; j >= 0; --j) p = p * r + R(series.over_factorial[j]);
    const I whole = (I)k, half = whole >> 1;
    const R e = p * bits<R>((U)(half + B::bias) << B::mantissa) * bits<R>((U)(whole - half + B::bias) << B::mantissa);
    return x == x ? e : x;
}

// whether u < e^x for u in (0, 1): u 2^k < e^r with x = r - k log 2; e^x beyond the normal numbers below 1 is 0
template <class R> static INLINE bool below_exp(R u, R x) {
    using B = Bits<R>;
    using I = typename B::I;
    const R most = R(B::bias - 1), y = x * R(-1.44269504088896340736);
    const R t = y > most ? most : y > 0 ? y : R(0), k = std::floor(t + R(0.5));
    const R r = (k - t) * R(0.69314718055994530942);
    R p = R(series.over_factorial[B::powers]);
#pragma GCC unroll 16
    for (int j = B::powers - 1; j >= 0; --j) p = p * r + R(series.over_factorial[j]);
    return bits<R>((I)(bits<I>(u) + ((I)k << B::mantissa))) < p;
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
template <class R> static inline R inverse_root(R x) { return 1 / std::sqrt(x); }
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

// What linear friction is made of, decay = e^x and slope = phi1(2x), by one polynomial p = phi1(r): x = k log 2 + r,
// e^x = 2^k (1 + r p), phi1(2x) = phi1(x) (1 + e^x)/2. A decay is at least the least normal number
template <class R> static inline void friction(R x, R& decay, R& slope) {
    using B = Bits<R>;
    using U = typename B::U;
    const R low = R((1 - B::bias) * 0.69314718055994530942);
    const R high = B::mantissa == 23 ? R(0.693359375) : R(0.6931471803691238);
    const R rest = B::mantissa == 23 ? R(-2.12194440054690583e-4) : R(1.9082149292705877e-10);
    const R units = R(1.5) * R((uint64_t)1 << B::mantissa);  // which has no places behind the point
    const R y = at_least(x, low), k = at_most((y * R(1.44269504088896340736) + units) - units, R(B::bias));
    const R scale = bits<R>((bits<U>(k + units) << B::mantissa) + ((U)B::bias << B::mantissa));
    const R r = (y - k * high) - k * rest;
    R p = R(series.over_factorial[B::powers]);
#pragma GCC unroll 16
    for (int j = B::powers - 1; j >= 1; --j) p = p * r + R(series.over_factorial[j]);
    const R growth = scale * (r * p);
    decay = scale + growth;
    slope = (k == 0 ? p : (growth + (scale - 1)) / x) * R(0.5) * (1 + decay);
}

// sqrt(1 + y^2), also where y^2 overflows
template <class R> static inline R root_of(R y) { return smallest(std::sqrt(1 + y * y), 1 + std::abs(y)); }

// y after a time s of dy/ds = -y/sqrt(1 + y^2): x = e^root y/(1 + root) decays as e^-s, and with e^2u = 1 + x^2,
// y = x e^-u (u + p/d), p and d polynomials of u, up to 1e-7: in float64 a step of Halley's rule makes it exact
template <class R> static inline R braked(R y, R s) {
    const R tiny = bits<R>((typename Bits<R>::U)1 << Bits<R>::mantissa), root = root_of(y), q = y / (1 + root);
    const R top = at_least(root - s + log_of(largest(std::abs(q), tiny)), R(0));  // e^(2 top) is divided out
    const R rest = exp_of(-top), x = q * exp_of(root - s - top), square = largest(rest * rest + x * x, tiny);
    const R u = top + log_of(square) / 2, v = at_most(u, R(2000));
    R p = R(0.010220450191431762) + v * (R(0.0023380244937693203) + v * R(0.0006750446097352161));
    p = R(0.7357588070993576) + v * (R(-0.041136964404352716) + v * (R(0.08033899284546246) + v * p));
    R d = R(0.026841032580800405) + v * (R(0.004437873380165231) + v * R(0.0013537844264593642));
    d = 1 + v * (R(0.5738921556649517) + v * (R(0.292296700595234) + v * (R(0.10005740175118798) + v * d)));
    const R z = x / std::sqrt(square) * (u + p / d);
    if constexpr (sizeof(R) == 4) return z;
    const R then = root_of(z), ratio = largest(z == 0 ? R(1) : z / (q * (1 + then)), tiny);
    const R step = (root - s - then - log_of(ratio)) / then;
    return z + z * (step + (step / then) * (step / then) / 2);
}
