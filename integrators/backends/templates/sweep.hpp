typedef REAL R;
constexpr int64_t BLOCK = 64;  // sites whose noise is drawn at once

struct Sweep {  // arrays: [array][part], numbers: [number] of each chain; items are runs of sites of one part
    int64_t chains, parts, items;
    const int64_t *part, *first, *count, *sites, *offset;
    R *const *array_in, *const *array_out, *const *number_in, *const *number_out, *const *drawn, *const *per_site;
    const double* constants;
    double* sums;
    uint64_t seed, step;
    int64_t first_chain;
};

// the random numbers of a run of sites of a chain: those given, or drawn a block at a time
template <class R, bool normal> struct Noise {
    static constexpr uint64_t GROUPS = BLOCK / 4;
    alignas(64) R buffer[BLOCK];
    const R* given;
    int64_t first;  // in its block
    uint64_t group, step, seed;
    uint32_t draw, chain;
    Normals normals;

    INLINE Noise(const R* given, const Place& place, uint32_t draw, uint32_t chain, uint64_t seed)
        : given(given), step(place.step), seed(seed), draw(draw), chain(chain) {
        first = (int64_t)(place.group % GROUPS) * 4 + place.at;
        group = place.group / GROUPS * GROUPS;
        if constexpr (normal && sizeof(R) == 4)
            if (!given) normals.begin(group, draw, chain, step, seed);
    }

    // the numbers from site b of the run to the end of its block
    INLINE const R* from(int64_t b) {
        if (given) return given + b;
        if constexpr (normal && sizeof(R) == 4) {
            for (int64_t l = 0; l < BLOCK; l += Normals::SITES) normals.next(buffer + l);
        } else {
            fill<R, normal, GROUPS>(buffer, group, draw, chain, step, seed);
            group += GROUPS;
        }
        return buffer + (first + b) % BLOCK;
    }
};
