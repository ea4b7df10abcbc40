// The only way to make a Fusion. Each call checks its operands, infers the result, folds what is trivial and returns
// the existing value where an equal op was built before.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ir/fusion.h"

namespace jf::ir {

class Builder {
 public:
  // What slices and paddings read is computed for each of them again: of slices of slices there can be too many.
  static constexpr size_t kMaxOps = 1 << 16;

  // `name` must be an identifier; it names the kernels. An op beyond `max_ops` is refused.
  explicit Builder(std::string name, size_t max_ops = kMaxOps);

  ValueId input(const std::string& name, DType dtype, std::span<const int64_t> shape);
  ValueId constant(DType dtype, Constant value);
  ValueId iota(DType dtype, std::span<const int64_t> shape, int64_t dim);
  // Any pointwise op whose result dtype follows from its operands.
  ValueId pointwise(OpKind kind, std::span<const ValueId> inputs, const std::string& label = "");
  ValueId convert(ValueId value, DType dtype, const std::string& label = "");
  ValueId bitcast(ValueId value, DType dtype, const std::string& label = "");
  ValueId broadcast(ValueId value, std::span<const int64_t> shape, std::span<const int64_t> dims);
  ValueId transpose(ValueId value, std::span<const int64_t> permutation);
  ValueId squeeze(ValueId value, std::span<const int64_t> dims);
  // The elements in their order under another shape.
  ValueId reshape(ValueId value, std::span<const int64_t> shape);
  // Operands of equal dtypes side by side along an axis. What reads the result computes the operand that it needs, and
  // what is computed from a few columns side by side is computed from each of them; it is in memory only as an output.
  ValueId concat(std::span<const ValueId> values, int64_t axis);
  // `count` elements of each axis, from starts on, strides apart. Slices what a pointwise value is computed from, so
  // that only those elements are computed.
  ValueId slice(ValueId value, const ir::Slice& where, std::span<const int64_t> counts);
  // `low` elements of `padding`, a scalar, before each axis and `high` behind it; fewer than none cut elements off.
  // What a pointwise value is computed from is padded, so that no kernel stores the value by itself.
  ValueId pad(ValueId value, std::span<const int64_t> low, std::span<const int64_t> high, ValueId padding);
  // Elements of a value at computed places. Axis axes[k] of it is read at indices[k], integers of the result's `shape`,
  // brought into the bounds; dims[a] is the result axis along which its axis a goes on from there, -1 for none. A
  // gather: rows x[i] have axes {0} and dims {-1, 1}. Element by element, a value is computed from what is taken.
  ValueId take(ValueId value, std::span<const ValueId> indices, std::span<const int64_t> axes,
               std::span<const int64_t> dims, std::span<const int64_t> shape);
  // The same by the op's own attribute; `inputs` are its operands.
  ValueId take(std::vector<ValueId> inputs, Take where, const std::vector<int64_t>& shape);
  // How many elements of a sorted table are not above each number, or with `left` below it; see ir::Search.
  ValueId search(ValueId table, ValueId numbers, ir::Search how, const std::string& label = "");
  // Folds the axes `dims` (increasing); see ir::Reduce for `parts` and `in_turn`.
  ValueId reduce(OpKind kind, ValueId value, std::span<const int64_t> dims, int64_t parts = 0,
                 const std::string& label = "", bool in_turn = false);
  // Folds the elements up to each one, or from each one on, along an axis.
  // A linear recurrence has factors, too.
  ValueId scan(OpKind kind, ValueId value, int64_t axis, bool reverse, const std::string& label = "",
               ValueId factors = -1);
  // The rows of each component along `axis`, at most `most` of them, from starts[g] on: the axis becomes a component
  // and a ragged axis, also of a value that has another one. Extents with more axes stand for those before `axis`, too.
  // Element by element, and along other axes, what `value` is computed from is partitioned. A start is brought into the
  // axis; a row behind its end is the last one.
  ValueId partition(ValueId value, ValueId starts, ValueId extents, int64_t axis, int64_t most);
  // Says that `nested` is this partition of `value`: what is computed from it reads no array of rows, such as of
  // per-component values that were taken for each row.
  void note_partition(ValueId value, ValueId starts, ValueId extents, int64_t axis, int64_t most, ValueId nested);
  // The same for each element of a ragged axis: axis `axis`, of extent 1, becomes one; see ir::Nest.
  ValueId stretch(ValueId value, ValueId extents, const Nest& nest);
  // A dense value, whose axis i is axis dims[i] of `like`, of equal extent or 1, with the axes of nested `like`. Also
  // one with some of the ragged axes of `like`.
  ValueId broadcast_like(ValueId value, ValueId like, std::span<const int64_t> dims);
  // The rows of all components in one axis of `rows` elements, those of g from starts[g] on; zeros elsewhere. Where
  // components overlap, the row of one of them. The last `components` axes of the extents are the component.
  ValueId combine(ValueId value, ValueId starts, int64_t rows, int64_t components = 1);
  // The same of a value with several ragged axes: starts and rows for each of them, in their order.
  ValueId combine(ValueId value, std::span<const ValueId> starts, std::span<const int64_t> rows);
  // A partition whose component has any number of axes; see ir::Nest.
  ValueId partition_of(ValueId value, ValueId starts, ValueId extents, const Nest& nest);
  // The rows of one component, as many as any can have: zeros behind its last one. Its axis goes.
  ValueId select(ValueId value, int64_t component);
  // What other groupings of rows make, and where its components begin and end.
  struct Nested {
    ValueId value, starts, extents;
  };
  // Runs of `factor` rows get an axis of their own behind the ragged one, which counts them; the last one of a
  // component is filled up with zeros. Rows move, so that components begin at multiples of `factor`.
  Nested split(ValueId value, int64_t axis, int64_t factor);
  // (component, ragged): all rows in one array, one component after another. (ragged, dense axis behind it, of size k):
  // k times as many rows. (last outer axis of the extents, ragged): components of all its indices together, extents
  // are summed. Rows move.
  Nested merge(ValueId value, int64_t first, int64_t second);
  // `others`: starts, which are optional, then the scales of lhs and rhs if the attribute says that there are any.
  ValueId grouped_matmul(ValueId lhs, ValueId rhs, ValueId extents, std::span<const ValueId> others, Grouped attribute,
                         DType dtype, const std::string& label = "");

