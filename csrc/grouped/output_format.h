// Formats of `quantize` that the kernel of a product makes by itself of its results, which are rounded to 16 bits and
// then stored in few, with a scale for each so many columns of a row. A row's one scale waits for all its columns,
// which many blocks compute: "fp8_row" is none of them.
#pragma once

#include <cstdint>
#include <string_view>

namespace jf::grouped {

enum class OutputFormat : uint8_t { kNone, kFp8Block, kMxfp8, kNvfp4, kMxfp4 };

struct OutputFormatFacts {
  std::string_view name;    // for Python and in programs
  std::string_view device;  // a struct of cuda/output_formats.cuh
  std::string_view elements, scales;
  int64_t bits;         // of an element; of four two are in a byte
  int64_t scale_bytes;  // of one
  int64_t columns;      // of a scale; the result has whole ones
};
constexpr OutputFormatFacts kOutputFormats[] = {
    {"", "", "", "", 0, 0, 0},
    {"fp8_block", "Fp8Block", "f8e4m3fn", "f32", 8, 4, 128},
    {"mxfp8", "Mxfp8", "f8e4m3fn", "f8e8m0fnu", 8, 1, 32},
    {"nvfp4", "Nvfp4", "u8", "f8e4m3fn", 4, 1, 16},
    {"mxfp4", "Mxfp4", "u8", "f8e8m0fnu", 4, 1, 32},
};
constexpr const OutputFormatFacts& facts_of(OutputFormat format) { return kOutputFormats[static_cast<int>(format)]; }

}  // namespace jf::grouped
