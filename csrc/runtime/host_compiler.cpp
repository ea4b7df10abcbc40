#include "runtime/host_compiler.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>

#include "base/env.h"
#include "base/error.h"
#include "runtime/background.h"
#include "runtime/files.h"
#include "runtime/log.h"
#include "runtime/subprocess.h"

namespace jf::runtime {
namespace {

constexpr int kLogLines = 60;
// What a compiler says of its own mistakes, and the pass that g++ 12 makes most of them in.
constexpr std::string_view kBrokenDown = "internal compiler error";
constexpr const char* kFewerPasses = "-fno-tree-slp-vectorize";
constexpr std::string_view kHowToGetOne =
    "install one of them (apt install g++, or pip install ziglang), or set JAX_FUSER_CXX to a C++ compiler";

// Guards all that this file remembers: zig's path and the versions of compilers already asked.
struct Memory {
  std::mutex mutex;
  std::string zig;
  std::map<std::vector<std::string>, std::optional<std::string>> versions;
};

Memory& memory() {
  static auto& memory = *new Memory;  // outlives every thread that still compiles at exit
  return memory;
}

bool is_executable(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

// The parts of a text between separators, without empty ones.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// Absolute path of a program; empty when there is none. Relative folders in PATH depend on the working folder: skipped.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    std::error_code error;
    const std::string path = std::filesystem::absolute(name, error).string();
    return !error && is_executable(path) ? path : "";
  }
  for (const std::string& folder : split(env::path(), ':')) {
    if (folder[0] == '/' && is_executable(folder + "/" + name)) return folder + "/" + name;
  }
  return "";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string first_lines(const std::string& text, int count) {
  size_t end = 0;
  for (int line = 0; line < count; ++line) {
    const size_t next = text.find('\n', end);
    if (next == std::string::npos) return text;
    end = next + 1;
  }
  return text.substr(0, end) + "...\n";
}

std::string join(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

// The compiler with its version; nothing when it does not even print that, as a wrapper without its compiler.
std::optional<HostCompiler> ask(std::vector<std::string> command) {
  std::lock_guard lock(memory().mutex);
  auto at = memory().versions.find(command);
  if (at == memory().versions.end()) {
    ScratchFolder folder;
    std::vector<std::string> question = command;
    question.push_back("--version");
    const Finished answer = run(question, folder.path());
    std::optional<std::string> version;
    if (answer.exit_code == 0 && !answer.output.empty()) version = first_line(answer.output);
    log(LogLevel::kDebug, join(question), ": ", version.value_or("does not run"));
    // Remembered only now: where the question could not be asked, the next call asks again.
    at = memory().versions.emplace(command, std::move(version)).first;
  }
  if (!at->second) return std::nullopt;
  return HostCompiler{std::move(command), *at->second};
}

// $JAX_FUSER_CXX is a program, or a program and its arguments ("ccache g++").
std::vector<std::string> parse_command(const std::string& text) {
  if (std::string whole = find_program(text); !whole.empty()) return {whole};
  std::vector<std::string> words = split(text, ' ');
  if (words.empty()) return {};
  words[0] = find_program(words[0]);
  return words[0].empty() ? std::vector<std::string>() : words;
}

}  // namespace

void set_zig(std::string path) {
  std::lock_guard lock(memory().mutex);
  memory().zig = std::move(path);
}

std::optional<HostCompiler> find_host_compiler(std::string* reason) {
  auto none = [reason](std::string why) {
    if (reason) *reason = std::move(why);
    return std::optional<HostCompiler>();
  };
  if (const std::string wanted = env::host_compiler(); !wanted.empty()) {
    std::vector<std::string> command = parse_command(wanted);
    if (!command.empty()) {
      if (auto compiler = ask(std::move(command))) return compiler;
    }
    return none(
        cat("no C++ compiler: JAX_FUSER_CXX is '", wanted, "', which is no program that runs; correct it or unset it"));
  }
  for (const char* name : {"g++", "c++", "clang++"}) {
    const std::string path = find_program(name);
    if (path.empty()) continue;
    if (auto compiler = ask({path})) return compiler;
  }
  std::string zig;
  {
    std::lock_guard lock(memory().mutex);
    zig = memory().zig;
  }
  if (!zig.empty() && is_executable(zig)) {
    // "zig c++" would build libc++ first, which takes most of a minute; and zig alone compiles for the machine it runs
    // on.
    if (auto compiler = ask({zig, "cc", "-x", "c++", "-mcpu=baseline"})) return compiler;
  }
  return none(cat("no C++ compiler: looked for $JAX_FUSER_CXX, g++, c++ and clang++ on PATH, and the ziglang package; ",
                  kHowToGetOne));
}

void find_host_compiler_ahead() {
  static std::once_flag asked;
  // Where it fails, whoever needs the answer asks again and says why there is none.
  std::call_once(asked, [] { Job::begin([] { find_host_compiler(); }); });
}

std::vector<std::string> host_flags(const Target& target) {
  std::vector<std::string> flags = {
      "-std=c++17", "-O2", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"};
  auto add = [&](Isa since, std::initializer_list<const char*> more) {
    if (target.isa >= since) flags.insert(flags.end(), more.begin(), more.end());
  };
  add(Isa::kAvx2, {"-mavx2", "-mfma", "-mf16c"});
  add(Isa::kAvx512, {"-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"});
  add(Isa::kAvx512Bf16, {"-mavx512bf16"});  // no flags for AMX: texts use no tiles, and g++ 10 does not know them
  return flags;
}

std::string compile_host(const Source& source, const std::vector<std::string>& flags, const HostCompiler& compiler) {
  ScratchFolder folder;
  auto write = [&](const std::string& name, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(folder.path()) / name;
    std::error_code ignored;
    std::filesystem::create_directories(path.parent_path(), ignored);
    JF_REQUIRE(write_file(path.string(), text), "[compile] cannot write ", path.string(),
               "; make room there, or point TMPDIR to another folder");
  };
  for (const auto& [name, text] : source.headers) {
    JF_CHECK(!name.empty() && name[0] != '/' && name.find("..") == std::string::npos, "header name '", name, "'");
    write(name, text);
  }
  write("kernel.cpp", source.text);

  // The working folder is the scratch folder, so that no file of the user's can stand in for a header. No C++ library
  // and no start files are linked: that is a third of the time of a small compile, and the texts need neither.
  std::vector<std::string> command = compiler.command;
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), source.flags.begin(), source.flags.end());
  for (const char* word : {"-pipe", "-nostdlib", "-I.", "kernel.cpp", "-o", "kernel.so", "-lm", "-lgcc"}) {
    command.push_back(word);
  }
  Finished finished;
  // Texts are written in vectors already; where a compiler breaks down over making more of them, it is told not to.
  for (const bool again : {false, true}) {
    if (again) command.insert(command.begin() + static_cast<std::ptrdiff_t>(compiler.command.size()), kFewerPasses);
    finished = run(command, folder.path());
    const std::optional<std::string> binary = read_file(folder.path() + "/kernel.so");
    if (finished.exit_code == 0 && binary && !binary->empty()) return *binary;
    if (finished.output.find(kBrokenDown) == std::string::npos) break;
  }
  folder.keep();
  throw UserError(cat("[compile] the C++ compiler failed with exit code ", finished.exit_code, ": ", join(command),
                      "\n", first_lines(finished.output, kLogLines), "The source is kept in ", folder.path(),
                      "/kernel.cpp; report it with this text, or set JAX_FUSER_CXX to another compiler"));
}

}  // namespace jf::runtime
