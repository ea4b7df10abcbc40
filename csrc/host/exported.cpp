#include "host/exported.h"

#include <string>

#include "base/error.h"
#include "host/request.h"

namespace jf::host {
namespace {

std::string_view platform_name(Platform platform) { return platform == Platform::kCpu ? "cpu" : "cuda"; }

std::string describe(const Target& t) {
  if (t.platform == Platform::kCpu) return cat("a CPU with ", name(t.isa), " instructions");
  return cat("a GPU of compute capability ", t.compute_capability / 10, ".", t.compute_capability % 10, " with ",
             t.multiprocessors, " multiprocessors");
}

}  // namespace

Program build_exported(std::string_view program, const Target& written_for, const Target& here) {
  const Request request = parse_request(program);
  try {
    return build(request, here);
  } catch (const UserError& error) {
    if (written_for == here) throw;
    throw UserError(cat("[instantiate] ", request.fusion.name, " was exported for ", describe(written_for),
                        ", here is ", describe(here),
                        ", which lacks a kernel for it; export again on a machine with such a GPU, which writes what "
                        "it can run. The reason: ",
                        error.what()));
  }
}

void require_platform(const Target& written_for, Platform here) {
  JF_REQUIRE(written_for.platform == here, "[instantiate] the program was exported for ", describe(written_for),
             " and runs on platform ", platform_name(here), "; export again with platforms=['",
             platform_name(written_for.platform), "', '", platform_name(here), "']");
}

}  // namespace jf::host
