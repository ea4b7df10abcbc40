#include "host/epilogue.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "codegen/functor.h"
#include "grouped/cuda/hopper.h"
#include "host/group_ends.h"
#include "host/joined_tails.h"
#include "loops/bodies.h"
#include "lower/lower.h"
#include "plan/grouped.h"
#include "schedule/schedule.h"

namespace jf::host {
namespace {

using ir::Fusion;
using ir::ValueId;
using loops::IndexKind;
using loops::IndexPtr;

// row * i + column * j + constant
struct Linear {
  int64_t row, column, constant;
  bool operator==(const Linear&) const = default;
};

std::optional<Linear> linear(const IndexPtr& index, int row, int column) {
  switch (index->kind) {
    case IndexKind::kConst: return Linear{0, 0, index->value};
    case IndexKind::kVar:
      if (index->value != row && index->value != column) return std::nullopt;
      return Linear{index->value == row, index->value == column, 0};
    case IndexKind::kAdd:
    case IndexKind::kMul: break;
    default: return std::nullopt;
  }
  const auto a = linear(index->a, row, column), b = linear(index->b, row, column);
  if (!a || !b) return std::nullopt;
  if (index->kind == IndexKind::kAdd) return Linear{a->row + b->row, a->column + b->column, a->constant + b->constant};
  if (b->row != 0 || b->column != 0) return std::nullopt;
  return Linear{a->row * b->constant, a->column * b->constant, a->constant * b->constant};
}

// A kernel repeats its epilogue for each of the sums of a thread, up to 192: what is long takes seconds to compile and
// evicts the product's instructions, and the tensor cores wait for it. Exact gelu with 44 instructions of each sum took
// 1.1 to 1.4 times as long as behind the product (H200). 192 sums are 4000 instructions (sm_90a), functions of each
// more:
//   erfc of bf16, and where 16 bits are kept   15, 19    asin, acos, sinh   22    log1p   15
//   erf                                        27, 33    cbrt, atan, cosh   16
// In f32 as exact as CUDA has them, erf and log1p spill every sum.
constexpr int kMostWork = 64, kFunctionWork = 4;
// Those of more than 40, or that spill (erf_inv, nextafter).
constexpr std::array kLongFunctions = {
    ir::OpKind::kSin,    ir::OpKind::kCos,     ir::OpKind::kTan,      ir::OpKind::kPow,   ir::OpKind::kAtan2,
    ir::OpKind::kRem,    ir::OpKind::kErfInv,  ir::OpKind::kAsinh,    ir::OpKind::kAcosh, ir::OpKind::kAtanh,
    ir::OpKind::kLgamma, ir::OpKind::kDigamma, ir::OpKind::kNextAfter};

bool is_long(const loops::Compute& compute, DType dtype) {
  if (compute.op == ir::OpKind::kErf || compute.op == ir::OpKind::kErfc || compute.op == ir::OpKind::kLog1p) {
    return dtype != DType::kBF16 && !(dtype == DType::kF32 && compute.loose);
  }
  return contains(kLongFunctions, compute.op);
}

// About the instructions for one element.
int work_of(ir::OpKind op, DType dtype) {
  switch (op) {
    case ir::OpKind::kErf: return dtype == DType::kBF16 ? 27 : 33;
    case ir::OpKind::kErfc: return dtype == DType::kBF16 ? 15 : 19;
    case ir::OpKind::kLog1p: return 15;
    case ir::OpKind::kAsin:
    case ir::OpKind::kAcos:
    case ir::OpKind::kSinh: return 22;
    case ir::OpKind::kCbrt:
    case ir::OpKind::kAtan:
    case ir::OpKind::kCosh: return 16;
    case ir::OpKind::kRem: return 12;  // of integers, by a constant
    default: return ir::info(op).operands == ir::OperandTypes::kFloating ? kFunctionWork : 1;
  }
}

std::string why_too_long(const loops::Body& body, const loops::Kernel& kernel) {
  int work = 0;
  std::set<loops::RegisterId> constants;
  loops::for_each(kernel.body, [&](const auto& node) {
    if constexpr (requires { node.op, node.operands, node.result; }) {
      if (node.op == ir::OpKind::kConstant) constants.insert(node.result);
    }
  });
  for (const loops::Stmt& stmt : body) {
    const auto* compute = std::get_if<loops::Compute>(&stmt.node);
    if (std::holds_alternative<loops::Search>(stmt.node)) return "it searches at every element";
    if (compute == nullptr) continue;
    const ir::OpKind op = compute->op;
    const DType dtype = kernel.registers.at(compute->result);
    const bool by_constant = op == ir::OpKind::kRem && !is_float(dtype) && constants.count(compute->operands[1]) > 0;
    if (is_long(*compute, dtype) && !by_constant) {
      return cat(ir::info(op).name, " is too long to be repeated for every sum of a thread");
    }
    if (size_of(dtype) == 8) return "it computes in 64 bits";
    work += work_of(op, dtype);
  }
  if (work <= kMostWork) return "";
  return cat("its arithmetic, ", work, ", is too long to be repeated for every sum of a thread, ", kMostWork,
             " at most");
}

// Two serial loops, over the rows and the columns of the result; those of all its matrices, if it has several.
schedule::Schedule by_rows_and_columns(const Fusion& tail) {
  const ValueId result = tail.outputs.front();
  schedule::Scheduler scheduler(tail);
  if (tail.values[result].axes.size() == 3) scheduler.merge(result, 0);
  scheduler.transform_like(result);
  scheduler.inline_most();
  // What a column alone decides is computed at every place, not beforehand for all columns.
  for (auto op = tail.ops.rbegin(); op != tail.ops.rend(); ++op) {
    const bool many = ir::elements(tail.values[op->output]) > 1;
    const bool leaves = std::count(tail.outputs.begin(), tail.outputs.end(), op->output) > 0;
    if (!leaves && many && scheduler.schedule().domains[op->output].inline_at == 0) {
      scheduler.inline_at(op->output, 2, true);
    }
  }
  return scheduler.schedule();
}

// The tail as a loop program in which the product is an array of sums and the results are variables.
class Tail {
 public:
  // `ends`: the number of the input that says where the product's groups end; -1 for none. `folds`: the last output is
  // not stored. `keeps`: the product is.
  Tail(const Fusion& fusion, ValueId product, int ends, bool folds, bool keeps, const Target& target)
      : ends_(ends),
        outputs_(fusion.outputs.size()),
        folds_(folds),
        keeps_(keeps),
        kernel_(lower::lower(fusion, by_rows_and_columns(fusion), target, lower::Loops::kNest)) {
    const auto input = std::find(fusion.inputs.begin(), fusion.inputs.end(), product);
    product_ = static_cast<int>(input - fusion.inputs.begin());
    result_ = static_cast<int>(fusion.inputs.size());
    product_columns_ = fusion.values[product].axes.back().extent;
    result_columns_ = fusion.values[fusion.outputs.front()].axes.back().extent;
    rows_ = ir::elements(fusion.values[product]) / std::max<int64_t>(product_columns_, 1);
    matrices_ = fusion.values[product].axes.size() == 3;
    for (const std::vector<ValueId>& buffers : {fusion.inputs, fusion.outputs}) {
      for (const ValueId id : buffers) shapes_.push_back(ir::shape(fusion.values[id]));
    }
  }

