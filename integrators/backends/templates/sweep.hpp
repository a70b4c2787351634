typedef REAL R;
constexpr int64_t BLOCK = 256;  // sites whose noise is drawn at once

struct Sweep {  // arrays: [array][part], numbers: [number] of each chain; items are runs of sites of one part
    int64_t chains, parts, items;
    const int64_t *part, *first, *count, *sites, *offset;
    R *const *array_in, *const *array_out, *const *number_in, *const *number_out, *const *drawn, *const *per_site;
    const double* constants;
    double* sums;
    uint64_t seed, step;
    int64_t first_chain;
};

// the numbers of a run of sites within one block: those given, or drawn here
template <bool normal> static inline const R* numbers(R* buffer, const R* given, const Place& place, int64_t count, uint32_t draw,
                                                      uint32_t chain, uint64_t seed) {
    if (given) return given;
    const int64_t groups = (place.at + count + 3) / 4;
    if (groups > 48) {
        fill<R, normal, 64>(buffer, place.group, draw, chain, place.step, seed);
    } else {
        for (int64_t g = 0; g < groups; g += 16)
            fill<R, normal, 16>(buffer + 4 * g, place.group + g, draw, chain, place.step, seed);
    }
    return buffer + place.at;
}
