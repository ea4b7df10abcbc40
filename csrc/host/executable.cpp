#include "host/executable.h"

#include <algorithm>
#include <map>

#include "base/env.h"
#include "base/error.h"
#include "base/integers.h"
#include "grouped/cpu/grouped_cpu.h"
#include "host/counters.h"
#include "host/exported.h"
#include "host/report.h"
#include "host/request.h"
#include "host/scratch.h"
#include "runtime/background.h"
#include "runtime/compile.h"
#include "runtime/disassemble.h"
#include "runtime/driver.h"
#include "runtime/log.h"
#include "runtime/output_pages.h"

namespace jf::host {
namespace {

// CUDA passes at most 4 KiB of kernel parameters.
constexpr size_t kMaxArguments = 512;
// Each takes the room of 16 pointers.
constexpr size_t kMaxMaps = 16;
// Numbers behind them that a step's own launch adds.
constexpr size_t kMaxScalars = 8;

// The steps' buffer references as addresses, in a fixed array: running allocates nothing.
struct Addresses {
  std::array<void*, kMaxArguments> data;

  Addresses(const std::vector<BufferRef>& refs, const CallBuffers& buffers) {
    for (size_t i = 0; i < refs.size(); ++i) {
      switch (refs[i].kind) {
        case BufferKind::kInput: data[i] = buffers.inputs[refs[i].index]; break;
        case BufferKind::kOutput: data[i] = buffers.outputs[refs[i].index]; break;
        case BufferKind::kWorkspace: data[i] = static_cast<std::byte*>(buffers.workspace) + refs[i].index; break;
      }
    }
  }
};

// `tail`: the entry of the step's tail, with its arguments behind the product's.
void run_grouped(const GroupedStep& step, const Target& target, void* const* buffers, HostEntry tail,
                 const std::vector<int>& parameters, bool past_caches, const runtime::Pool& pool) {
  const grouped::Problem& p = step.problem;
  grouped::CpuArguments arguments;
  arguments.lhs = buffers[0];
  arguments.rhs = buffers[1];
  arguments.extents = static_cast<const int32_t*>(buffers[2]);
  arguments.starts = p.has_starts ? static_cast<const int32_t*>(buffers[3]) : nullptr;
  arguments.out = buffers[p.has_starts ? 4 : 3];
  grouped::CpuTail cpu_tail;
  if (step.tail) {
    cpu_tail.n = step.tail->n;
    cpu_tail.first = step.tail->first;
    void* const* operands = buffers + (p.has_starts ? 5 : 4);
    const auto product = std::find(parameters.begin(), parameters.end(), step.tail->product) - parameters.begin();
    const int64_t pieces = divide_up(step.tail->n, grouped::kTailColumns);
    cpu_tail.apply = [=, count = parameters.size()](int64_t row, int64_t piece, const void* at) {
      std::array<void*, kMaxArguments> given;
      std::copy_n(operands, count, given.begin());
      given[product] = const_cast<void*>(at);
      tail(given.data(), row * pieces + piece, past_caches);
    };
  }
  const grouped::CpuTail* given_tail = step.tail ? &cpu_tail : nullptr;
  const Scratch scratch(grouped::cpu_workspace_bytes(p, target, pool.threads, given_tail));
  const grouped::ParallelFor parallel{
      pool.threads,
      [&pool](int64_t tasks, const std::function<void(int64_t, int)>& fn) { runtime::parallel_for(pool, tasks, fn); }};
  grouped::run_cpu(p, target, arguments, scratch.bytes(), parallel, given_tail);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // ends a tail's stores past the caches
}

const std::vector<BufferRef>& buffers_of(const Step& step) {
  return std::visit([](const auto& s) -> const std::vector<BufferRef>& { return s.buffers; }, step);
}

// A program from a cache or an export may name a machine with more than this one has.
Target runnable_target(std::string_view text) {
  Target target = parse_target(text);
  if (target.platform == Platform::kCuda) {
    const std::optional<Target> device = runtime::cuda_target(0);
    return device ? *device : target;
  }
  return target.isa > host_isa() ? host_target() : target;
}

// Whether a program of this target is to run in this process; an export may not be.
bool is_for_here(const Target& target) {
  return target.platform == Platform::kCuda ? runtime::cuda_target(0).has_value() : target.isa <= host_isa();
}

std::string key_of(std::string_view program, const Target& target) { return cat(print(target), '\n', program); }

// What is compiled ahead also depends on what the environment wishes then.
std::string ahead_key(const std::string& key) {
  return cat(key, '\n', env::host_compiler(), '\n', env::cache_dir(), '\n', env::dump_dir());
}

// The executables that somebody owns, by target and text.
class Executables {
 public:
  std::shared_ptr<Executable> find(const std::string& key) {
    std::lock_guard lock(mutex_);
    const auto found = alive_.find(key);
    return found == alive_.end() ? nullptr : found->second.lock();
  }
  void add(const std::string& key, const std::shared_ptr<Executable>& executable) {
    std::lock_guard lock(mutex_);
    std::erase_if(alive_, [](const auto& entry) { return entry.second.expired(); });
    alive_[key] = executable;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Executable>> alive_;
};

Executables& executables() {
  static auto& executables = *new Executables;  // outlives every thread that still runs at exit
  return executables;
}

// `text`: of the program, or the same with the user's names.
void dump(const Program& program, const std::string& text, const Target& target) {
  const runtime::Dump folder(program.name);
  if (!folder.enabled()) return;
  const std::string target_text = jf::print(target);
  for (const auto& [stage, written] : stages(text, target_text)) {
    const bool source = stage == "source";
    folder.write(source ? (target.platform == Platform::kCpu ? "kernel.cpp" : "kernel.cu") : stage + ".txt", written);
  }
  if (target.platform != Platform::kCuda || runtime::find_disassembler().empty()) return;
  std::string instructions;
  try {
    instructions = sass(text, target_text);
  } catch (const std::exception& error) {
    // A dump is for people: what it lacks must not fail the program.
    instructions = cat("no instructions: ", error.what(), "\n");
  }
  folder.write("sass.txt", instructions);
}

std::shared_ptr<Executable> make(Program program, std::string_view text, const Target& target,
                                 const std::string& shown = {}) {
  program.text = text;
  dump(program, shown.empty() ? program.text : shown, target);
  return std::make_shared<Executable>(std::move(program), target);
}

// The binaries of all steps that have a source, several compiled at the same time.
std::vector<std::shared_ptr<const runtime::Binary>> compile_all(const std::vector<CompiledStep>& steps,
                                                                const Target& target) {
  struct One {
    runtime::Source source;
    std::shared_ptr<const runtime::Binary> binary;
    runtime::Job job;
  };
  if (steps.size() == 1) {
    return {steps[0].source ? runtime::compile(steps[0].source->source, target) : nullptr};
  }
  std::vector<std::shared_ptr<One>> all(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].source) continue;
    all[i] = std::make_shared<One>(One{steps[i].source->source, nullptr, {}});
    // Owned by the job, too: where one fails, others still run.
    all[i]->job = runtime::Job::begin([one = all[i], target] { one->binary = runtime::compile(one->source, target); });
  }
  std::vector<std::shared_ptr<const runtime::Binary>> binaries(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!all[i]) continue;
    all[i]->job.finish();
    binaries[i] = all[i]->binary;
  }
  return binaries;
}

}  // namespace