  // Why the tail is none of single places; else it is ready.
  std::string rewrite() {
    add_single_loops();
    loops::For* rows = last_loop(kernel_.body);
    loops::For* columns = rows == nullptr ? nullptr : last_loop(rows->body);
    if (columns == nullptr || !kernel_.arrays.empty()) return "it is more than a loop over rows and one over columns";
    row_ = rows->variable;
    column_ = columns->variable;
    if (rows_ == 1) number_single_row(rows->body);
    if (!matrices_ && only_adds()) kernel_.wide_index = false;  // however many elements the arrays have
    functor_.group = loops::next_variable(kernel_);
    name_groups(rows->body);
    for (const loops::Body* body : {&kernel_.body, &rows->body}) {
      for (size_t i = 0; i + 1 < body->size(); ++i) {
        if (has_body((*body)[i])) {
          return outputs_ > 1 ? cat("it has ", outputs_, " results, which nothing computes together")
                              : "it has a loop beside that over rows and columns";
        }
        if (reads_product((*body)[i])) return "it reads the product at other places than its own";
      }
    }
    if (std::string why = why_too_long(columns->body, kernel_); !why.empty()) return why;
    const bool several = outputs_ > 1 || keeps_;
    // A few of float32's last bits go unseen in a result of 16.
    const bool loose = size_of(kernel_.buffers[result_].dtype) == 2;
    const int sums = 0, result = 1;
    functor_.folds = folds_;
    functor_.keeps = keeps_;
    functor_.results = several ? static_cast<int>(outputs_) - folds_ : 0;
    kernel_.arrays = {{"sums", DType::kF32, 1}, {"result", DType::kF32, functor_.results + 1}};
    results_.resize(functor_.results);
    for (loops::Stmt& stmt : columns->body) {
      if (has_body(stmt)) return "it has a loop beside that over rows and columns";
      if (const auto* load = std::get_if<loops::Load>(&stmt.node); load != nullptr && load->buffer == product_) {
        const auto at = place(load->offset);
        if (!is_plain(*load) || !at || at->row != product_columns_ || at->column != 1 || load->lane_stride != 0) {
          return "it reads the product at other places than its own";
        }
        stmt.node = loops::Get{load->result, sums, loops::constant(sum(at->constant))};
      } else if (const int tile = load == nullptr || size_of(kernel_.buffers[result_].dtype) != 2 ? -1 : tile_of(*load);
                 tile >= 0) {
        stmt.node = loops::Get{load->result, functor_.tiles[tile].array, loops::constant(0)};
      } else if (const auto* store = std::get_if<loops::Store>(&stmt.node)) {
        const int number = store->buffer - result_;
        const auto at = place(store->offset);
        const bool stored = number < functor_.results;
        if (!at || at->column != 1 || ((!several || !stored) && *at != Linear{result_columns_, 1, 0})) {
          return "it stores its result at other places than the product's";
        }
        if (stored) {
          if (at->constant < 0 || at->constant + result_columns_ > at->row) return "its results are not side by side";
          results_.at(number) = {at->row, at->constant};
        }
        stmt.node = loops::Set{result, loops::constant(number),
                               several ? unrounded(columns->body, store->value) : store->value};
      } else if (auto* compute = std::get_if<loops::Compute>(&stmt.node)) {
        compute->loose = compute->loose || loose;
      }
    }
    for (size_t i = 0; i < functor_.tiles.size(); ++i) {
      kernel_.arrays.push_back({i == 0 ? "tile" : cat("tile", i + 1), DType::kF32, 1});
    }
    kernel_.arrays[sums].size = static_cast<int64_t>(first_.size());
    if (first_.size() == 1 && result_columns_ != product_columns_) return "it leaves out columns of the product";
    if (first_.empty() || first_.size() > 2) {
      return cat("an element of it is made of ", first_.size(), " columns of the product, it takes one or two");
    }
    const bool halves = contains(first_, int64_t{0}) && contains(first_, result_columns_);
    if (keeps_ && (product_columns_ != result_columns_ * static_cast<int64_t>(first_.size()) ||
                   (first_.size() == 2 && !halves))) {
      return "it leaves out columns of the product, which is stored, too";
    }
    std::set<int> read;
    loops::for_each(kernel_.body, [&](const auto& node) {
      if constexpr (requires { node.buffer; }) read.insert(node.buffer);
    });
    for (const auto& tile : functor_.tiles) read.insert(tile.buffer);
    functor_.members.assign(read.begin(), read.end());
    functor_.sums = sums;
    functor_.result = result;
    functor_.first = first_;
    return "";
  }

