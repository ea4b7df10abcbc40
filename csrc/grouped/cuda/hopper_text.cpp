#include "base/error.h"
#include "grouped/cuda/hopper_kernel.h"

namespace jf::grouped::hopper {
namespace {

std::string_view header(const Problem& p) {
  if (p.mode == Mode::kContraction) return p.scales == Scales::kNone ? "hopper_contraction" : "hopper_fp8_contraction";
  switch (p.scales) {
    case Scales::kNone: return "hopper_rows";
    case Scales::kRows: return "hopper_fp8";
    case Scales::kBlocks: return "hopper_fp8_blocks";
  }
  JF_CHECK(false, "scales ", static_cast<int>(p.scales));
}

// The types of the operands in memory, and of both for the kernel's class.
struct OperandTypes {
  std::string lhs, rhs, both;
};
OperandTypes operand_types(const Problem& p) {
  if (p.scales == Scales::kNone) {
    const std::string in(device_type(p.lhs));
    return {in, in, in};
  }
  const auto e5m2 = [](DType d) { return d == DType::kF8E5M2 ? "true" : "false"; };
  return {"unsigned char", "unsigned char", cat("jf::grouped::Fp8<", e5m2(p.lhs), ", ", e5m2(p.rhs), ">")};
}

}  // namespace

std::string text(const Problem& p, const HopperConfig& c, std::string_view entry, int64_t shared,
                 const RowEpilogue* epilogue) {
  const bool contraction = p.mode == Mode::kContraction, scaled = p.scales != Scales::kNone, gathers = p.lhs_rows > 0;
  const bool quantizes = p.quantizes != OutputFormat::kNone;
  const std::string format = cat("jf::", facts_of(p.quantizes).device);
  const OperandTypes in = operand_types(p);
  const std::string_view out = device_type(p.out);
  const auto flag = [](bool value) { return value ? "true" : "false"; };

  std::string s = cat("#include \"grouped/cuda/", header(p), ".cuh\"\n");
  if (quantizes) s += "#include \"grouped/cuda/hopper_quantize.cuh\"\n";
  if (contraction && epilogue) s += "#include \"grouped/cuda/contraction_epilogue.cuh\"\n";
  s += "\n";
  if (epilogue) s += cat(epilogue->text, "\n");
  HopperConfig named = c;
  named.split = 1;
  s += cat("// ", print(named), splits_k(p, c) ? ", k split as launched" : "", "\n");
  if (contraction) {
    s += cat("using Kernel = jf::grouped::HopperContraction<", in.both, ", ", out, ", ", c.tile_n, ", ", c.stages, ", ",
             order_groups(p), ", ", flag(p.has_starts),
             scaled     ? ", jf::grouped::ContractionScales"
             : epilogue ? ", jf::grouped::ContractionEpilogue<Epilogue>"
                        : "",
             ">;\n");
  } else {
    s += cat("using Tile = jf::grouped::HopperTile<", c.tile_m, ", ", c.stages, ", ", c.cluster,
             c.tile_n == kSharedColumns ? ", true"
             : splits_k(p, c)           ? ", false, true"
                                        : "",
             ">;\n");
    if (p.scales == Scales::kBlocks) {
      s += cat("using Kernel = jf::grouped::HopperBlocks<", in.both, ", ", out, ", Tile, ", flag(p.has_starts), ">;\n");
    } else {
      s += cat("using Kernel = jf::grouped::HopperRows<", in.both, ", ", out, ", Tile, ", flag(p.transpose_rhs), ", ",
               flag(p.has_starts),
               epilogue ? ", Epilogue"
               : scaled ? ", jf::grouped::RowColumnScales"
                        : "",
               gathers ? ", jf::grouped::RowsByNumber" : "");
      if (quantizes) {
        s += cat(epilogue ? "" : ", jf::grouped::NoEpilogue", ", jf::grouped::RowsInOrder, jf::grouped::QuantizedRows<",
                 format, ">");
      }
      s += ">;\n";
    }
  }
  s += cat("static_assert(Kernel::kSharedBytes == ", shared,
           ", \"the launch gives the kernel its shared memory\");\n\n");
  s += "extern \"C\" __global__ ";
  if (c.cluster > 1) s += cat("__cluster_dims__(", c.cluster, ", 1, 1) ");
  s += cat("__launch_bounds__(", kThreads, ", 1) void ", entry, "(\n");
  s += cat("    const ", in.lhs, gathers ? "* lhs" : "*", ", const ", in.rhs, "*, const int* extents, ",
           p.has_starts ? "const int* starts, " : "", gathers ? "const int* number, " : "");
  if (scaled) s += "const float* __restrict__ lhs_scale, const float* __restrict__ rhs_scale,\n    ";
  s += cat(quantizes ? "unsigned char" : out, "* out,\n");
  if (!contraction) s += "    unsigned* next,\n";
  std::string members;
  for (size_t i = 0; epilogue && i < epilogue->members.size(); ++i) {
    s += cat("    ", epilogue->members[i], " __restrict__ e", i, ",\n");
    members += cat(i > 0 ? ", e" : "e", i);
  }
  if (quantizes) s += cat("    ", format, "::Scale* scales,\n");
  const bool several = epilogue && epilogue->several();
  for (size_t i = 1; several && i < epilogue->results.size(); ++i) s += cat("    ", out, "* out", i, ",\n");
  if (several && epilogue->folds) s += "    float* partial,\n";
  s += cat("    ", gathers ? "" : "const __grid_constant__ jf::TensorMap lhs_map, ",
           "const __grid_constant__ jf::TensorMap rhs_map,\n");
  const bool tile = epilogue && !several && !epilogue->tiles.empty();
  std::string maps_of_results, maps_of_tiles;
  for (size_t i = 1; several && i < epilogue->results.size(); ++i) {
    maps_of_results += cat(" const __grid_constant__ jf::TensorMap out_map", i, ",\n   ");
  }
  for (size_t i = 0; several && i < epilogue->tiles.size(); ++i) {
    maps_of_tiles += cat(" const __grid_constant__ jf::TensorMap tile_map", i, ",\n   ");
  }
  s += cat("   ", quantizes ? "" : " const __grid_constant__ jf::TensorMap out_map,", maps_of_results, maps_of_tiles,
           tile ? " const __grid_constant__ jf::TensorMap tile_map,\n   " : "",
           " long long m, long long k, long long n, long long groups,\n");
  s += cat("    long long", gathers ? " lhs_rows" : "", ") {\n");
  s += cat("  extern __shared__ __align__(", kSharedAlign, ") unsigned char memory[];\n");
  s += cat("  const jf::grouped::Ragged ragged = {extents, ", p.has_starts ? "starts" : "nullptr",
           ", static_cast<int>(groups), static_cast<int>(m)", p.leaves_padding ? ", true" : "", "};\n");
  s += contraction ? "  Kernel::run(memory, {lhs_map, rhs_map, out_map}, ragged, "
                   : cat("  Kernel::run(memory, ", gathers ? "rhs" : "lhs", "_map, rhs_map, ",
                         quantizes ? "rhs_map, ragged, nullptr" : "out_map, ragged, out", ", next, ");
  s += "static_cast<int>(k), static_cast<int>(n)";
  if (several) {
    std::string places, tile_maps;
    for (size_t i = 0; i < epilogue->results.size(); ++i) {
      const std::string number = i == 0 ? "" : cat(i);
      places += cat(i > 0 ? ", " : "", "{&out_map", number, ", out", number, ", ", epilogue->results[i].columns, ", ",
                    epilogue->results[i].first, "}");
    }
    for (size_t i = 0; i < epilogue->tiles.size(); ++i) tile_maps += cat(i > 0 ? ", " : "", "&tile_map", i);
    s += cat(", Epilogue{", members, "}, nullptr, {{", places, "}, {", tile_maps, "}, ",
             epilogue->folds ? "partial" : "nullptr", "}");
  } else if (epilogue && contraction) {
    s += cat(", {Epilogue{", members, "}}");
  } else if (epilogue) {
    s += cat(", Epilogue{", members, "}", tile ? ", &tile_map" : "");
  }
  if (gathers) s += ", nullptr, {}, {lhs, number, static_cast<unsigned>(lhs_rows)}";
  if (quantizes) s += cat(epilogue ? "" : ", {}", ", nullptr, {}, {}, {out, scales}");
  if (scaled)
    s += p.scales == Scales::kRows && !contraction ? ", {lhs_scale, rhs_scale, static_cast<int>(n)}"
                                                   : ", {lhs_scale, rhs_scale}";
  s += ");\n}\n";
  return s;
}

}  // namespace jf::grouped::hopper
