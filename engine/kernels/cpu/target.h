// Compiles what stands between the two for an instruction set beyond the baseline. The standard library's
// headers have to come before: their inline functions must stay at the baseline.
#pragma once

#define TANDEM_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define TANDEM_TARGET_BEGIN(features)                                                                         \
    TANDEM_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TANDEM_TARGET_END TANDEM_PRAGMA(clang attribute pop)
#elif defined(__GNUC__)
#define TANDEM_TARGET_BEGIN(features) TANDEM_PRAGMA(GCC push_options) TANDEM_PRAGMA(GCC target(features))
#define TANDEM_TARGET_END TANDEM_PRAGMA(GCC pop_options)
#endif
