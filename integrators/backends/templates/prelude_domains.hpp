// ---- the ends of domains; what is no number stays none

// the point of the circle from low to high that x is
template <class R> static inline R wrapped(R x, R low, R high) {
    const R width = high - low, y = x - width * std::floor((x - low) / width);
    return (y < low) | (y >= high) ? low : y;
}

// how far a path at x is from low after its reflections, negative where their number is odd
template <class R> static inline R from_end(R x, R low, R high) {
    const R way = x - low, twice = 2 * (high - low);
    return way - twice * std::floor(way / twice + R(0.5));
}

template <class R> static inline R folded(R x, R low, R high) {
    return smallest<R>(largest<R>(low + std::abs(from_end(x, low, high)), low), high);
}

template <class R> static inline R turned(R x, R low, R high) { return from_end(x, low, high) < 0 ? R(-1) : R(1); }
