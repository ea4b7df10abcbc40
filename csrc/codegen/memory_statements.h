// Statements that read and write memory, as C++ text: loads, stores, searches, copies in bulk.
#pragma once

#include <string>

#include "codegen/writer.h"
#include "loops/kernel.h"

namespace jf::codegen {

struct MemoryStatements : Writer {
  using Writer::Writer;

  void operator()(const loops::Load&);
  void operator()(const loops::ReadIndex&);
  void operator()(const loops::Search&);
  void operator()(const loops::Store&);
  void operator()(const loops::StoreInterleaved&);
  void operator()(const loops::Prefetch&);
  void operator()(const loops::TurnedLoad&);
  void operator()(const loops::TurnTile&);
  void operator()(const loops::OpenRing&);
  void operator()(const loops::BulkLoad&);
  void operator()(const loops::TileLoad&);
  void operator()(const loops::BulkStore&);
  void operator()(const loops::FenceBulk&);
  void operator()(const loops::DrainBulk&);
  void operator()(const loops::CommitRing&);
  void operator()(const loops::AwaitRing&);

 private:
  bool lasts(const loops::Buffer& from) const;
  bool goes_ahead(const loops::Load& load) const;
  std::string arguments_of(const loops::Step& step) const;
  void check_bulk(const char* what) const;
  const loops::Ring& ring(int number, const char* what) const;
  template <class Copy>
  std::string elements(const Copy& copy) const;
};

}  // namespace jf::codegen
