#include "bind/geometry.hpp"

#include <algorithm>

namespace weft {
namespace {

struct Blocks {
  size_t uniform = 0;  // elements of every block, where counts is null
  const std::vector<size_t>* counts = nullptr;
  const std::vector<size_t>* displs = nullptr;

  size_t size(size_t block) const { return counts != nullptr ? (*counts)[block] : uniform; }
  size_t begin(size_t block) const { return displs != nullptr ? (*displs)[block] : block * uniform; }
};

Blocks blocks_of(const Call& call, bool in) {
  const std::vector<size_t>& counts = in ? call.in_counts : call.out_counts;
  const std::vector<size_t>& displs = in ? call.in_displs : call.out_displs;
  if (counts.empty()) return {.uniform = call.count};
  return {.counts = &counts, .displs = &displs};
}

std::vector<Span> spans(const Blocks& blocks, uint32_t count, uint32_t per_block, size_t element_bytes) {
  std::vector<Span> result(size_t{count} * per_block);
  for (uint32_t block = 0; block < count; ++block) {
    const size_t size = blocks.size(block);
    const size_t begin = size == 0 ? 0 : blocks.begin(block);  // an empty block's displacement is never read
    for (uint32_t part = 0; part < per_block; ++part) {
      Span span = chunk_span(size, part, per_block, element_bytes);
      span.begin += begin;
      result[size_t{block} * per_block + part] = span;
    }
  }
  return result;
}

// The numbers of blocks that the collective (not this rank) has on its larger side.
bool many_blocks(Collective collective) {
  return collective != Collective::allreduce && collective != Collective::reduce &&
         collective != Collective::broadcast && collective != Collective::barrier && collective != Collective::sendrecv;
}

}  // namespace

Span chunk_span(size_t elements, uint32_t index, uint32_t chunks, size_t element_bytes) {
  if (chunks == 1) return {0, elements};
  const size_t unit = std::max<size_t>(1, 64 / element_bytes);
  const size_t lines = (elements + unit - 1) / unit;
  // The first lines % chunks chunks are one line longer.
  const auto edge = [&](size_t i) {
    return std::min(elements, (lines / chunks * i + std::min<size_t>(i, lines % chunks)) * unit);
  };
  return {edge(index), edge(index + 1) - edge(index)};
}

void Geometry::bind(const Call& call, const Plan& plan, size_t element_bytes, size_t tile_bytes, uint32_t window) {
  element_bytes_ = element_bytes;
  window_ = window;
  scratch_chunks_ = plan.scratch_chunks;
  base_[0] = const_cast<std::byte*>(static_cast<const std::byte*>(call.in));
  base_[1] = static_cast<std::byte*>(call.out);
  chunks_[0] = spans(blocks_of(call, true), plan.in_blocks, plan.chunks_per_block, element_bytes);
  chunks_[1] = spans(blocks_of(call, false), plan.out_blocks, plan.chunks_per_block, element_bytes);

  // The sizes that scratch chunks go by, and the largest chunk of all, which sets the number of tiles.
  const bool many = many_blocks(call.collective);
  const Blocks sizes = blocks_of(call, !call.in_counts.empty());
  const uint32_t blocks =
      many ? (sizes.counts != nullptr ? static_cast<uint32_t>(sizes.counts->size()) : static_cast<uint32_t>(plan.ranks))
           : 1;
  class_.clear();
  size_t largest = 0;
  for (uint32_t block = 0; block < blocks; ++block) {
    for (uint32_t part = 0; part < plan.chunks_per_block; ++part) {
      class_.push_back(chunk_span(sizes.size(block), part, plan.chunks_per_block, element_bytes).size);
    }
  }
  for (const auto& list : chunks_) {
    for (const Span& span : list) largest = std::max(largest, span.size);
  }
  for (size_t size : class_) largest = std::max(largest, size);
  // A message has at most a tile of every chunk, and wires count its bytes in 32 bits.
  constexpr size_t kMostMessage = size_t{1} << 31;
  tile_bytes = std::min(tile_bytes, std::max<size_t>(64, kMostMessage / class_.size() & ~size_t{63}));
  tile_elements_ = std::max<size_t>(1, tile_bytes / element_bytes);
  tile_elements_ = std::min(tile_elements_, std::max<size_t>(largest, 1));
  tiles_ = static_cast<uint32_t>(std::max<size_t>(1, (largest + tile_elements_ - 1) / tile_elements_));
  slots_ = std::min(window_, tiles_);
  slot_bytes_ = (tile_elements_ * element_bytes + 63) & ~size_t{63};
}

Piece Geometry::piece(Buffer buffer, uint32_t chunk, uint32_t tile) const {
  const size_t offset = size_t{tile} * tile_elements_;
  if (buffer == Buffer::scratch) {
    const size_t size = class_[chunk % class_.size()];
    const size_t part = offset >= size ? 0 : std::min(tile_elements_, size - offset);
    return {base_[2] + (size_t{chunk} * slots_ + tile % window_) * slot_bytes_, part * element_bytes_};
  }
  const Span& span = chunks_[static_cast<int>(buffer)][chunk];
  const size_t part = offset >= span.size ? 0 : std::min(tile_elements_, span.size - offset);
  return {base_[static_cast<int>(buffer)] + (span.begin + offset) * element_bytes_, part * element_bytes_};
}

Piece Geometry::extent(Buffer buffer) const {
  if (buffer == Buffer::scratch) return {base_[2], scratch_bytes()};
  size_t begin = SIZE_MAX, end = 0;
  for (const Span& span : chunks_[static_cast<int>(buffer)]) {
    if (span.size == 0) continue;
    begin = std::min(begin, span.begin);
    end = std::max(end, span.begin + span.size);
  }
  if (end == 0) return {};
  return {base_[static_cast<int>(buffer)] + begin * element_bytes_, (end - begin) * element_bytes_};
}

size_t Geometry::bytes(std::span<const Region> regions, uint32_t tile) const {
  size_t total = 0;
  for (const Region& region : regions) {
    for (uint32_t i = 0; i < region.count; ++i) total += piece(region.buffer, region.first + i, tile).bytes;
  }
  return total;
}

void Geometry::pieces(std::span<const Region> regions, uint32_t tile, std::vector<Piece>* out) const {
  out->clear();
  for (const Region& region : regions) {
    for (uint32_t i = 0; i < region.count; ++i) {
      const Piece next = piece(region.buffer, region.first + i, tile);
      if (next.bytes == 0) continue;
      if (!out->empty() && out->back().data + out->back().bytes == next.data) {
        out->back().bytes += next.bytes;
      } else {
        out->push_back(next);
      }
    }
  }
}

void Geometry::pieces(std::span<const Region> regions, std::span<const Region> other, uint32_t tile,
                      std::vector<Piece>* out, std::vector<Piece>* other_out) const {
  out->clear();
  other_out->clear();
  size_t other_region = 0;
  uint32_t other_chunk = 0;
  for (const Region& region : regions) {
    for (uint32_t i = 0; i < region.count; ++i) {
      while (other_chunk >= other[other_region].count) {
        ++other_region;
        other_chunk = 0;
      }
      const Piece next = piece(region.buffer, region.first + i, tile);
      const Piece beside = piece(other[other_region].buffer, other[other_region].first + other_chunk++, tile);
      if (next.bytes == 0) continue;
      if (!out->empty() && out->back().data + out->back().bytes == next.data &&
          other_out->back().data + other_out->back().bytes == beside.data) {
        out->back().bytes += next.bytes;
        other_out->back().bytes += next.bytes;
      } else {
        out->push_back(next);
        other_out->push_back(beside);
      }
    }
  }
}

}  // namespace weft