  grouped::RowEpilogue epilogue(const Target& target) const {
    grouped::RowEpilogue made;
    made.text = codegen::generate_functor(kernel_, functor_, target);
    for (int member : functor_.members)
      made.members.push_back(cat("const jf::", name(kernel_.buffers[member].dtype), "*"));
    made.sums = static_cast<int>(first_.size());
    made.n = result_columns_;
    made.first = first_;
    made.out = kernel_.buffers[result_].dtype;
    for (const auto& tile : functor_.tiles) {
      const auto& members = functor_.members;
      const auto member = std::find(members.begin(), members.end(), tile.buffer) - members.begin();
      made.tiles.push_back({static_cast<int>(member), tile.columns, kernel_.buffers[tile.buffer].dtype});
    }
    made.results = results_;
    for (size_t i = 0; keeps_ && i < first_.size(); ++i) made.results.push_back({product_columns_, first_[i]});
    made.keeps = keeps_;
    made.folds = folds_;
    return made;
  }
  const std::vector<int64_t>& first() const { return first_; }
  std::vector<size_t> operands() const { return {functor_.members.begin(), functor_.members.end()}; }

 private:
  // Loops over one row and over one column, which lowering leaves out.
  void add_single_loops() {
    const auto enclose = [&](loops::Body& body) {
      loops::For once{loops::next_variable(kernel_), 1, loops::Parallel::kSerial, std::move(body)};
      body.clear();
      body.push_back({std::move(once)});
    };
    loops::For* rows = rows_ == 1 ? nullptr : last_loop(kernel_.body);
    if (result_columns_ == 1 && (rows_ == 1 || rows != nullptr)) enclose(rows == nullptr ? kernel_.body : rows->body);
    if (rows_ == 1) enclose(kernel_.body);
  }
  // The only row as one of several: they share a text.
  void number_single_row(loops::Body& body) const {
    const auto add_row = [&](IndexPtr& index, int64_t pitch) {
      index = loops::add(loops::mul(loops::variable(row_), loops::constant(pitch)), index);
    };
    loops::for_each(body, [&](auto& node) {
      using T = std::decay_t<decltype(node)>;
      if constexpr (std::is_same_v<T, loops::Load> || std::is_same_v<T, loops::Store>) {
        const std::vector<int64_t>& shape = shapes_.at(node.buffer);
        if constexpr (requires { node.steps; }) {
          if (!node.steps.empty()) return;  // of a table of one row
        }
        if (!shape.empty() && shape[0] == 1) add_row(node.offset, product(shape));
      } else if constexpr (std::is_same_v<T, loops::FromIndex>) {
        if (loops::is_zero(node.base)) add_row(node.base, 1);
      }
    });
  }
  // Whether indices are sums of a row's and a column's, of which each fits 32 bits; what divides or compares them may
  // need more.
  bool only_adds() const {
    bool adds = true;
    const auto check = [&](const IndexPtr& index) { adds = adds && linear(index, row_, column_); };
    loops::for_each(kernel_.body, [&](const auto& node) {
      if constexpr (requires { node.offset; }) check(node.offset);
      if constexpr (requires { node.base; }) check(node.base);
      if constexpr (requires { node.below; }) adds = false;
      if constexpr (requires { node.when; }) adds = adds && node.when.empty();
      if constexpr (requires { node.within, node.or_first; }) {
        adds = adds && node.within.empty() && node.or_first.empty();
      }
    });
    return adds;
  }
  // An element's place in an array of so many columns. One column stands anywhere.
  std::optional<Linear> place(const IndexPtr& index) const {
    auto at = linear(index, row_, column_);
    if (at && result_columns_ == 1) at->column = 1;
    return at;
  }
  // What searches for the group of a row has it given.
  void name_groups(loops::Body& body) const {
    std::set<loops::RegisterId> rows;
    for (loops::Stmt& stmt : body) {
      if (const auto* from = std::get_if<loops::FromIndex>(&stmt.node)) {
        if (linear(from->base, row_, column_) == Linear{1, 0, 0}) rows.insert(from->result);
      }
      const auto* search = std::get_if<loops::Search>(&stmt.node);
      if (search == nullptr || search->buffer != ends_ || search->left || rows.count(search->number) == 0) continue;
      stmt.node = loops::FromIndex{search->result, loops::variable(functor_.group), 0};
    }
  }
  static loops::For* last_loop(loops::Body& body) {
    auto* loop = body.empty() ? nullptr : std::get_if<loops::For>(&body.back().node);
    const bool plain =
        loop != nullptr && loop->parallel == loops::Parallel::kSerial && !loop->reverse && loop->runs.empty();
    return plain ? loop : nullptr;
  }
  static bool has_body(const loops::Stmt& stmt) {
    return std::visit([](const auto& node) { return requires { node.body; }; }, stmt.node);
  }
  bool reads_product(const loops::Stmt& stmt) const {
    return std::visit(
        [&](const auto& node) {
          if constexpr (requires { node.buffer; }) return node.buffer == product_;
          return false;
        },
        stmt.node);
  }
  // What a register was rounded from, since what is stored is rounded anyway.
  static loops::RegisterId unrounded(const loops::Body& body, loops::RegisterId value) {
    for (const loops::Stmt& stmt : body) {
      const auto* compute = std::get_if<loops::Compute>(&stmt.node);
      if (compute == nullptr || compute->result != value) continue;
      const bool rounds = compute->op == ir::OpKind::kConvert && compute->from == DType::kF32;
      return rounds ? compute->operands.front() : value;
    }
    return value;
  }
  // Which of the arrays of 16-bit floats a load reads at the places of the result; -1 for none, or one too many.
  int tile_of(const loops::Load& load) {
    const auto& shape = shapes_.at(load.buffer);
    const auto at = place(load.offset);
    const DType dtype = kernel_.buffers[load.buffer].dtype;
    if (matrices_ || !is_plain(load) || !at || load.lane_stride != 0 || shape.size() != 2 || shape[0] != rows_ ||
        at->row != shape[1] || at->column != 1 || at->constant < 0 || at->constant + result_columns_ > shape[1] ||
        (dtype != DType::kBF16 && dtype != DType::kF16) || shape[1] % 8 != 0) {
      return -1;
    }
    auto& tiles = functor_.tiles;
    const size_t most = outputs_ > 1 || keeps_ ? 2 : 1;
    const auto found = std::find_if(tiles.begin(), tiles.end(), [&](const auto& tile) {
      return tile.buffer == load.buffer && tile.first == at->constant;
    });
    if (found != tiles.end()) return static_cast<int>(found - tiles.begin());
    if (tiles.size() == most || (!tiles.empty() && kernel_.buffers[tiles.front().buffer].dtype != dtype)) return -1;
    constexpr int kOthers = 2;  // the arrays of sums and results
    const int number = static_cast<int>(tiles.size());
    tiles.push_back({kOthers + number, load.buffer, shape[1], at->constant});
    return number;
  }
  int64_t sum(int64_t column) {
    const auto found = std::find(first_.begin(), first_.end(), column);
    if (found != first_.end()) return found - first_.begin();
    first_.push_back(column);
    return static_cast<int64_t>(first_.size()) - 1;
  }

