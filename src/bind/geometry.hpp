// Geometry: where the chunks and tiles of a plan lie for one launch. It turns the plan's regions into memory.
#pragma once

#include <vector>

#include "bind/call.hpp"
#include "transports/transport.hpp"

namespace weft {

// A run of elements inside a buffer.
struct Span {
  size_t begin = 0, size = 0;
};

// Chunk `index` of `chunks` of a block of `elements` elements: cut at whole cache lines, so that no two chunks share
// one, as evenly as that allows. Some are empty when there are more chunks than lines.
Span chunk_span(size_t elements, uint32_t index, uint32_t chunks, size_t element_bytes);

class Geometry {
 public:
  // `in` and `out` of the call may be replaced by work buffers (wide accumulation). tile_bytes is a multiple of 64.
  void bind(const Call& call, const Plan& plan, size_t element_bytes, size_t tile_bytes, uint32_t window);

  size_t scratch_bytes() const { return size_t{scratch_chunks_} * slots_ * slot_bytes_; }
  void set_scratch(std::byte* scratch) { base_[2] = scratch; }
  void set_buffers(std::byte* in, std::byte* out) {
    base_[0] = in;
    base_[1] = out;
  }
  // From the first to the last byte that the plan may touch of a buffer; empty where that is none.
  Piece extent(Buffer buffer) const;
  uint32_t tiles() const { return tiles_; }
  uint32_t window() const { return window_; }
  size_t element_bytes() const { return element_bytes_; }

  // Tile `tile` of chunk `chunk` of a buffer.
  Piece piece(Buffer buffer, uint32_t chunk, uint32_t tile) const;
  // Bytes of tile `tile` of a list of regions.
  size_t bytes(std::span<const Region> regions, uint32_t tile) const;
  // The pieces of a list of regions; neighbours in memory become one piece. With `other` (as many chunks, of the same
  // sizes) both are cut alike.
  void pieces(std::span<const Region> regions, uint32_t tile, std::vector<Piece>* out) const;
  void pieces(std::span<const Region> regions, std::span<const Region> other, uint32_t tile, std::vector<Piece>* out,
              std::vector<Piece>* other_out) const;

 private:
  std::byte* base_[3] = {};
  std::vector<Span> chunks_[2];  // of in and out, in elements
  std::vector<size_t> class_;    // elements of a scratch chunk, by index modulo its size
  uint32_t scratch_chunks_ = 0, tiles_ = 1, window_ = 1, slots_ = 1;
  size_t element_bytes_ = 1, tile_elements_ = 0, slot_bytes_ = 0;
};

}  // namespace weft
