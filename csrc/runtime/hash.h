// SHA-256, the name of everything the compile cache keeps. The cache loads what it finds under a name into the process,
// so two different sources must never share one. Our own, because a wheel that links OpenSSL for sixty lines is worse.
#pragma once

#include <string>
#include <string_view>

namespace jf::runtime {

// 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace jf::runtime
