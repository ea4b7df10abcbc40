#include "runtime/disk_cache.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "runtime/background.h"
#include "runtime/files.h"
#include "runtime/hash.h"
#include "runtime/log.h"

namespace jf::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLimitBytes = int64_t{1} << 30;
// A file is the binary followed by its SHA-256. Loaders of ELF files ignore what follows the last segment.
constexpr size_t kSumSize = 64;

std::string wanted_folder() {
  if (std::string folder = env::cache_dir(); !folder.empty()) return folder;
  if (std::string root = env::xdg_cache_home(); !root.empty() && root[0] == '/') return root + "/jax_fuser";
  if (std::string home = env::home(); !home.empty()) return home + "/.cache/jax_fuser";
  return "";
}

constexpr const char* kOwnFolder = "; point JAX_FUSER_CACHE_DIR to a folder of your own with mode 0700";

// Says something of a folder once.
void warn_once(const std::string& folder, std::string_view text) {
  static std::mutex mutex;
  static auto& warned = *new std::set<std::string>;
  std::lock_guard lock(mutex);
  if (warned.insert(folder).second) warn(text);
}

// Why the folder may not be used; empty when it may. Creates it when missing.
std::string judge(const std::string& folder) {
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return cat("cannot create ", folder, ": ", std::strerror(errno), kOwnFolder);
  }
  struct stat info;
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return cat(folder, " is no folder", kOwnFolder);
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return cat(folder, " belongs to user ", info.st_uid, ", not to user ", geteuid(), " or root", kOwnFolder);
  }
  if (info.st_mode & (S_IWGRP | S_IWOTH)) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return cat(folder, " can be written by other users (mode ", mode, ")", kOwnFolder);
  }
  if (access(folder.c_str(), X_OK) != 0) return cat(folder, " cannot be read", kOwnFolder);
  return "";
}

// No two writers have one temporary file, be they on two machines that share the folder.
bool replace_file(const std::string& path, std::string_view bytes) {
  std::string temporary = path + ".XXXXXX.tmp";
  const int fd = mkostemps(temporary.data(), 4, O_CLOEXEC);
  if (fd >= 0) close(fd);
  if (fd >= 0 && write_file(temporary, bytes) && rename(temporary.c_str(), path.c_str()) == 0) return true;
  log(LogLevel::kInfo, "compile cache: cannot write ", path, ": ", std::strerror(errno));
  unlink(temporary.c_str());
  return false;
}

std::string file(const std::string& folder, const std::string& key, std::string_view suffix) {
  return cat(folder, "/", key, ".", suffix);
}

}  // namespace

DiskCache DiskCache::open() {
  DiskCache cache;
  const std::string folder = wanted_folder();
  if (folder.empty()) {
    cache.refusal_ = "no folder: HOME is not set; set JAX_FUSER_CACHE_DIR";
    return cache;
  }
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  if (!path.has_filename()) path = path.parent_path();  // "cache/", whose parent would be itself
  cache.folder_ = path.string();
  cache.refusal_ = error ? cat("cannot find ", folder) : judge(cache.folder_);
  if (!cache.enabled()) warn_once(cache.folder_, cat("compile cache is off: ", cache.refusal_));
  return cache;
}

std::optional<DiskCache::Entry> DiskCache::load(const std::string& key, Language language) const {
  if (!enabled()) return std::nullopt;
  const std::string path = file(folder_, key, binary_suffix(language));
  std::optional<std::string> bytes = read_file(path);
  if (!bytes) return std::nullopt;
  const size_t size = bytes->size() < kSumSize ? 0 : bytes->size() - kSumSize;
  const std::string sum = bytes->substr(size);
  bytes->resize(size);
  if (sha256(*bytes) != sum) {
    log(LogLevel::kInfo, "compile cache: ", path, " is damaged; compiling again");
    unlink(path.c_str());
    return std::nullopt;
  }
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return Entry{std::move(*bytes), path};
}

std::string DiskCache::store(const std::string& key, const Source& source, std::string_view binary) const {
  if (!enabled()) return "";
  if (access(folder_.c_str(), W_OK) != 0) {
    warn_once(folder_, cat("compile cache is only read: ", folder_, " cannot be written", kOwnFolder));
    return "";
  }
  // Looking at a full cache takes a second: one store of 256 does so, whatever process it is in.
  if (key.ends_with("00")) Job::begin([cache = *this] { cache.prune(kLimitBytes); });
  const std::string path = file(folder_, key, binary_suffix(source.language));
  const bool stored = replace_file(file(folder_, key, source_suffix(source.language)), source.text) &&
                      replace_file(path, cat(binary, sha256(binary)));
  return stored ? path : "";
}

void DiskCache::prune(int64_t limit_bytes) const {
  if (!enabled()) return;
  struct Found {
    fs::file_time_type time;
    int64_t bytes;
    fs::path path;
  };
  std::vector<Found> found;
  int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    // Another process may remove files meanwhile; what cannot be asked is skipped.
    std::error_code gone;
    Found one{at->last_write_time(gone), 0, at->path()};
    if (!gone && at->is_regular_file(gone) && !gone) one.bytes = static_cast<int64_t>(at->file_size(gone));
    if (gone || one.bytes <= 0) continue;
    total += one.bytes;
    found.push_back(std::move(one));
  }
  if (total <= limit_bytes) return;
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.time < b.time; });
  for (const Found& one : found) {
    if (total <= limit_bytes / 4 * 3) break;
    std::error_code gone;
    if (fs::remove(one.path, gone)) total -= one.bytes;
  }
}

}  // namespace jf::runtime
