#include "runtime/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/env.h"
#include "base/error.h"

namespace jf::runtime {

std::optional<std::string> read_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string bytes;
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) bytes.resize(static_cast<size_t>(info.st_size));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = read(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  close(fd);
  if (done < bytes.size()) return std::nullopt;
  return bytes;
}

bool write_file(const std::string& path, std::string_view bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return close(fd) == 0 && bytes.empty();
}

ScratchFolder::ScratchFolder() {
  std::error_code error;
  std::filesystem::path parent = env::temporary();
  if (!std::filesystem::is_directory(parent, error)) parent = "/tmp";
  path_ = (parent / "jax_fuser-XXXXXX").string();
  JF_REQUIRE(mkdtemp(path_.data()) != nullptr, "[compile] cannot create a folder in ", parent.string(), ": ",
             std::strerror(errno), "; point TMPDIR to a folder that can be written");
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!keep_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace jf::runtime
