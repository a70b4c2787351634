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
template <int N> struct Wide {
    typedef uint64_t Lane __attribute__((vector_size(8 * N)));
    typedef uint32_t Word __attribute__((vector_size(8 * N)));
    typedef int32_t Signed __attribute__((vector_size(8 * N)));
    typedef float Real __attribute__((vector_size(8 * N)));
};

// the 64-bit product of the low halves
template <class L> static inline L times(L a, L b) {
#if defined __AVX512F__
    if constexpr (sizeof(L) == 64) return (L)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#endif
#if defined __AVX2__
    if constexpr (sizeof(L) == 32) return (L)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#endif
    return (a & 0xFFFFFFFFu) * b;
}

// Philox of 2 N counters, the even ones in a vector and the odd ones in another, so that neither waits for the other.
// All differ in one word: along groups of sites, which begin at a multiple of 2 N, or along chains
template <int N> struct Philox {
    using Lane = typename Wide<N>::Lane;
    Lane c[2][4];
    uint32_t k0, k1;

    template <bool along_chains>
    INLINE void begin(uint64_t group, uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {
        const Lane zero = {};
        Lane even = {};
        for (int l = 0; l < N; ++l) even[l] = 2 * l;
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            c[j][0] = along_chains ? zero + (uint32_t)group : even + (uint64_t)((uint32_t)group + j);
            c[j][1] = zero + (uint32_t)(group >> 32 | draw << 16);
            c[j][2] = along_chains ? even + ((uint64_t)chain + j) : zero + chain;
            c[j][3] = zero + (uint32_t)step;
        }
        k0 = (uint32_t)seed;
        k1 = (uint32_t)(seed >> 32) ^ (uint32_t)(step >> 32);
    }

    INLINE void round() {
        const Lane zero = {}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            const Lane p0 = times(c[j][0], m0), p1 = times(c[j][2], m1);
            c[j][0] = (p1 >> 32) ^ c[j][1] ^ k0;
            c[j][1] = p1;
            c[j][2] = (p0 >> 32) ^ c[j][3] ^ k1;
            c[j][3] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }

    // the tenth round, whose words come in the order of the counters
    template <class Word> INLINE void end(Word (&w)[4]) {
        const Lane zero = {}, low = zero + 0xFFFFFFFFu, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
        const Lane p0 = times(c[0][0], m0), q0 = times(c[1][0], m0), p1 = times(c[0][2], m1), q1 = times(c[1][2], m1);
        const Lane x1 = (c[0][1] & low) | c[1][1] << 32, x3 = (c[0][3] & low) | c[1][3] << 32;
        w[0] = (Word)((p1 >> 32 | (q1 & ~low)) ^ x1 ^ (k0 | (uint64_t)k0 << 32));
        w[1] = (Word)((p1 & low) | q1 << 32);
        w[2] = (Word)((p0 >> 32 | (q0 & ~low)) ^ x3 ^ (k1 | (uint64_t)k1 << 32));
        w[3] = (Word)((p0 & low) | q0 << 32);
    }
};

// four words for each of W groups of sites of one chain, or for one group of W chains
template <int W, bool along_chains>
static INLINE void words(uint32_t (&w)[4][W], uint64_t group, uint32_t draw, uint32_t chain, uint64_t step,
                         uint64_t seed) {
    constexpr int N = W < 2 * LANES ? W / 2 : LANES;
    for (int l = 0; l < W; l += 2 * N) {
        Philox<N> philox;
        typename Wide<N>::Word x[4];
        const int by_group = along_chains ? 0 : l, by_chain = along_chains ? l : 0;
        philox.template begin<along_chains>(group + by_group, draw, chain + by_chain, step, seed);
#pragma GCC unroll 9
        for (int k = 0; k < 9; ++k) philox.round();
        philox.end(x);
        for (int k = 0; k < 4; ++k) std::memcpy(&w[k][l], &x[k], sizeof x[k]);
    }
}

// (x + 1/2) 2^-32; without AVX-512 unsigned numbers convert slowly: halves are exact, so that their sum is rounded once
template <class R, class I = int32_t, class U> static inline R unit(U x) {
#if defined __AVX512F__
    const R whole = converted<R>(x);
#else
    const R whole = converted<R>((I)(x >> 16)) * 65536.0f + converted<R>((I)(x & 0xFFFF));
#endif
    return whole * 0x1p-32f + 0x1p-33f;
}

// below 1
template <class R> static inline R open_unit(uint32_t x) {
    return smallest(unit<R>(x), R(1) - (sizeof(R) == 4 ? R(0x1p-24) : R(0x1p-53)));
}

// ---- normal numbers of pairs of words, by Box and Muller (1958): sqrt(-2 log u) times cos and sin of 2 pi v. The
// angle is a number of half turns, which change both signs, and a rest z within pi/2: the word without its highest bit

constexpr double ANGLE = 3.14159265358979323846 * 0x1p-32;
// to 3e-10
constexpr float COS[] = {1.0f, -0.499999994f, 4.16666363e-2f, -1.38883614e-3f, 2.47601623e-5f, -2.60515089e-7f};
// over z, to 5e-9
constexpr float SIN[] = {0.999999996f, -0.166666580f, 8.33305108e-3f, -1.98090762e-4f, 2.60522652e-6f};