  void output(ValueId value);
  // What a value is called in the fusion, if it has no such name yet and nothing else has this one; others are
  // numbered. The parts of a concat get its name and their number.
  void set_name(ValueId value, const std::string& name);
  const Fusion& fusion() const { return fusion_; }
  // Those of `values` of which so many slices and paddings compute them again for what is wanted that storing them
  // takes less time.
  std::vector<ValueId> repeated(std::span<const ValueId> values, std::span<const ValueId> wanted) const;
  // Makes later slices and paddings of the value read it from memory.
  void store(ValueId value);
  bool is_full() const { return fusion_.ops.size() >= max_ops_; }
  // Drops ops that reach no output and verifies. The builder is finished then: every other call throws.
  Fusion finish();

  // The same, but that concats of few parts whose elements memory would see as short pieces are choices between them,
  // which are stored in whole lines.
  static Fusion with_chosen_pieces(const Fusion& fusion);
  // The same, but that folds of few elements, `written_out` by value, are ops on one element after the other.
  static Fusion with_folds_written_out(const Fusion& fusion, const std::vector<bool>& written_out);
  // The same, but that u4 are bytes, of half the last axis, computed from both of their codes.
  static Fusion with_bytes_of_pairs(const Fusion& fusion);

 private:
  // What was built; nothing is left.
  Fusion take_fusion();
  const Op* definition(ValueId value) const;
  // The same, but nothing where slices and paddings go no further.
  const Op* inner_definition(ValueId value) const;
  // The part is a slice or a padding of the whole, which may be a part of another value.
  void note_origin(ValueId part, ValueId whole, const ir::Slice& where);
  // The values that a concat was made of, where the value is one.
  std::vector<ValueId> parts(ValueId value) const;
  // The operand's columns where it is a concat of a few of them along `axis`, or the same along it; empty for others.
  std::vector<ValueId> columns(ValueId value, int64_t axis, size_t count);
  // The op on each column of its operands, where they are such; -1 elsewhere.
  ValueId by_columns(OpKind kind, const std::vector<ValueId>& inputs, DType dtype, const std::string& label);
  ValueId slice_of_concat(const Op& op, const ir::Slice& where, const std::vector<int64_t>& counts);
  ValueId taken(std::vector<ValueId> inputs, Take where, const std::vector<int64_t>& shape);
  ValueId taken_once(const Op& op, std::vector<ValueId> inputs, const Take& where, const std::vector<int64_t>& shape);
  ValueId taken_at_once(const Op& op, const std::vector<ValueId>& inputs, const Take& where,
                        const std::vector<int64_t>& shape);
  ValueId part_once(ValueId value, const Take& where, const std::vector<int64_t>& shape);
  bool is_elementwise(ValueId value, bool or_repeated) const;
  static Take part_of(Take take, const ir::Slice& where);
  ValueId slice_of_take(const Op& op, const ir::Slice& where, const std::vector<int64_t>& counts);
  ValueId slice_of_search(const Op& op, const ir::Slice& where, const std::vector<int64_t>& counts);
  ValueId spread_search(const Op& op, const ir::Pad& where, const std::vector<int64_t>& shape);
  ValueId slice_of_view(ValueId value, const ir::Slice& where, const std::vector<int64_t>& counts);
  // A value of `shape` that has the elements which `where` says, and anything elsewhere.
  ValueId spread(ValueId value, const ir::Pad& where, const std::vector<int64_t>& shape);
  // The same of one element along an axis, which is everywhere along it.
  ValueId spread_everywhere(ValueId value, const ir::Pad& where, int64_t axis, const std::vector<int64_t>& shape);
  ValueId spread_anew(ValueId value, const ir::Pad& where, const std::vector<int64_t>& shape);
  ValueId chosen(ValueId inside, ValueId outside, const ir::Pad& where);
  void note_part(ValueId padded, ValueId value, const ir::Pad& where);
  // The sum where it is one of parts that together fill their axis with values padded by zeros; -1 where not.
  ValueId sum_of_parts(std::span<const ValueId> inputs);
  void join_read_concats();
  // Adds all of another fusion that is live. What reads a concat reads a choice between its operands; those that are
  // `chosen` are such choices wherever they are read or stored, folds that are `written_out` ops on their elements.
  // Results keep their `names`.
  void rebuild(const Fusion& old, const std::map<ValueId, std::string>& names, const std::vector<bool>& live,
               const std::vector<bool>& chosen, const std::vector<bool>& written_out);
  // Of its results.
  static std::map<ValueId, std::string> names_of(const Fusion& fusion);
  ValueId fold_written_out(const Op& op, ValueId operand, DType dtype);
  ValueId bytes_of_pairs(ValueId codes);
  ValueId spread_concat(const Op& op, const ir::Pad& where, const std::vector<int64_t>& shape);
  ValueId spread_pad(const Op& op, const ir::Pad& where, const std::vector<int64_t>& shape);
  // The index along an axis is below `bound`.
  ValueId is_below(const std::vector<int64_t>& shape, int64_t axis, int64_t bound);
  // first + stride * the index along an axis, in as many bits as that takes.
  ValueId counting(const std::vector<int64_t>& shape, int64_t axis, int64_t first, int64_t stride);
  ValueId full(DType dtype, const std::vector<int64_t>& shape, Constant number);
  ValueId sliced(ValueId value, const ir::Slice& where, const std::vector<int64_t>& counts);
  std::vector<ValueId> all_sliced(const std::vector<ValueId>& values, const ir::Slice& where,
                                  const std::vector<int64_t>& counts);
  ValueId slice_of_nested(const Op& op, const ir::Slice& where, const std::vector<int64_t>& counts);
  ValueId slice_of_dense(const Op& op, const ir::Slice& where, const std::vector<int64_t>& counts);
  ValueId partition_like(const Op& op, ValueId operand, const Nest& nest);
  std::vector<int64_t> rows_of(const Op& partition) const;
  ValueId partitioned(ValueId value, ValueId starts, ValueId extents, int64_t axis, int64_t most);
  ValueId partition_again(const Op& op, ValueId starts, ValueId extents, int64_t axis, int64_t most);
  bool is_true(ValueId value) const;  // everywhere
  ValueId add_value(DType dtype, std::vector<Axis> axes);
  void push(Op op);
  ValueId add_op(OpKind kind, std::vector<ValueId> inputs, Attribute attribute, DType dtype, std::vector<Axis> axes,
                 const std::string& label);
  const Value& value(ValueId id, const char* function) const;
  void require_unfinished(const char* function) const;
  ValueId slice_of_fold(const Op& op, const ir::Slice& where, const std::vector<int64_t>& counts);
  // A dense value whose axes are `dims` of the shape `to`, nested as `like`.
  ValueId nested_full(ValueId value, const std::vector<int64_t>& to, const std::vector<int64_t>& dims,
                      const Value& like);
  ValueId is_below_nested(const std::vector<int64_t>& to, int64_t axis, int64_t bound, const Value& like);
  // A nested value's ragged axis and its extents, brought into bounds; `rows`: room for those of all components.
  struct Groups {
    int64_t axis, most;
    std::vector<int64_t> shape;
    ValueId extents;
    int64_t rows;
    struct Beside {
      int64_t axis, most, rows;
      ValueId extents, starts;
    };
    std::vector<Beside> beside = {};  // other ragged axes, by axis; their rows, one component after another
    int64_t first() const;            // where its rows are among the axes of all combined
  };
  Groups groups_of(ValueId value, const char* call, int64_t axis);
  int64_t rows_behind(ValueId value, int64_t axis);
  ValueId combined(ValueId value, const Groups& groups, ValueId starts, int64_t rows);
  ValueId partitioned_beside(ValueId value, const Groups& groups, int64_t more);
  ValueId times(ValueId value, int64_t factor);
  ValueId one_after_another(ValueId extents, int64_t most, int64_t rows);
  ValueId that_fit(ValueId extents, ValueId starts, int64_t rows);
  void check_dense(ValueId value, int64_t axis, const char* op, const char* does, const char* instead) const;
  ValueId spread_nested(const Op& op, const ir::Pad& where, const std::vector<int64_t>& to);
  ValueId spread_fold(const Op& op, const ir::Pad& where, const std::vector<int64_t>& to);
  ValueId pad_nested(ValueId value, const ir::Pad& where, const std::vector<int64_t>& to, ValueId padding);
  ValueId concat_nested(std::span<const ValueId> values, int64_t axis, const std::vector<int64_t>& whole);
  ValueId reshape_nested(ValueId value, const std::vector<int64_t>& to);
  ValueId reshaped_nested(ValueId value, const std::vector<int64_t>& to);
  ValueId reshaped_anew(ValueId value, const std::vector<int64_t>& to);
  // While it lives, slices, paddings, takes, partitions and reshapes go one op deeper towards the inputs; beyond
  // kMaxDepth the value is read, or where nested values cannot be, the call fails.
  class Deeper {
   public:
    explicit Deeper(Builder& builder) : builder_(builder) { ++builder_.depth_; }
    ~Deeper() { --builder_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Builder& builder_;
  };
  bool too_deep() const { return depth_ > kMaxDepth; }

  static constexpr int kMaxDepth = 1000;  // of the stack
  int depth_ = 0;
  size_t max_ops_;
  bool finished_ = false;
  bool bytes_of_pairs_ = false;  // instead of u4
  Fusion fusion_;
  std::map<ValueId, std::string> names_;  // of results that have one
  std::set<std::string> taken_;           // by those
  std::vector<int64_t> defined_by_;       // by value: its op, -1 for inputs
  std::map<std::string, ValueId> known_;  // equal ops by their text key
  std::map<std::pair<ValueId, std::vector<int64_t>>, ValueId> slices_, spreads_, reshapes_;
  struct Origin {
    ValueId whole;  // no part itself
    bool has_steps = false;
  };
  std::map<ValueId, Origin> origin_;  // by part
  std::set<ValueId> stored_;
  // A value is zero along `axis` but for these parts of it, in their order.
  struct Parts {
    int64_t axis;
    std::map<int64_t, ValueId> from;  // by first index
  };
  std::map<ValueId, Parts> padded_;
  std::map<std::vector<int64_t>, ValueId> takes_;       // by operands, places and shape
  std::map<std::vector<int64_t>, ValueId> partitions_;  // by operands, axis and most
};

}  // namespace jf::ir