Executable::Executable(Program program, const Target& target) : program_(std::move(program)), target_(target) {
  std::vector<CompiledStep> compiled;
  for (const Step& step : program_.steps) {
    const auto* kernel = std::get_if<KernelStep>(&step);
    const size_t maps = kernel == nullptr ? 0 : kernel->kernel.maps.size();
    JF_REQUIRE(maps <= kMaxMaps, "[compile] a kernel of ", program_.name, " copies tiles of ", maps,
               " arrays, the limit is ", kMaxMaps, "; load some by threads");
    const size_t most = kMaxArguments - kMaxScalars - maps * sizeof(runtime::TensorMap) / sizeof(void*);
    JF_REQUIRE(buffers_of(step).size() <= most, "[compile] a kernel of ", program_.name, " has ",
               buffers_of(step).size(), " buffers, the limit is ", most, "; fuse fewer values at once");
    compiled.push_back(compiled_step(step, target_));
  }
  const auto binaries = compile_all(compiled, target_);
  for (size_t i = 0; i < compiled.size(); ++i) {
    LoadedStep loaded;
    loaded.buffers = std::move(compiled[i].buffers);
    loaded.binary = binaries[i];
    if (loaded.binary) loaded.launch = std::move(compiled[i].source->launch);
    if (loaded.binary && target_.platform == Platform::kCpu) {
      loaded.host = runtime::load_host(loaded.binary);
      const auto* generated = std::get_if<KernelStep>(&program_.steps[i]);
      const auto& buffers =
          generated ? generated->kernel.buffers : std::get<GroupedStep>(program_.steps[i]).tail->kernel.buffers;
      // The arguments of a grouped product's tail come last.
      const size_t own = loaded.buffers.size() - compiled[i].parameters.size();
      loaded.parameters = compiled[i].parameters;
      for (size_t b = 0; b < compiled[i].parameters.size(); ++b) {
        const loops::Buffer& buffer = buffers.at(compiled[i].parameters[b]);
        if (!buffer.written || buffer.bytes < runtime::kLargeOutput) continue;
        // A part of a result is spread over all of it.
        const auto [kind, number] = loaded.buffers[own + b];
        loaded.large.push_back({own + b, kind == BufferKind::kOutput ? program_.output_bytes[number] : buffer.bytes});
      }
      loaded.host_entry = reinterpret_cast<HostEntry>(loaded.host->symbol(loaded.launch.entry));
    }
    steps_.push_back(std::move(loaded));
  }
}