template <class F> static INLINE F root(F x) {
    if constexpr (sizeof(F) <= 8) return std::sqrt(x);
#if defined __AVX512F__
    else if constexpr (sizeof(F) == 64) return (F)_mm512_sqrt_ps((__m512)x);
#endif
#if defined __AVX2__
    else if constexpr (sizeof(F) == 32) return (F)_mm256_sqrt_ps((__m256)x);
#endif
    else {
        F y;
        for (unsigned l = 0; l < sizeof(F) / 4; ++l) y[l] = std::sqrt(x[l]);
        return y;
    }
}

// a pair in float32, or a vector of them, in steps between which other work may stand
template <class F, class U, class I> struct Pair {
    F t, scaled, p, z, q, c, s;
    U half_turns;

    INLINE void begin(U even, U odd) {
        const F zero = {};
        split<I>(unit<F, I>(even), t, scaled);
        z = converted<F>((I)(odd << 1)) * (float)ANGLE + (float)ANGLE;
        half_turns = (odd + 0x40000000u) & 0x80000000u;
        q = z * z;
        p = zero + LOG[8];
        c = zero + COS[5];
        s = zero + SIN[4];
    }

    template <int j> INLINE void step() {  // j = 0, ..., 7
        p = p * t + LOG[7 - j];
        if constexpr (j < 5) c = c * q + COS[4 - j];
        if constexpr (j < 4) s = s * q + SIN[3 - j];
        if constexpr (j == 4) s *= z;
    }

    INLINE void end(F& x, F& y) {
        const F r = bits<F>(bits<U>(root(scaled * LOG_OF_2 + t * p)) ^ half_turns);
        x = r * c;
        y = r * s;
    }
};

static inline void pair_of_normals(uint32_t even, uint32_t odd, float& x, float& y) {
    Pair<float, uint32_t, int32_t> pair;
    pair.begin(even, odd);
    pair.step<0>(), pair.step<1>(), pair.step<2>(), pair.step<3>();
    pair.step<4>(), pair.step<5>(), pair.step<6>(), pair.step<7>();
    pair.end(x, y);
}

static inline void pair_of_normals(uint32_t even, uint32_t odd, double& x, double& y) {
    const double r = std::sqrt(-2 * log_of_normal(unit<double>(even)));
    const double z = (double)(int32_t)(odd << 1) * ANGLE + ANGLE, q = z * z;
    double c = 0, s = 0;
#pragma GCC unroll 16
    for (int j = Bits<double>::angles; j >= 0; --j) {
        c = c * q + (j % 2 ? -series.over_factorial[2 * j] : series.over_factorial[2 * j]);
        s = s * q + (j % 2 ? -series.over_factorial[2 * j + 1] : series.over_factorial[2 * j + 1]);
    }
    const double signed_r = bits<double>(bits<uint64_t>(r) ^ (uint64_t)((odd + 0x40000000u) & 0x80000000u) << 32);
    x = signed_r * c;
    y = signed_r * (s * z);
}

// normal numbers in float32, a block of sites after the other: while those of a block are made of its words, the words
// of the next are found, as neither alone keeps the vector units at work
struct Normals {
    static constexpr int SITES = 8 * LANES;
    using Real = Wide<LANES>::Real;
    using Word = Wide<LANES>::Word;
    uint64_t group, step, seed;
    uint32_t draw, chain;
    Word w[4];

    INLINE void begin(uint64_t first_group, uint32_t of_draw, uint32_t of_chain, uint64_t of_step, uint64_t of_seed) {
        group = first_group, draw = of_draw, chain = of_chain, step = of_step, seed = of_seed;
        Philox<LANES> philox;
        philox.begin<false>(group, draw, chain, step, seed);
#pragma GCC unroll 9
        for (int k = 0; k < 9; ++k) philox.round();
        philox.end(w);
    }

    INLINE void next(float* out) {
        Pair<Real, Word, Wide<LANES>::Signed> a, b;
        Philox<LANES> philox;
        group += SITES / 4;
        philox.begin<false>(group, draw, chain, step, seed);
        a.begin(w[0], w[1]), b.begin(w[2], w[3]), philox.round();
        a.step<0>(), b.step<0>(), philox.round();
        a.step<1>(), b.step<1>(), philox.round();
        a.step<2>(), b.step<2>(), philox.round();
        a.step<3>(), b.step<3>(), philox.round();
        a.step<4>(), b.step<4>(), philox.round();
        a.step<5>(), b.step<5>(), philox.round();
        a.step<6>(), b.step<6>(), philox.round();
        a.step<7>(), b.step<7>(), philox.round();
        philox.end(w);
        Real n[4];
        a.end(n[0], n[1]), b.end(n[2], n[3]);
#pragma omp simd
        for (int l = 0; l < 2 * LANES; ++l)
            for (int k = 0; k < 4; ++k) out[4 * l + k] = n[k][l];
    }
};

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
    uint32_t w[4][4];
    const Place place = place_of(1, 0, step);
    words<4, false>(w, place.group, draw, chain, place.step, seed);
    R x, y;
    pair_of_normals(w[place.at & 2][0], w[place.at | 1][0], x, y);
    return place.at % 2 ? y : x;
}

template <class R> static inline R one_uniform(uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {
    uint32_t w[4][4];
    const Place place = place_of(1, 0, step);
    words<4, false>(w, place.group, draw, chain, place.step, seed);
    return open_unit<R>(w[place.at][0]);
}
