// Grouped matrix products on the CPU: hand-written kernels, compiled ahead of time for each instruction set, chosen by
// Target.isa at run time. Float inputs (f32, f16, bf16) accumulate in f32, f64 in f64, integers modulo 2^64.
//
// Every output element is one chain of multiply-adds along k, in order: the result does not depend on the number of
// workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/target.h"
#include "grouped/problem.h"

namespace jf::grouped {

// A parallel loop on the caller's threads: run(tasks, fn) calls fn(task, worker) once for each task in [0, tasks), and
// returns when all are done. worker is in [0, workers); no two calls that run at the same time share it.
struct ParallelFor {
  int workers = 1;
  std::function<void(int64_t tasks, const std::function<void(int64_t task, int worker)>& fn)> run;
};

struct CpuArguments {
  const void* lhs = nullptr;
  const void* rhs = nullptr;
  const int32_t* extents = nullptr;
  const int32_t* starts = nullptr;  // null unless the problem has starts
  void* out = nullptr;
};

// What becomes of a product of kRows. It is called for pieces of rows of the result, each once, by any worker.
constexpr int64_t kTailColumns = 256;  // of a piece; the last one of a row may be shorter
struct CpuTail {
  int64_t n = 0;               // columns of the result
  std::vector<int64_t> first;  // the product's columns that an element of column 0 is made of
  // `product`: where the product's element (0, 0) would be; those that the piece is made of are there.
  std::function<void(int64_t row, int64_t piece, const void* product)> apply;
};

// Bytes of scratch memory that run_cpu needs. Throws UserError for dtypes that no kernel multiplies.
int64_t cpu_workspace_bytes(const Problem& problem, const Target& target, int workers, const CpuTail* tail = nullptr);

// Computes the product. The workspace starts at a multiple of 64 bytes; nothing else is allocated.
// A group that starts before the end of an earlier one loses the rows they share. With a tail `out` is not used.
void run_cpu(const Problem& problem, const Target& target, const CpuArguments& arguments,
             std::span<std::byte> workspace, const ParallelFor& parallel_for, const CpuTail* tail = nullptr);

}  // namespace jf::grouped
