#include "codegen/generate.h"

#include <algorithm>

#include "base/embedded.h"
#include "base/error.h"
#include "codegen/dialect.h"
#include "codegen/printer.h"
#include "codegen/shared_memory.h"
#include "loops/bodies.h"

namespace jf::codegen {
namespace {

using namespace loops;

bool is_identifier(std::string_view name) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

// The headers that kernels need beside the prelude.
struct Needs {
  bool math = false, fold = false, fold_threads = false, cluster = false, bulk = false, scan = false,
       scan_threads = false, index_reads = false, search = false, turn = false, cycle = false, interleave = false;

  void operator()(const Compute& c) { math |= ir::info(c.op).operands == ir::OperandTypes::kFloating; }
  void operator()(const Declare& declare) {
    fold |= declare.fill.has_value();
    math |= declare.fill == ir::OpKind::kLogAddExp;
  }
  void operator()(const Accumulate&) { fold = true; }
  void operator()(const Combine& c) {
    fold = true;
    fold_threads |= c.threads || c.threads_y || c.cluster;
    cluster |= c.cluster;
  }
  void operator()(const Load& load) {
    cycle |= load.cycle.has_value();
    interleave |= load.phase >= 0;
  }
  void operator()(const StoreInterleaved&) { interleave = true; }
  void operator()(const ReadIndex&) { index_reads = true; }
  void operator()(const TurnTile&) { turn = true; }
  void operator()(const OpenRing&) { bulk = true; }
  void operator()(const BulkStore&) { bulk = true; }
  void operator()(const Scan& s) {
    scan = true;
    math |= s.op == ir::OpKind::kLogAddExp;
  }
  void operator()(const ScanThreads&) { scan_threads = true; }
  void operator()(const Search&) { search = true; }
  template <class Other>
  void operator()(const Other&) {}
};

}  // namespace

std::string includes(const std::vector<Kernel>& kernels, const Target& target) {
  const Dialect& language = dialect(target.platform);
  Needs needs;
  for (const Kernel& kernel : kernels) for_each(kernel.body, [&](const auto& node) { needs(node); });
  std::string text;
  auto include = [&](std::string_view header) { text += cat("#include \"", header, "\"\n"); };
  include(language.prelude);
  if (needs.math) include(language.math);
  if (needs.fold) include(language.fold);
  if (needs.fold_threads) include(language.fold_threads);
  if (needs.turn) include(language.turn);
  if (needs.cluster) include(language.cluster);
  if (needs.bulk) include(language.bulk);
  if (needs.scan) include(language.scan);
  if (needs.scan_threads) include(language.scan_threads);
  if (needs.index_reads) include("codegen/index_reads.h");
  if (needs.search) include(language.search);
  if (needs.cycle) include("codegen/cpu_cycle.h");
  if (needs.interleave) include("codegen/cpu_interleave.h");
  return text;
}

runtime::Source generate(const std::vector<Kernel>& kernels, const Target& target, const std::vector<int>& parameters) {
  const Dialect& language = dialect(target.platform);
  runtime::Source source;
  source.language = language.language;
  source.text = language.settings(kernels, target) + includes(kernels, target);
  for (const Kernel& kernel : kernels) {
    JF_CHECK(is_identifier(kernel.name), "kernel name '", kernel.name, "' is no identifier");
    const int64_t shared = shared_memory(kernel).bytes;
    JF_CHECK(shared <= target.max_shared_bytes, "kernel ", kernel.name, " needs ", shared,
             " bytes of shared memory, the target has ", target.max_shared_bytes);
    source.text += "\n" + print_kernel(kernel, language, parameters);
    source.entries.push_back(kernel.name);
  }
  source.headers = embedded_includes(source.text);
  return source;
}

}  // namespace jf::codegen
