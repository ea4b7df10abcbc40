#include "codegen/index_text.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace jf::codegen {
namespace {

using loops::Index;
using loops::IndexKind;
using loops::IndexPtr;

enum Precedence { kSum, kProduct, kAtom };

struct Text {
  std::string text;
  Precedence precedence;
  bool wide;  // a 64-bit expression
};

std::string bracketed(const Text& text, Precedence least) {
  return text.precedence < least ? cat("(", text.text, ")") : text.text;
}

struct IndexWriter {
  const Variables& variables;
  bool wide;  // whether sums and products must be 64-bit

  Text operator()(const IndexPtr& index) const {
    switch (index->kind) {
      case IndexKind::kConst: return {cat(index->value, wide || index->value > INT32_MAX ? "L" : ""), kAtom, wide};
      case IndexKind::kVar: return {variables.at(index->value).name, kAtom, false};
      case IndexKind::kAdd: return binary(" + ", kSum, kSum, (*this)(index->a), (*this)(index->b));
      case IndexKind::kMul: return binary(" * ", kProduct, kAtom, (*this)(index->a), (*this)(index->b));
      case IndexKind::kDiv: return divided(" / ", index);
      case IndexKind::kMod: return divided(" % ", index);
      // Brackets always: the sign binds less than comparisons do.
      case IndexKind::kXor: return {cat("(", divided(" ^ ", index, kAtom).text, ")"), kAtom, false};
      case IndexKind::kMin: {
        const IndexWriter narrow{variables, false};
        return {cat("jf::least(", narrow(index->a).text, ", ", narrow(index->b).text, ")"), kAtom, false};
      }
    }
    JF_CHECK(false, "index kind ", static_cast<int>(index->kind));
  }

  // Operators group to the left; a sum on the right keeps its brackets where the left alone would be a 32-bit sum with
  // it.
  Text binary(const char* sign, Precedence precedence, Precedence right, Text a, const Text& b) const {
    if (wide && !a.wide && !b.wide) a = {cat("long(", a.text, ")"), kAtom, true};
    if (wide && !a.wide) right = kAtom;
    if (b.precedence == kProduct && precedence == kSum) right = kSum;
    return {cat(bracketed(a, precedence), sign, bracketed(b, right)), precedence, wide};
  }
  // Operands stay narrow: they fit the index type.
  Text divided(const char* sign, const IndexPtr& index, Precedence left = kProduct) const {
    const IndexWriter narrow{variables, false};
    return {cat(bracketed(narrow(index->a), left), sign, bracketed(narrow(index->b), kAtom)), kProduct, false};
  }
};

}  // namespace

std::string index_text(const IndexPtr& index, const Variables& variables) {
  return IndexWriter{variables, false}(index).text;
}
std::string offset_text(const IndexPtr& index, const Variables& variables) {
  return IndexWriter{variables, true}(index).text;
}

int64_t multiple_of(const IndexPtr& index, const Variables& variables) {
  auto of = [&](const IndexPtr& part) { return multiple_of(part, variables); };
  switch (index->kind) {
    case IndexKind::kConst: return index->value;
    case IndexKind::kVar: return variables.at(index->value).multiple;
    case IndexKind::kAdd: return std::gcd(of(index->a), of(index->b));
    case IndexKind::kMul: return of(index->a) * of(index->b);
    case IndexKind::kMod:
    case IndexKind::kMin: return std::gcd(of(index->a), of(index->b));
    case IndexKind::kXor: {
      const int64_t both = std::gcd(of(index->a), of(index->b));
      return both & -both;  // only low zero bits stay
    }
    case IndexKind::kDiv: {
      const int64_t a = of(index->a);
      const bool exact = index->b->kind == IndexKind::kConst && a % index->b->value == 0;
      return exact ? a / index->b->value : 1;
    }
  }
  JF_CHECK(false, "index kind ", static_cast<int>(index->kind));
}

std::optional<int64_t> largest(const IndexPtr& index, const Variables& variables) {
  if (index->kind == IndexKind::kConst) return index->value;
  if (index->kind == IndexKind::kVar) return variables.at(index->value).last;
  const std::optional<int64_t> a = largest(index->a, variables), b = largest(index->b, variables);
  if (!a || !b) return std::nullopt;
  switch (index->kind) {
    case IndexKind::kAdd: return *a + *b;
    case IndexKind::kMul: return std::min(*a, *b) < 0 ? std::nullopt : std::optional(*a * *b);
    case IndexKind::kMod: return std::min(*a, *b - 1);
    case IndexKind::kDiv: return index->b->kind == IndexKind::kConst ? *a / *b : *a;
    default: return std::nullopt;
  }
}

}  // namespace jf::codegen
