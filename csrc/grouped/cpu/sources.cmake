# Each instruction set is one file with its own flags; the rest of the folder runs everywhere. CXX_EXTENSIONS is off, and
# with it the fusing of a * b + c, which the kernels are made of.
set(grouped_cpu_kernel_options -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
set(grouped_cpu_avx2 -mavx2 -mfma -mf16c)
set(grouped_cpu_avx512 ${grouped_cpu_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)

set_source_files_properties(csrc/grouped/cpu/kernels_portable.cpp
  PROPERTIES COMPILE_OPTIONS "${grouped_cpu_kernel_options}")
set_source_files_properties(csrc/grouped/cpu/kernels_avx2.cpp
  PROPERTIES COMPILE_OPTIONS "${grouped_cpu_kernel_options};${grouped_cpu_avx2}")
set_source_files_properties(csrc/grouped/cpu/kernels_avx512.cpp
  PROPERTIES COMPILE_OPTIONS "${grouped_cpu_kernel_options};${grouped_cpu_avx512}")
set_source_files_properties(csrc/grouped/cpu/kernels_avx512bf16.cpp
  PROPERTIES COMPILE_OPTIONS "${grouped_cpu_kernel_options};${grouped_cpu_avx512};-mavx512bf16")
set_source_files_properties(csrc/grouped/cpu/kernels_amx.cpp
  PROPERTIES COMPILE_OPTIONS "${grouped_cpu_kernel_options};${grouped_cpu_avx512};-mavx512bf16;-mamx-tile;-mamx-bf16")
