// jax_fuser._core's classes behind jax_fuser.ir.
#pragma once

#include <nanobind/nanobind.h>

namespace jf::python {

void bind_schedules(nanobind::module_& m);

}  // namespace jf::python
