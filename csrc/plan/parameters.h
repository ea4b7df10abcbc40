// The parameters of the strategies by name: what a strategy decides with, for people and for measurements to change.
#pragma once

#include "base/parameters.h"
#include "base/target.h"
#include "ir/fusion.h"
#include "plan/pointwise.h"
#include "plan/ragged.h"
#include "plan/reduction.h"
#include "plan/transpose_cuda.h"

namespace jf::plan {

// The fields of CpuPointwise, CudaReduction, ... by their names.
Parameters fields_of(const PointwiseParameters& parameters);
Parameters fields_of(const ReductionParameters& parameters);
Parameters fields_of(const CudaTranspose& parameters);
Parameters fields_of(const NestedParameters& parameters);

// What is proposed for a segment, with other values of the fields that are given. Throws UserError for a field that the
// strategy does not have or that is out of its range.
PointwiseParameters edited(const PointwiseParameters& proposed, const Parameters& given, const Target& target);
ReductionParameters edited(const ReductionParameters& proposed, const Parameters& given, const ir::Fusion& segment,
                           const Target& target);
CudaTranspose edited(const CudaTranspose& proposed, const Parameters& given, const Target& target);
NestedParameters edited(const NestedParameters& proposed, const Parameters& given, const Target& target);

}  // namespace jf::plan
