// Binaries kept between processes. The cache loads code, so its folder must belong to the user or to root and be
// writable by no one else; any other folder is refused and nothing is kept. One that cannot be written is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/source.h"

namespace jf::runtime {

class DiskCache {
 public:
  // $JAX_FUSER_CACHE_DIR, else $XDG_CACHE_HOME/jax_fuser, else $HOME/.cache/jax_fuser; created with mode 0700. Looks at
  // the folder anew each time and warns once about each folder it refuses.
  static DiskCache open();

  bool enabled() const { return refusal_.empty(); }
  const std::string& folder() const { return folder_; }

  struct Entry {
    std::string bytes;  // the binary
    std::string path;   // a file that begins with those bytes
  };
  // The entry, made young again; nothing when there is none or when it is damaged, which removes it.
  std::optional<Entry> load(const std::string& key, Language language) const;
  // Keeps the binary and, beside it, its source, by renames: another process sees the whole entry or none. Returns the
  // binary's path; empty, with a log line, when the disk refuses.
  std::string store(const std::string& key, const Source& source, std::string_view binary) const;
  // Removes the files unused for longest until at most 3/4 of the limit is left, once they exceed it.
  void prune(int64_t limit_bytes) const;

 private:
  std::string folder_;
  std::string refusal_;  // why nothing is kept, and what to do; empty when enabled
};

}  // namespace jf::runtime
