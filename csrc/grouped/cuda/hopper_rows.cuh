// out[r, :] = lhs[r, :] * rhs[group of r] on the warpgroup products of sm_90a.
//
//   lhs [m, k], rhs [groups, k, n] or [groups, n, k] (K-major), 16-bit; out [m, n]; k and n multiples of 8
//   tile      kColumns columns by up to kRows rows of one group, kDepth contraction indices a stage. The product is
//             computed transposed: rhs is the left operand, so that a tile's rows are the n of the instruction and the
//             last tile of a group costs what its rows cost, in steps of kStep.
//   block     384 threads: one warpgroup that copies and schedules, two that multiply 64 columns each
//   shared    kSharedBytes, aligned to 1024
//   grid      kCluster * any, about one block for each multiprocessor
//   maps      lhs: 2D {k, m},          box {64, kBoxRows},                 128-byte swizzle
//             rhs: 3D {n, k, groups},  box {64, 64, 1}                     or K-major {k, n, groups}, box {64, 128, 1}
//             out: 2D {n, m},          box {128 / sizeof(Out), kChunkRows}
//   next_unit zero when the kernel starts: blocks take tiles as they come; or null: each block has its share
#pragma once
