// Random numbers without state: each is a function of (seed, choice, position) alone. See engine/sampling/randomness.py.
#pragma once

#include <cstdint>

namespace tandem {

__extension__ typedef unsigned __int128 Product;

// The first word of Philox-4x64-10 (Salmon et al., SC 2011) under the key (seed, choice) at the counter
// (1, position, 0, 0), as a multiple of 2^-53 in [0, 1).
inline double uniform(uint64_t seed, uint64_t choice, uint64_t position) {
    uint64_t counter[4] = {1, position, 0, 0}, key[2] = {seed, choice};
    for (int round = 0; round < 10; ++round) {
        const Product first = Product(0xD2E7470EE14C6C93) * counter[0];
        const Product second = Product(0xCA5A826395121157) * counter[2];
        counter[0] = uint64_t(second >> 64) ^ counter[1] ^ key[0];
        counter[1] = uint64_t(second);
        counter[2] = uint64_t(first >> 64) ^ counter[3] ^ key[1];
        counter[3] = uint64_t(first);
        key[0] += 0x9E3779B97F4A7C15;
        key[1] += 0xBB67AE8584CAA73B;
    }
    return double(counter[0] >> 11) * 0x1p-53;
}

}  // namespace tandem
