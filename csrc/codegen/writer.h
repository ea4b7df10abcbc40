// What the printer of statements knows while it writes one kernel: names, registers and which threads get where.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "codegen/condition_text.h"
#include "codegen/dialect.h"
#include "codegen/index_text.h"
#include "codegen/packed.h"
#include "loops/kernel.h"

namespace jf::codegen {

struct Writer {
  const loops::Kernel& kernel;
  const Dialect& dialect;
  const SharedMemory memory;
  Writer(const loops::Kernel& kernel, const Dialect& dialect, SharedMemory memory)
      : kernel(kernel), dialect(dialect), memory(std::move(memory)) {}

  std::string out = {};
  int depth = 1;
  bool in_vector = false;
  bool masked = false;      // in a vector whose last lanes may not exist; `on` says which do
  std::string before = {};  // by how many lanes that vector begins earlier, if they are moved
  int divergent = 0;        // how many enclosing statements leave out some threads of a block
  std::vector<std::string> buffers = {}, arrays = {}, rings = {}, maps = {};
  std::set<int> declared = {}, packed = {};
  PairedFolds paired = {};
  std::map<loops::RegisterId, std::string> pairs_of = {};       // of registers: the elements of packed arrays they are
  std::map<int, int> gets = {};                                 // of packed arrays, so far
  std::map<loops::RegisterId, loops::RegisterId> e2m1_of = {};  // by register of codes: what they are of
  std::string unrolled = {};                // ", i1, i2": the variables of the enclosing unrolled loops
  std::set<int64_t> thread_variables = {};  // those whose value differs between the threads of a block
  std::vector<std::string> registers = {};  // empty until defined
  std::vector<int> loops_around = {};       // of each register's definition
  int loops_now = 0;
  int locals = 0, folds = 0;
  Variables variables = {};
  std::optional<size_t> first_line = {};  // where variables that outlive loops are declared, if there is such a place

  template <class... Args>
  void line(const Args&... args) {
    out += std::string(2 * depth, ' ') + cat(args...) + "\n";
  }
  std::string_view index_type() const { return kernel.wide_index ? "long" : "int"; }
  std::string lanes(loops::RegisterId id) const { return std::string(name(compute_dtype(kernel.registers.at(id)))); }
  std::string index(const loops::IndexPtr& index) const { return index_text(index, variables); }
  std::string offset(const loops::IndexPtr& index) const { return offset_text(index, variables); }
  std::string on() const { return masked ? ", on" : ""; }
  std::string condition(const loops::Condition& below, bool alone = true) const {
    return condition_text(below, variables, alone);
  }
  bool varies(const loops::IndexPtr& index) const {
    if (index->kind == loops::IndexKind::kVar) return thread_variables.count(index->value) > 0;
    return index->kind != loops::IndexKind::kConst && (varies(index->a) || varies(index->b));
  }
  bool varies(const loops::Condition& condition) const {
    return std::any_of(condition.begin(), condition.end(), [&](const loops::Below& b) {
      return varies(b.index) || (b.variable >= 0 && thread_variables.count(b.variable) > 0);
    });
  }
  void check_all_threads(const char* what) const {
    JF_CHECK(divergent == 0, "kernel ", kernel.name, " has a ", what, " that not every thread of a block gets to");
  }

  const std::string& use(loops::RegisterId id) const {
    JF_CHECK(!registers.at(id).empty(), "kernel ", kernel.name, " reads register ", id, " before it is defined");
    return registers[id];
  }
  // Numbered anew: the fusion's own values are t4 or by the user's name, and a register is often none of them.
  std::string define(loops::RegisterId id) {
    JF_CHECK(registers.at(id).empty(), "kernel ", kernel.name, " defines register ", id, " twice");
    registers[id] = cat("v", locals++);
    loops_around[id] = loops_now;
    return cat("const ", lanes(id), " ", registers[id], " = ");
  }
  std::string bind(int id, int64_t multiple) {
    const auto [entry, fresh] = variables.insert({id, {cat("i", variables.size()), multiple}});
    JF_CHECK(fresh, "kernel ", kernel.name, " binds variable ", id, " twice");
    return entry->second.name;
  }
  // The largest power of two that divides both the offset and the width.
  int64_t multiple(const loops::IndexPtr& index) const {
    return std::gcd<int64_t>(multiple_of(index, variables), kernel.width);
  }

  // An array of one element is a plain variable.
  const std::string& array(int id) const {
    JF_CHECK(declared.count(id), "kernel ", kernel.name, " uses array ", id, " before it is declared");
    return arrays.at(id);
  }
  std::string element(int id, const loops::IndexPtr& at) const {
    const std::string& name = array(id);
    return kernel.arrays[id].size == 1 ? name : cat(name, "[", index(at), "]");
  }
};

}  // namespace jf::codegen
