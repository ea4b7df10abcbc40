// The types that ops' results must have: each op's rule by itself, where ir/infer.h chooses among them.
#pragma once

#include <variant>
#include <vector>

#include "base/error.h"
#include "ir/fusion.h"
#include "ir/text.h"

namespace jf::ir {

// One op under inspection; errors begin with its name, as the caller wrote it.
struct Inference {
  const Fusion& fusion;
  const OpInfo& op;
  const std::vector<ValueId>& inputs;
  const Attribute& attribute;

  const Value& in(size_t i) const { return fusion.values[inputs[i]]; }
  std::string type(size_t i) const { return print_type(fusion, in(i)); }

  template <class T>
  const T& get(const char* what) const {
    const T* held = std::get_if<T>(&attribute);
    JF_REQUIRE(held, "[", op.name, "] needs {", what, "}");
    return *held;
  }

  Value constant(const Value& stated) const;
  Value iota(const Value& stated) const;
  Value pointwise(const Value& stated) const;
  Value reduce() const;
  Value scan() const;
  Value search() const;
  // What moves, repeats or leaves out elements.
  Value broadcast(const Value& stated) const;
  Value transpose() const;
  Value slice(const Value& stated) const;
  Value pad(const Value& stated) const;
  Value place() const;
  Value concat() const;
  Value squeeze() const;
  Value reshape(const Value& stated) const;
  Value take(const Value& stated) const;
  Value copy() const;
  Value spread(const Value& stated) const;
  // Matrix products.
  Value grouped(const Value& stated) const;
  void check_operand_types() const;

 private:
  void check_inside(const Slice& s, const std::vector<int64_t>& counts) const;
  void check_scales(const Grouped& g, const Value& of_lhs, const Value& of_rhs) const;
  Value packed_weights(const Grouped& g, const Value& stated) const;
};

}  // namespace jf::ir
