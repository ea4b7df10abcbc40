#include "ffi/handlers.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/target.h"
#include "host/executable.h"
#include "host/exported.h"
#include "host/report.h"
#include "xla/ffi/api/ffi.h"

namespace jf::ffi {
namespace {

namespace xffi = ::xla::ffi;

// Of a call, whose addresses are in a fixed array; about as many as one kernel may have.
constexpr size_t kMaxBuffers = 500;

// One type per platform: the CUDA plugin is another library with its own type registry.
template <Platform P>
struct State {
  static xffi::TypeId id;
  std::shared_ptr<host::Executable> executable;
};
template <Platform P>
xffi::TypeId State<P>::id = {};

// XLA asks every handler for its metadata at registration, with the registering library's own API table: the one moment
// at which the type can be registered there before a handler that needs it.
template <Platform P>
XLA_FFI_Error* ensure_type(const XLA_FFI_Api* api) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (State<P>::id.type_id) return nullptr;
  static auto type_info = xffi::MakeTypeInfo<State<P>>();
  constexpr const char* kName = P == Platform::kCpu ? "jax_fuser.program.cpu" : "jax_fuser.program.cuda";
  return xffi::Ffi::RegisterTypeId(api, kName, &State<P>::id, &type_info);
}

// Nothing thrown crosses the FFI.
template <class F>
xffi::Error guarded(F&& body) {
  try {
    body();
    return xffi::Error::Success();
  } catch (const UserError& e) {
    return xffi::Error(xffi::ErrorCode::kInvalidArgument, cat("jax_fuser: ", e.what()));
  } catch (const std::exception& e) {
    return xffi::Error(xffi::ErrorCode::kInternal, e.what());
  }
}

template <Platform P>
xffi::ErrorOr<std::unique_ptr<State<P>>> instantiate(std::string_view program, std::string_view target, int64_t abi) {
  auto state = std::make_unique<State<P>>();
  const xffi::Error error = guarded([&] {
    JF_REQUIRE(abi == kAbi, "[instantiate] the program was written for abi ", abi, ", this jax_fuser has ", kAbi,
               "; clear the compilation cache or export the program again");
    host::require_platform(parse_target(target), P);
    state->executable = host::instantiate(program, target);
    const host::Program& made = state->executable->program();
    JF_REQUIRE(made.input_bytes.size() + made.output_bytes.size() < kMaxBuffers, "[instantiate] program ", made.name,
               " has ", made.input_bytes.size(), " inputs and ", made.output_bytes.size(),
               " outputs; expected fewer than ", kMaxBuffers, " together");
  });
  if (error.failure()) return xffi::Unexpected(error);
  return state;
}

// The call's buffers in a fixed array: running allocates nothing. Their sizes are checked, since a call that was split
// or edited on its way would make kernels run out of bounds.
struct Bound {
  std::array<void*, kMaxBuffers> pointers;
  host::CallBuffers buffers;

  Bound(const host::Program& program, Platform platform, const xffi::RemainingArgs& args,
        const xffi::RemainingRets& rets) {
    const size_t inputs = program.input_bytes.size(), outputs = program.output_bytes.size();
    // The workspace of an export is enough for any target.
    const size_t extra = program.workspace_bytes > 0 || rets.size() > outputs ? 1 : 0;
    JF_REQUIRE(args.size() == inputs && rets.size() == outputs + extra, "[execute] program ", program.name, " has ",
               inputs, " inputs and ", outputs + extra, " outputs, the call has ", args.size(), " and ", rets.size());
    for (size_t i = 0; i < inputs; ++i) {
      pointers[i] = checked(*args.get<xffi::AnyBuffer>(i), program.input_bytes[i], program.name, "input ", i);
      // Vector accesses and tensor maps; XLA's own buffers begin at more.
      const bool fits = platform == Platform::kCpu || reinterpret_cast<uintptr_t>(pointers[i]) % kMaxVectorBytes == 0;
      JF_REQUIRE(fits, "[execute] input ", i, " of program ", program.name,
                 " begins at an address that is no multiple ", "of ", kMaxVectorBytes,
                 ": an array of another library, made into one of JAX's without a copy; copy it");
    }
    for (size_t i = 0; i < outputs; ++i) {
      pointers[inputs + i] =
          checked(**rets.get<xffi::AnyBuffer>(i), program.output_bytes[i], program.name, "output ", i);
    }
    buffers.inputs = {pointers.data(), inputs};
    buffers.outputs = {pointers.data() + inputs, outputs};
    if (extra) {
      const xffi::AnyBuffer workspace = **rets.get<xffi::AnyBuffer>(outputs);
      const auto bytes = static_cast<int64_t>(workspace.size_bytes());
      JF_REQUIRE(bytes >= program.workspace_bytes, "[execute] program ", program.name, " needs a workspace of ",
                 program.workspace_bytes, " bytes, the call brings ", bytes, "; export it again on such a machine");
      buffers.workspace = workspace.untyped_data();
    }
  }

