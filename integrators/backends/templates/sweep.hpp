typedef REAL R;
constexpr int64_t BLOCK = 64;    // sites whose noise is drawn at once
constexpr int64_t AHEAD = 1024;  // sites from a block to the one that is asked for beside it
constexpr int64_t ALONE = 1 << 14;  // sites that one thread moves sooner than others wake up

struct Sweep {  // arrays: [array][part], numbers: [number] of each chain; items are runs of sites of one part
    int64_t chains, parts, items, of_chain;  // of_chain: the sites of a chain, some of which other processes may have
    const int64_t *part, *first, *count, *sites, *offset;
    R *const *array_in, *const *array_out, *const *number_in, *const *number_out, *const *drawn, *const *per_site;
    const double* constants;
    double* sums;
    uint64_t seed, step;
    int64_t first_chain;
};

// Ask for the memory of a block that comes later in a run: the hardware foresees a page of memory, and few arrays
static INLINE void foresee(const R* x, int64_t left) {
    if (left > AHEAD)
        for (int64_t l = AHEAD; l < AHEAD + BLOCK; l += 64 / (int64_t)sizeof(R)) __builtin_prefetch(x + l);
}

// the values of a constant in a run of sites: in memory, or one number for all
struct PerSite {
    alignas(64) R buffer[BLOCK];
    const R* given;

    INLINE PerSite(const R* given, R number) : given(given) {
        if (!given)
            for (int64_t i = 0; i < BLOCK; ++i) buffer[i] = number;
    }
    INLINE const R* from(int64_t b) const { return given ? given + b : buffer; }
};

// The random numbers of one run of sites after the other: those given, or drawn a block at a time, which goes on from
// run to run where they meet
template <class R, bool normal> struct Noise {
    static constexpr uint64_t GROUPS = BLOCK / 4, NOWHERE = ~(uint64_t)0;
    alignas(64) R buffer[BLOCK];
    const R* given = nullptr;
    int64_t first = 0;  // in its block
    uint64_t start = NOWHERE, filled = NOWHERE, step = 0, seed;
    uint32_t draw, chain = 0;
    Normals normals;

    INLINE Noise(uint32_t draw, uint64_t seed) : seed(seed), draw(draw) {}

    INLINE void run(const R* numbers, const Place& place, uint32_t of_chain) {
        given = numbers;
        first = (int64_t)(place.group % GROUPS) * 4 + place.at;
        const bool meets = start != NOWHERE && chain == of_chain;
        start = place.group / GROUPS * GROUPS;
        chain = of_chain;
        step = place.step;
        if (!meets) filled = NOWHERE;
        if constexpr (normal && sizeof(R) == 4) {
            if (given || (meets && (start == filled || start == normals.group))) return;
            filled = NOWHERE;
            normals.begin(start, draw, chain, step, seed);
        }
    }

    // the numbers from site b of the run to the end of its block
    INLINE const R* from(int64_t b) {
        if (given) return given + b;
        const uint64_t group = start + (uint64_t)((first + b) / BLOCK) * GROUPS;
        if (group != filled) {
            if constexpr (normal && sizeof(R) == 4) {
                for (int64_t l = 0; l < BLOCK; l += Normals::SITES) normals.next(buffer + l);
            } else {
                fill<R, normal, GROUPS>(buffer, group, draw, chain, step, seed);
            }
            filled = group;
        }
        return buffer + (first + b) % BLOCK;
    }
};
