// The compiler's vectors, included once by each instruction set inside its namespace and target with
// TANDEM_VECTOR_BYTES defined: one source that is compiled to each one's registers.

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
    typedef float Values __attribute__((vector_size(TANDEM_VECTOR_BYTES)));
    typedef int32_t Bits __attribute__((vector_size(TANDEM_VECTOR_BYTES)));
    static constexpr int32_t kInfinity = 0x7f800000, kAbsolute = 0x7fffffff;
};
template <>
struct VectorOf<double> {
    typedef double Values __attribute__((vector_size(TANDEM_VECTOR_BYTES)));
    typedef int64_t Bits __attribute__((vector_size(TANDEM_VECTOR_BYTES)));
    static constexpr int64_t kInfinity = 0x7ff0000000000000, kAbsolute = 0x7fffffffffffffff;
};

template <class T>
using Vector = typename VectorOf<T>::Values;
template <class T>
using Bits = typename VectorOf<T>::Bits;
typedef float HalfFloats __attribute__((vector_size(TANDEM_VECTOR_BYTES / 2)));

template <class T>
constexpr size_t kLanes = TANDEM_VECTOR_BYTES / sizeof(T);

template <class V, class T>
inline V load_vector(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// kLanes<double> elements as float64.
inline Vector<double> load_wide(const double* p) { return load_vector<Vector<double>>(p); }
inline Vector<double> load_wide(const float* p) {
    return __builtin_convertvector(load_vector<HalfFloats>(p), Vector<double>);
}

inline Vector<double> splat(double x) { return x - Vector<double>{}; }

// e^x for x <= 0: 2^n * e^r with |r| <= ln(2) / 2, the series up to r^12.
inline Vector<double> exponential(Vector<double> x) {
    const Vector<double> lowest = splat(-708.0);
    const Vector<double> kept = x > lowest ? x : lowest;
    const Vector<double> shifted = kept * 1.4426950408889634 + 6755399441055744.0;  // 1.5 * 2^52: rounds
    const Vector<double> n = shifted - 6755399441055744.0;
    const Vector<double> r = (kept - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    Vector<double> p = r * (1.0 / 479001600) + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const Vector<double> scaled = (Vector<double>)((Bits<double>)p + ((Bits<double>)shifted << 52));
    return x > lowest ? scaled : Vector<double>{};
}
