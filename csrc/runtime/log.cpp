#include "runtime/log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "base/env.h"
#include "runtime/files.h"

namespace jf::runtime {
namespace {

// Letters, digits, '-' and '_' of the user's name for a program; it becomes part of a path.
std::string plain(std::string_view name) {
  std::string out;
  for (char c : name.substr(0, 60)) out += std::isalnum(static_cast<unsigned char>(c)) || c == '-' ? c : '_';
  return out.empty() ? "program" : out;
}

// Words that say whether or what to dump where the path of a folder is expected.
constexpr std::string_view kFlags =
    " 0 1 2 true false yes no on off all none fusion segments schedule loops source host sass ";

}  // namespace

std::string why_no_dump() {
  const std::string root = env::dump_dir();
  std::string word = root;
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (root.empty() || kFlags.find(cat(' ', word, ' ')) == kFlags.npos) return "";
  return cat("expected the path of a folder, which gets every stage of every program; for one of this name write ./",
             root);
}

bool logs(LogLevel level) {
  const std::string wanted = env::log_level();
  return wanted == "debug" || (wanted == "info" && level == LogLevel::kInfo);
}

void warn(std::string_view line) {
  // One write, so that lines of several threads do not mix.
  const std::string text = cat("jax_fuser: ", line, '\n');
  std::fwrite(text.data(), 1, text.size(), stderr);
}

Dump::Dump(std::string_view program) {
  const std::string root = env::dump_dir();
  if (root.empty()) return;
  if (const std::string reason = why_no_dump(); !reason.empty()) {
    static std::once_flag once;
    std::call_once(once, [&] { warn(cat("JAX_FUSER_DUMP=", root, ": ", reason)); });
    return;
  }
  std::error_code ignored;
  std::filesystem::create_directories(root, ignored);
  // mkdir decides between processes that share the folder: the first free number is ours.
  static std::atomic<int> next{0};
  int made = -1;
  do {
    char number[16];
    std::snprintf(number, sizeof number, "%04d", next.fetch_add(1));
    folder_ = cat(root, "/", number, "-", plain(program));
    made = mkdir(folder_.c_str(), 0777);
  } while (made != 0 && errno == EEXIST);
  if (made != 0) {
    warn(cat("JAX_FUSER_DUMP: cannot create ", folder_, ": ", std::strerror(errno)));
    folder_.clear();
  }
}

void Dump::write(std::string_view file, std::string_view text) const {
  if (!enabled()) return;
  const std::string path = cat(folder_, "/", file);
  if (!write_file(path, text)) warn(cat("JAX_FUSER_DUMP: cannot write ", path, ": ", std::strerror(errno)));
}

}  // namespace jf::runtime