void Executable::run_cpu(const CallBuffers& buffers, const runtime::Pool& pool) const {
  count(Event::kExecuted);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const LoadedStep& step = steps_[i];
    const Addresses addresses(step.buffers, buffers);
    void* const* pointers = addresses.data.data();
    const HostEntry entry = step.host_entry;
    bool past_caches = true;
    for (const auto& [buffer, bytes] : step.large) {
      const bool fit = runtime::prepare_output(pointers[buffer], bytes);
      if (bytes >= runtime::kBeyondCaches) past_caches &= fit;
    }
    if (const auto* kernel = std::get_if<KernelStep>(&program_.steps[i])) {
      if (kernel->kernel.grid == 1) {
        entry(pointers, 0, past_caches);
        std::atomic_thread_fence(std::memory_order_seq_cst);  // ends such stores, as the loop's counters do
      } else {
        runtime::parallel_for(pool, kernel->kernel.grid,
                              [&](int64_t task, int) { entry(pointers, task, past_caches); });
      }
    } else {
      run_grouped(std::get<GroupedStep>(program_.steps[i]), target_, pointers, entry, step.parameters, past_caches,
                  pool);
    }
  }
}

void Executable::load(int device) {
  JF_REQUIRE(device >= 0 && device < kMaxDevices, "[initialize] device ", device, " is beyond the limit of ",
             kMaxDevices);
  if (loaded_[device].load(std::memory_order_acquire)) return;
  std::lock_guard lock(load_mutex_);
  if (loaded_[device].load(std::memory_order_relaxed)) return;
  const std::optional<Target> here = runtime::cuda_target(device);
  JF_REQUIRE(!here || runs_code_of(*here, target_), "[initialize] ", program_.name, " was compiled for the first GPU, ",
             cuda_arch(target_), ", and cannot run on GPU ", device, ", ", cuda_arch(*here),
             "; let a process have GPUs of one kind, by CUDA_VISIBLE_DEVICES");
  for (LoadedStep& step : steps_) {
    if (!step.cuda) step.cuda = runtime::load_cuda(step.binary);
    runtime::CuKernel kernel = step.cuda->prepare(step.launch.entry, step.launch.shared_bytes, device);
    if (!step.kernel) step.kernel = kernel;
  }
  loaded_[device].store(true, std::memory_order_release);
}

void Executable::run_cuda(const CallBuffers& buffers, runtime::CuStream stream) const {
  count(Event::kExecuted);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const std::vector<BufferRef>& refs = steps_[i].buffers;
    Addresses addresses(refs, buffers);
    const StepLaunch& launch = steps_[i].launch;
    if (launch.grid.x == 0 || launch.grid.y == 0) continue;  // an empty result
    std::array<void*, kMaxArguments> arguments;
    size_t n = 0;
    for (; n < refs.size(); ++n) arguments[n] = &addresses.data[n];
    std::array<runtime::TensorMap, kMaxMaps> maps;
    for (size_t m = 0; m < launch.maps.size(); ++m) {
      runtime::encode(maps[m], launch.maps[m].layout, addresses.data[launch.maps[m].buffer]);
      arguments[n++] = &maps[m];
    }
    if (launch.null) addresses.data[*launch.null] = nullptr;
    if (launch.counter) runtime::fill_words(addresses.data[*launch.counter], 0, 1, stream);
    if (launch.ones) runtime::fill_words(addresses.data[launch.ones->buffer], ~0u, launch.ones->words, stream);
    for (const int64_t& scalar : launch.scalars) arguments[n++] = const_cast<int64_t*>(&scalar);
    runtime::launch(program_.name, launch.entry, steps_[i].kernel, launch.grid, launch.block, launch.cluster,
                    launch.shared_bytes, launch.together, stream, arguments.data());
  }
}

int64_t workspace_bytes(const std::string& program, const std::string& target_text, bool portable, const Ahead& ahead,
                        const std::string& shown) {
  const Target target = parse_target(target_text);
  const bool is_here = is_for_here(target);
  const auto bytes_of = [&](const Program& planned) {
    return portable || !is_here ? planned.portable_workspace_bytes : planned.workspace_bytes;
  };
  const std::string key = key_of(program, target);
  if (const std::shared_ptr<Executable> found = executables().find(key)) return bytes_of(found->program());
  return reported(program, [&] {
    auto planned = std::make_shared<Program>(build(parse_request(program), target));
    const int64_t bytes = bytes_of(*planned);
    if (!is_here) return bytes;
    auto make_planned = [planned, program, target, shown] {
      return reported(program, [&] { return make(std::move(*planned), program, target, shown); });
    };
    make_ahead(ahead_key(key), make_planned, ahead);
    return bytes;
  });
}

std::shared_ptr<Executable> instantiate(std::string_view program, std::string_view target) {
  count(Event::kInstantiated);
  const Target runnable = runnable_target(target);
  const std::string key = key_of(program, runnable);
  if (std::shared_ptr<Executable> found = executables().find(key)) return found;
  // Compiled outside the lock: two threads with one text share the compile below, in runtime::compile.
  std::shared_ptr<Executable> executable = take_ahead(ahead_key(key));
  if (!executable) {
    executable = reported(
        program, [&] { return make(build_exported(program, parse_target(target), runnable), program, runnable); });
  }
  count(Event::kBuilt);
  executables().add(key, executable);
  return executable;
}

}  // namespace jf::host
