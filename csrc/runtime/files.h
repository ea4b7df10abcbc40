// Whole files in and out, and folders that remove themselves.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace jf::runtime {

// The file's bytes; nothing when it cannot be read.
std::optional<std::string> read_file(const std::string& path);
// Creates or replaces the file, readable by the user alone. False when it could not be written in full.
bool write_file(const std::string& path, std::string_view bytes);

// A fresh empty folder under the system's temporary folder, readable by the user alone. Throws UserError when there is
// none to be had.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  // Leaves the folder on disk, for a user who has to look into it.
  void keep() { keep_ = true; }

 private:
  std::string path_;
  bool keep_ = false;
};

}  // namespace jf::runtime
