// How keys and values are taken out of their pages: a vector's worth at a time, in one or more parts. Part b
// holds elements b, b + parts, b + 2 * parts ... of its chunk. Values are in units of `unit`.

template <class KV>
struct Stored {
    using Raw = Vec;
    static constexpr int parts = 1;
    static constexpr float unit = 1.0f;
    static Raw load_raw(const char* p, int) { return load(reinterpret_cast<const KV*>(p)); }
    static Vec part(Raw raw, int) { return raw; }
};

#if defined(TANDEM_WORDS)

// 32-bit words whose elements are widened in place, so that none crosses a lane.
template <>
struct Stored<bfloat16> {
    using Raw = Words;
    static constexpr int parts = 2;
    static constexpr float unit = 1.0f;
    static Raw load_raw(const char* p, int left) { return load_words(p, left / parts); }
    static Vec part(Raw raw, int b) {
        return b == 0 ? as_floats(shift_left(raw, 16)) : as_floats(keep(raw, 0xffff0000u));
    }
};

template <>
struct Stored<int8_t> {
    using Raw = Words;
    static constexpr int parts = 4;
    static constexpr float unit = 0x1p-24f;
    static Raw load_raw(const char* p, int left) { return load_words(p, left / parts); }
    static Vec part(Raw raw, int b) {
        const Raw top = b == 3 ? raw : shift_left(raw, 24 - 8 * b);
        return to_floats(b == 0 ? top : keep(top, 0xff000000u));
    }
};

#else

// Never reached: one part is neither separated nor joined.
inline void interleave(Vec, Vec, Vec*, Vec*) {}
inline void separate(Vec, Vec, Vec*, Vec*) {}

#endif

// In place: from the vectors of a chunk to its parts, and back.
template <int Parts>
inline void separate_parts(Vec (&in)[Parts], Vec (&spare)[Parts]) {
    for (int round = Parts; round > 1; round /= 2) {
        for (int v = 0; v < Parts; v += 2) separate(in[v], in[v + 1], &spare[v / 2], &spare[(v + Parts) / 2]);
        for (int v = 0; v < Parts; ++v) in[v] = spare[v];
    }
}
template <int Parts>
inline void join_parts(Vec (&in)[Parts], Vec (&spare)[Parts]) {
    for (int round = Parts; round > 1; round /= 2) {
        for (int v = 0; v < Parts; v += 2) interleave(in[v / 2], in[(v + Parts) / 2], &spare[v], &spare[v + 1]);
        for (int v = 0; v < Parts; ++v) in[v] = spare[v];
    }
}