  int ends_;
  size_t outputs_;
  bool folds_, keeps_;
  std::vector<grouped::RowEpilogue::Result> results_;
  loops::Kernel kernel_;
  int product_, result_, row_ = 0, column_ = 0;
  int64_t product_columns_, result_columns_, rows_;
  bool matrices_;
  std::vector<std::vector<int64_t>> shapes_;  // by buffer
  std::vector<int64_t> first_;                // by sum: the product's column in column 0
  codegen::Functor functor_;
};

// Fills in the epilogue, or says why there is none.
// `keeps`: the product is stored, too.
std::string fill(const plan::Plan& plan, const std::vector<size_t>& reading, bool keeps, const Target& target,
                 Epilogue& epilogue) {
  const plan::Segment& product = plan.segments[epilogue.product];
  const bool on_cpu = target.platform == Platform::kCpu;
  const grouped::Problem problem = plan::grouped_problem(product.fusion);
  if (on_cpu && (problem.mode != grouped::Mode::kRows || problem.scales != grouped::Scales::kNone)) {
    return "it is no plain product of rows";
  }
  if (std::string why = on_cpu ? "" : grouped::why_no_epilogue(problem, nullptr, target); !why.empty()) return why;
  plan::Segment tail = plan.segments[reading.front()];
  epilogue.tails = reading;
  const bool of_rows = problem.mode == grouped::Mode::kRows;
  if (keeps && (on_cpu || !of_rows)) return "the product is stored, too";
  if (reading.size() > 1 || tail.outputs.size() > 1) {
    if (on_cpu || !of_rows) return cat("it has ", std::max(reading.size(), tail.outputs.size()), " results");
    JoinedTails joined;
    if (std::string why = join(plan, reading, problem, joined); !why.empty()) return why;
    tail = joined.segment;
    epilogue.tails = joined.parts;
    epilogue.sum = joined.sum;
    if (keeps && joined.sum) return "the product is stored where sums of its columns would be";
  }
  const size_t stored = tail.outputs.size() - (epilogue.sum ? 1 : 0);
  for (size_t i = 0; i < stored; ++i) {
    const ir::Value& value = tail.fusion.values[tail.fusion.outputs[i]];
    const bool is_float = value.dtype == DType::kF32 || value.dtype == DType::kBF16 || value.dtype == DType::kF16;
    if (!is_float) return cat("its result is ", name(value.dtype));
    const auto is_same = [](const ir::Axis& a, const ir::Axis& b) { return a.extent == b.extent; };
    const auto &axes = value.axes, &places = plan.fusion.values[product.outputs.front()].axes;
    if (axes.size() != places.size() || !std::equal(axes.begin(), axes.end() - 1, places.begin(), is_same)) {
      return "its result has other rows than the product";
    }
    const bool alike = value.dtype == problem.out && size_of(problem.out) == 2;  // the sums are rounded to it
    if ((tail.outputs.size() > 1 || keeps) && !alike) return "the product and its results are not all bf16, or all f16";
  }
  epilogue.results.assign(tail.outputs.begin(), tail.outputs.begin() + static_cast<std::ptrdiff_t>(stored));
  const auto input = std::find(tail.inputs.begin(), tail.inputs.end(), product.outputs.front());
  try {
    const ValueId extents = product.inputs[2];
    const auto ends = std::find_if(tail.inputs.begin(), tail.inputs.end(), [&](ValueId id) {
      return of_rows && !problem.has_starts && is_group_ends(plan.fusion, id, extents, problem.m);
    });
    const int ends_input = ends == tail.inputs.end() ? -1 : static_cast<int>(ends - tail.inputs.begin());
    const ValueId read = tail.fusion.inputs[input - tail.inputs.begin()];
    Tail text(tail.fusion, read, ends_input, epilogue.sum.has_value(), keeps, target);
    if (std::string why = text.rewrite(); !why.empty()) return why;
    if (on_cpu) {
      epilogue.tile = tile_tail(tail.fusion, read, text.first(), target);
      epilogue.reads = tail.inputs;
      return "";
    }
    epilogue.functor = text.epilogue(target);
    for (size_t operand : text.operands()) epilogue.reads.push_back(tail.inputs[operand]);
    if (keeps) epilogue.results.insert(epilogue.results.end(), text.first().size(), product.outputs.front());
  } catch (const UserError& error) {
    return cat("it is none of rows and columns: ", error.what());
  }
  return grouped::why_no_epilogue(problem, &epilogue.functor, target);
}

std::set<size_t> unread(const plan::Plan& plan, const std::vector<Epilogue>& epilogues) {
  std::set<ValueId> read(plan.fusion.outputs.begin(), plan.fusion.outputs.end());
  for (const ir::Op& op : plan.fusion.ops) {
    if (op.kind == ir::OpKind::kConcat) read.insert(op.inputs.begin(), op.inputs.end());
  }
  std::set<size_t> found;
  for (size_t i = plan.segments.size(); i-- > 0;) {
    const plan::Segment& segment = plan.segments[i];
    const auto ends =
        std::find_if(epilogues.begin(), epilogues.end(), [&](const Epilogue& e) { return contains(e.tails, i); });
    const auto is_read = [&](ValueId id) { return read.count(id) > 0; };
    if (ends != epilogues.end()) {
      read.insert(ends->reads.begin(), ends->reads.end());
      read.insert(plan.segments[ends->product].outputs.front());
    } else if (std::any_of(segment.outputs.begin(), segment.outputs.end(), is_read) ||
               segment.strategy == plan::Strategy::kNested) {  // whose workspace every target has
      read.insert(segment.inputs.begin(), segment.inputs.end());
    } else {
      found.insert(i);
    }
  }
  return found;
}

}  // namespace

Epilogues find_epilogues(const plan::Plan& plan, const Target& target) {
  Epilogues found;
  std::set<size_t> taken;  // a segment that reads two products follows one of them
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const plan::Segment& segment = plan.segments[i];
    if (segment.strategy != plan::Strategy::kGrouped) continue;
    const ValueId product = segment.outputs.front();
    const std::vector<size_t> reading = readers(plan, product);
    const auto is_pointwise = [&](size_t j) { return plan.segments[j].strategy == plan::Strategy::kPointwise; };
    if (std::none_of(reading.begin(), reading.end(), is_pointwise)) continue;
    Epilogue epilogue{i, {}, {}, {}, {}, {}};
    std::string why = fill(plan, reading, contains(plan.fusion.outputs, product), target, epilogue);
    if (!why.empty() && reading.size() > 1 && is_pointwise(reading[0])) {
      // The first alone; the others read what is stored.
      Epilogue alone{i, {}, {}, {}, {}, {}};
      const bool joins = fill(plan, {reading[0]}, true, target, alone).empty();
      if (joins && std::all_of(reading.begin() + 1, reading.end(), [&](size_t j) { return j > alone.tails.back(); })) {
        epilogue = std::move(alone);
        why.clear();
      }
    }
    for (const size_t tail : epilogue.tails) {
      if (why.empty() && taken.count(tail) > 0) why = "it is that of another product";
    }
    if (why.empty()) {
      taken.insert(epilogue.tails.begin(), epilogue.tails.end());
      found.all.push_back(std::move(epilogue));
    } else {
      found.why_not[i] = cat("what follows in segment ", reading.front(), " is a kernel of its own: ", why);
    }
  }
  if (!found.all.empty()) found.unread = unread(plan, found.all);
  return found;
}

}  // namespace jf::host
