#include "runtime/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>

#include <mutex>

#include "base/error.h"
#include "base/lists.h"
#include "runtime/log.h"

namespace jf::runtime {
namespace {

typedef struct _nvrtcProgram* Program;

struct Nvrtc {
  NvrtcInfo info;
  int (*version)(int*, int*);
  const char* (*error_string)(int);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
};

struct Loader {
  std::mutex mutex;
  std::vector<std::string> folders;
  std::optional<Nvrtc> loaded;
};

Loader& loader() {
  static auto& loader = *new Loader;
  return loader;
}

constexpr const char* kSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

void* open_library(const std::vector<std::string>& folders) {
  for (const char* soname : kSonames) {
    if (void* library = dlopen(soname, RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  for (const std::string& folder : folders) {
    for (const char* soname : kSonames) {
      const std::string path = folder + "/" + soname;
      // NVRTC 13.0 does not find its builtins beside itself unless they are in the process already.
      glob_t found;
      const std::string builtins = folder + "/libnvrtc-builtins.so." + std::string(soname).substr(12) + "*";
      if (glob(builtins.c_str(), 0, nullptr, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; ++i) dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
      }
      globfree(&found);
      if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    }
  }
  for (const char* soname : kSonames) {
    if (void* library = dlopen(soname, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

// The loaded table. It is never unloaded, so the pointer stays good without the lock.
const Nvrtc* load(std::string* reason) {
  std::lock_guard lock(loader().mutex);
  if (loader().loaded) return &*loader().loaded;
  void* library = open_library(loader().folders);
  if (!library) {
    if (reason) {
      *reason =
          "no NVRTC: looked for libnvrtc.so.13 and libnvrtc.so.12 in this process, the nvidia-cuda-nvrtc package and "
          "the system's library folders; install it with pip install nvidia-cuda-nvrtc";
    }
    return nullptr;
  }
  Nvrtc table;
  bool complete = true;
  auto bind = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    complete = complete && function != nullptr;
  };
  bind(table.version, "nvrtcVersion");
  bind(table.error_string, "nvrtcGetErrorString");
  bind(table.create, "nvrtcCreateProgram");
  bind(table.destroy, "nvrtcDestroyProgram");
  bind(table.compile, "nvrtcCompileProgram");
  bind(table.log_size, "nvrtcGetProgramLogSize");
  bind(table.log, "nvrtcGetProgramLog");
  bind(table.cubin_size, "nvrtcGetCUBINSize");
  bind(table.cubin, "nvrtcGetCUBIN");
  if (!complete || table.version(&table.info.major, &table.info.minor) != 0) {
    if (reason) *reason = "no NVRTC: the libnvrtc.so found lacks functions; install a newer nvidia-cuda-nvrtc";
    return nullptr;
  }
  Dl_info place;
  if (dladdr(reinterpret_cast<void*>(table.version), &place) && place.dli_fname) table.info.path = place.dli_fname;
  log(LogLevel::kDebug, "NVRTC ", table.info.major, ".", table.info.minor, " from ", table.info.path);
  loader().loaded = std::move(table);
  return &*loader().loaded;
}

}  // namespace

void add_nvrtc_dir(std::string folder) {
  std::lock_guard lock(loader().mutex);
  auto& folders = loader().folders;
  if (!contains(folders, folder)) folders.push_back(std::move(folder));
}

std::vector<std::string> nvrtc_dirs() {
  std::lock_guard lock(loader().mutex);
  return loader().folders;
}

std::optional<NvrtcInfo> find_nvrtc(std::string* reason) {
  const Nvrtc* nvrtc = load(reason);
  if (!nvrtc) return std::nullopt;
  return nvrtc->info;
}

std::vector<std::string> cuda_flags(const Target& target) {
  // Both dialects share headers; without execution space marks their functions are the device's.
  return {"--gpu-architecture=" + cuda_arch(target), "--std=c++17", "-default-device"};
}

std::string compile_cuda(const Source& source, const std::vector<std::string>& flags) {
  std::string reason;
  const Nvrtc* nvrtc = load(&reason);
  JF_REQUIRE(nvrtc, "[compile] ", reason);
  auto check = [nvrtc](int code, const char* call) {
    JF_REQUIRE(code == 0, "[compile] ", call, " failed: ", nvrtc->error_string(code));
  };

  std::vector<const char*> names, texts, options;
  for (const auto& [name, text] : source.headers) {
    names.push_back(name.c_str());
    texts.push_back(text.c_str());
  }
  for (const std::string& flag : flags) options.push_back(flag.c_str());
  for (const std::string& flag : source.flags) options.push_back(flag.c_str());

  struct Holder {
    const Nvrtc* nvrtc;
    Program program = nullptr;
    ~Holder() {
      if (program) nvrtc->destroy(&program);
    }
  } holder{nvrtc};
  check(nvrtc->create(&holder.program, source.text.c_str(), "kernel.cu", static_cast<int>(names.size()), texts.data(),
                      names.data()),
        "nvrtcCreateProgram");
  const int code = nvrtc->compile(holder.program, static_cast<int>(options.size()), options.data());
  if (code != 0) {
    size_t size = 0;
    check(nvrtc->log_size(holder.program, &size), "nvrtcGetProgramLogSize");
    std::string text(size, '\0');
    check(nvrtc->log(holder.program, text.data()), "nvrtcGetProgramLog");
    text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
    throw UserError(cat("[compile] NVRTC ", nvrtc->info.major, ".", nvrtc->info.minor,
                        " failed: ", nvrtc->error_string(code), "\n", text,
                        "\nReport it with this text, or install a newer nvidia-cuda-nvrtc where it does not know the "
                        "GPU"));
  }
  size_t size = 0;
  check(nvrtc->cubin_size(holder.program, &size), "nvrtcGetCUBINSize");
  std::string binary(size, '\0');
  check(nvrtc->cubin(holder.program, binary.data()), "nvrtcGetCUBIN");
  return binary;
}

}  // namespace jf::runtime