  static void* checked(const xffi::AnyBuffer& buffer, int64_t bytes, const std::string& program, const char* what,
                       size_t number) {
    JF_REQUIRE(static_cast<int64_t>(buffer.size_bytes()) == bytes, "[execute] program ", program, " expects ", bytes,
               " bytes in ", what, number, ", the call brings ", buffer.size_bytes());
    return buffer.untyped_data();
  }
};

xffi::Error execute_cpu(xffi::ThreadPool threads, State<Platform::kCpu>* state, xffi::RemainingArgs args,
                        xffi::RemainingRets rets) {
  return guarded([&] {
    const host::Program& program = state->executable->program();
    const Bound bound(program, Platform::kCpu, args, rets);
    // XLA says 0 where it has no pool; the caller always takes part.
    const runtime::Pool pool{std::max(1, static_cast<int>(threads.num_threads())),
                             [&threads](std::function<void()> task) { threads.Schedule(std::move(task)); }};
    host::reported(program.text, [&] { state->executable->run_cpu(bound.buffers, pool); });
  });
}

xffi::Error initialize_cuda(State<Platform::kCuda>* state, int32_t device) {
  return guarded([&] { host::reported(state->executable->program().text, [&] { state->executable->load(device); }); });
}

xffi::Error execute_cuda(runtime::CuStream stream, State<Platform::kCuda>* state, xffi::RemainingArgs args,
                         xffi::RemainingRets rets) {
  return guarded([&] {
    const host::Program& program = state->executable->program();
    const Bound bound(program, Platform::kCuda, args, rets);
    host::reported(program.text, [&] { state->executable->run_cuda(bound.buffers, stream); });
  });
}

template <Platform P>
XLA_FFI_Error* instantiate_handler(XLA_FFI_CallFrame* frame) {
  if (XLA_FFI_Error* error = ensure_type<P>(frame->api)) return error;
  XLA_FFI_DEFINE_HANDLER(
      handler, instantiate<P>,
      xffi::Ffi::BindInstantiate().Attr<std::string_view>("program").Attr<std::string_view>("target").Attr<int64_t>(
          "abi"));
  return (*handler)(frame);
}

XLA_FFI_Error* execute_cpu_handler(XLA_FFI_CallFrame* frame) {
  if (XLA_FFI_Error* error = ensure_type<Platform::kCpu>(frame->api)) return error;
  XLA_FFI_DEFINE_HANDLER(handler, execute_cpu,
                         xffi::Ffi::Bind()
                             .Ctx<xffi::ThreadPool>()
                             .Ctx<xffi::State<State<Platform::kCpu>>>()
                             .RemainingArgs()
                             .RemainingRets());
  return (*handler)(frame);
}

XLA_FFI_Error* initialize_cuda_handler(XLA_FFI_CallFrame* frame) {
  if (XLA_FFI_Error* error = ensure_type<Platform::kCuda>(frame->api)) return error;
  XLA_FFI_DEFINE_HANDLER(
      handler, initialize_cuda,
      xffi::Ffi::BindInitialize().Ctx<xffi::State<State<Platform::kCuda>>>().Ctx<xffi::DeviceOrdinal>());
  return (*handler)(frame);
}

XLA_FFI_Error* execute_cuda_handler(XLA_FFI_CallFrame* frame) {
  if (XLA_FFI_Error* error = ensure_type<Platform::kCuda>(frame->api)) return error;
  XLA_FFI_DEFINE_HANDLER(handler, execute_cuda,
                         xffi::Ffi::Bind()
                             .Ctx<xffi::PlatformStream<runtime::CuStream>>()
                             .Ctx<xffi::State<State<Platform::kCuda>>>()
                             .RemainingArgs()
                             .RemainingRets(),
                         {xffi::Traits::kCmdBufferCompatible});
  return (*handler)(frame);
}

}  // namespace

Handlers cpu_handlers() { return {instantiate_handler<Platform::kCpu>, nullptr, execute_cpu_handler}; }

Handlers cuda_handlers() {
  return {instantiate_handler<Platform::kCuda>, initialize_cuda_handler, execute_cuda_handler};
}

}  // namespace jf::ffi
