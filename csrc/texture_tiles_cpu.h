// Gradient of a texture on the CPU: the order in which lookups are added. What depends neither on the type of the
// numbers nor on the channels; texture_scatter_cpu.cpp, the only file to include this, fills that in.
#pragma once

#include <cstring>
#include <memory>
#include <numeric>

#include "core/launch.h"
#include "texture_scatter_cpu.h"

namespace diffrender {

constexpr int64_t kLookupsPerChunk = 8192, kMaxChunks = 128, kDirectParts = 16;
constexpr int64_t kDirectBytes = 1400000;  // a gradient below this size in double is one tile, and nothing is sorted
constexpr int64_t kDirectBytesOfParts = 8 << 20;        // together
constexpr int64_t kEntriesPerRound = int64_t(1) << 23;  // bounds the memory of the sorted lookups
constexpr int64_t kEntriesPerPart = int64_t(1) << 16;

// Entries from `begin` on that fall on one tile. Neighbouring lookups mostly share theirs.
struct TileRun {
  int32_t tile, begin;
};

// Entries of a chunk in the order of the lookups. Kept by each thread: fresh memory would cost more than what is done
// with it.
struct FoundEntries {
  std::vector<double> storage;
  std::vector<TileRun> runs;  // and one behind them, which begins at the end
  int64_t capacity = 0;       // entries
  int32_t used = 0, run_count = 0, last_tile = -1;

  __attribute__((noinline)) void reserve(int64_t more, int64_t entry_bytes) {
    if ((used + more) * entry_bytes > static_cast<int64_t>(storage.size() * sizeof(double)) || used + more > capacity) {
      capacity = std::max<int64_t>(2 * (used + more), 2 * kLookupsPerChunk);
      storage.resize(capacity * entry_bytes / sizeof(double) + 1);
      runs.resize(capacity + 1);
    }
  }
};

// Lookups [begin, end) of a target.
struct Chunk {
  int64_t target, begin, end;
  std::unique_ptr<double[]> entries;  // sorted by tile, in the order of the lookups within one
  std::unique_ptr<int32_t[]> start;   // [tiles + 1] entries of each tile
};

// size sums become numbers of a gradient, or are added to them; null: zeros.
using WriteSums = void (*)(void* grad, int64_t first, int64_t size, const double* sums, bool fresh);

class TextureScatter {
 public:
  TextureScatter(const TiledLevels& tiled, int64_t targets, int64_t lookups, int64_t entry_bytes, WriteSums write)
      : tiled_(tiled),
        targets_(targets),
        per_target_(lookups / targets),
        entry_bytes_(entry_bytes),
        n_(tiled.channels),
        write_(write) {}

  void run(int64_t entries_per_lookup) {
    if (tiled_.texel_count * n_ * int64_t(sizeof(double)) <= kDirectBytes) {
      add_directly();
    } else {
      add_sorted(entries_per_lookup);
    }
  }

 protected:
  // Adds lookups to all levels at once.
  virtual void add_lookups(int64_t begin, int64_t end, double* sums) const = 0;
  virtual void find_entries(const Chunk& chunk, FoundEntries* found) const = 0;
  // Moves entries to their place in the order of the tiles. next: where that of each tile is; it moves on.
  virtual void sort_entries(const FoundEntries& found, int32_t* next, double* entries) const = 0;
  // Sums of a tile over some chunks.
  virtual void add_entries(const Chunk* first, const Chunk* last, int32_t tile, double* sums) const = 0;
  ~TextureScatter() = default;

  const TiledLevels& tiled_;

 private:
  // Chunks [first, last) of one target; `fresh`: nothing has been written to its gradient before.
  struct Round {
    int64_t first, last;
    bool fresh;
  };

  const int64_t targets_, per_target_, entry_bytes_;
  const int n_;
  const WriteSums write_;
  std::vector<Chunk> chunks_;
  std::vector<Round> rounds_;

  // All levels of a small texture in one buffer for each part of the lookups.
  void add_directly() const {
    const int64_t size = tiled_.sum_count, useful = std::max<int64_t>(per_target_ / kLookupsPerChunk, 1);
    const int64_t affordable = kDirectBytesOfParts / std::max<int64_t>(size * int64_t(sizeof(double)), 1);
    const int64_t parts = std::clamp<int64_t>(std::min(kDirectParts, affordable) / targets_, 1, useful);
    const std::unique_ptr<double[]> sums(new double[parts > 1 ? targets_ * parts * size : 0]);
    parallel_tasks(targets_ * parts, [&](int64_t task) {
      const int64_t target = task / parts, start = target * per_target_, part = task % parts;
      std::unique_ptr<double[]> own(parts > 1 ? nullptr : new double[size]);
      double* const buffer = parts > 1 ? sums.get() + task * size : own.get();
      std::memset(buffer, 0, sizeof(double) * size);
      add_lookups(start + part * per_target_ / parts, start + (part + 1) * per_target_ / parts, buffer);
      if (parts == 1) write_levels(target, buffer);
    });
    if (parts == 1) return;
    parallel_tasks(targets_, [&](int64_t target) {
      double* const sum = sums.get() + target * parts * size;
      add_parts(sum, parts, size);
      write_levels(target, sum);
    });
  }

  // Adds parts 1, 2, ... to part 0.
  __attribute__((noinline)) static void add_parts(double* sum, int64_t parts, int64_t size) {
    for (int64_t part = 1; part < parts; ++part) {
      for (int64_t k = 0; k < size; ++k) sum[k] += sum[part * size + k];
    }
  }

  void write_levels(int64_t target, const double* sums) const {
    for (const auto& level : tiled_.levels) {
      if (level.grad == nullptr) continue;
      const int64_t size = static_cast<int64_t>(level.width) * level.rows * n_;
      std::vector<double> texels;
      if (level.in_squares) texels = sums_of_squares(level, sums + level.first_sum);
      write_(level.grad, target * level.item_stride, size, level.in_squares ? texels.data() : sums + level.first_sum,
             true);
    }
  }

  // squares: [rows][width][n][4] sums of the four texels from each texel on.
  std::vector<double> sums_of_squares(const TiledLevels::Level& level, const double* squares) const {
    std::vector<double> texels(static_cast<size_t>(level.width) * level.rows * n_, 0.0);
    for (int32_t y = 0; y < level.rows; ++y) {
      const int32_t below = y + 1 < level.rows ? y + 1 : tiled_.repeats_v ? 0 : y;
      for (int32_t x = 0; x < level.width; ++x) {
        const int32_t beside = x + 1 < level.width ? x + 1 : tiled_.repeats_u ? 0 : x;
        const int32_t to[4] = {y * level.width + x, y * level.width + beside, below * level.width + x,
                               below * level.width + beside};
        for (int c = 0; c < n_; ++c) {
          for (int k = 0; k < 4; ++k) texels[to[k] * n_ + c] += *squares++;
        }
      }
    }
    return texels;
  }

  void add_sorted(int64_t entries_per_lookup) {
    const int64_t count = std::clamp<int64_t>((per_target_ + kLookupsPerChunk - 1) / kLookupsPerChunk, 1, kMaxChunks);
    const int64_t per_chunk = std::max<int64_t>(entries_per_lookup * per_target_ / count, 1);
    const int64_t per_round = std::max<int64_t>(kEntriesPerRound / per_chunk, 1);
    const int64_t total = targets_ * count;
    chunks_.resize(total);
    for (int64_t i = 0; i < total; ++i) {
      const int64_t target = i / count, c = i % count;
      chunks_[i].target = target;
      chunks_[i].begin = target * per_target_ + c * per_target_ / count;
      chunks_[i].end = target * per_target_ + (c + 1) * per_target_ / count;
    }
    for (int64_t begin = 0; begin < total; begin += per_round) {
      const int64_t end = std::min(begin + per_round, total);
      parallel_tasks(end - begin, [&](int64_t i) { sort(&chunks_[begin + i]); });
      rounds_.clear();
      for (int64_t first = begin; first < end;) {
        // Chunks of the same target.
        int64_t last = first;
        while (last < end && chunks_[last].target == chunks_[first].target) ++last;
        rounds_.push_back({first, last, first % count == 0});
        first = last;
      }
      add_tiles();
      for (int64_t i = begin; i < end; ++i) chunks_[i].entries.reset(), chunks_[i].start.reset();
    }
  }

  void sort(Chunk* chunk) const {
    static thread_local FoundEntries kept;
    FoundEntries& found = kept;  // so that its address is asked for once
    found.used = found.run_count = 0;
    found.last_tile = -1;
    found.reserve(1, entry_bytes_);
    find_entries(*chunk, &found);
    found.runs[found.run_count] = {-1, found.used};
    chunk->start.reset(new int32_t[tiled_.tile_count + 1]());
    int32_t* const start = chunk->start.get();
    for (const TileRun* run = found.runs.data(); run < found.runs.data() + found.run_count; ++run) {
      start[run->tile + 1] += run[1].begin - run->begin;
    }
    std::partial_sum(start, start + tiled_.tile_count + 1, start);
    chunk->entries.reset(new double[found.used * entry_bytes_ / sizeof(double) + 1]);
    sort_entries(found, start, chunk->entries.get());
    // Every start has moved to the start of the next tile.
    for (int32_t t = tiled_.tile_count; t > 0; --t) start[t] = start[t - 1];
    start[0] = 0;
    if (found.capacity > 16 * kLookupsPerChunk) found = {};
  }

  void add_tiles() const {
    const int64_t tiles = tiled_.tile_count;
    const int64_t buffer_size = static_cast<int64_t>(n_) << (2 * tiled_.shift);
    // Tiles in several parts are rare: their sums wait until all parts are there.
    struct Shared {
      int64_t round;
      int32_t tile;
      int64_t parts, slot;
    };
    std::vector<Shared> shared;
    std::vector<uint8_t> waits(rounds_.size() * tiles, 0);
    int64_t slots = 0;
    for (size_t r = 0; r < rounds_.size(); ++r) {
      const auto [first, last, fresh] = rounds_[r];
      std::vector<int64_t> counts(tiles, 0);
      for (int64_t c = first; c < last; ++c) {
        const int32_t* const start = chunks_[c].start.get();
        for (int64_t t = 0; t < tiles; ++t) counts[t] += start[t + 1] - start[t];
      }
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t parts = std::min((counts[t] + kEntriesPerPart - 1) / kEntriesPerPart, last - first);
        if (parts <= 1) continue;
        shared.push_back({static_cast<int64_t>(r), static_cast<int32_t>(t), parts, slots});
        waits[r * tiles + t] = 1;
        slots += parts;
      }
    }
    const std::unique_ptr<double[]> sums(new double[slots * buffer_size]);
    std::vector<std::pair<int64_t, int64_t>> parts;  // index into `shared`, part
    for (size_t s = 0; s < shared.size(); ++s) {
      for (int64_t p = 0; p < shared[s].parts; ++p) parts.push_back({static_cast<int64_t>(s), p});
    }
    parallel_tasks(static_cast<int64_t>(parts.size()), [&](int64_t i) {
      const Shared& tile = shared[parts[i].first];
      const auto [first, last, fresh] = rounds_[tile.round];
      const int64_t p = parts[i].second, n = last - first;
      add_chunks(first + p * n / tile.parts, first + (p + 1) * n / tile.parts, tile.tile,
                 sums.get() + (tile.slot + p) * buffer_size);
    });
    parallel_tasks(static_cast<int64_t>(shared.size()), [&](int64_t i) {
      const Shared& tile = shared[i];
      double* const sum = sums.get() + tile.slot * buffer_size;
      add_parts(sum, tile.parts, buffer_size);
      const auto [first, last, fresh] = rounds_[tile.round];
      write_tile(chunks_[first].target, tile.tile, sum, fresh);
    });
    // Some tiles per task, so that a task clears its buffer into a cache that it warmed itself.
    parallel_ranges(static_cast<int64_t>(rounds_.size()) * tiles, 8, [&](int64_t begin, int64_t end) {
      std::unique_ptr<double[]> buffer;
      for (int64_t i = begin; i < end; ++i) {
        if (waits[i]) continue;
        const auto [first, last, fresh] = rounds_[i / tiles];
        const int32_t tile = static_cast<int32_t>(i % tiles);
        bool any = false;
        for (int64_t c = first; c < last && !any; ++c) any = chunks_[c].start[tile + 1] > chunks_[c].start[tile];
        if (any) {
          if (!buffer) buffer.reset(new double[buffer_size]);
          add_chunks(first, last, tile, buffer.get());
        }
        if (any || fresh) write_tile(chunks_[first].target, tile, any ? buffer.get() : nullptr, fresh);
      }
    });
  }

  void add_chunks(int64_t first, int64_t last, int32_t tile, double* sums) const {
    std::memset(sums, 0, sizeof(double) * (static_cast<int64_t>(n_) << (2 * tiled_.shift)));
    add_entries(chunks_.data() + first, chunks_.data() + last, tile, sums);
  }

  // The sums of a tile (null: none) become its gradient, or are added to it.
  __attribute__((noinline)) void write_tile(int64_t target, int32_t tile, const double* sums, bool fresh) const {
    size_t l = tiled_.levels.size() - 1;
    while (tiled_.levels[l].grad == nullptr || tiled_.levels[l].first_tile > tile) --l;
    const auto& level = tiled_.levels[l];
    const int32_t side = 1 << tiled_.shift, index = tile - level.first_tile;
    const int32_t row0 = index / level.tiles_per_row << tiled_.shift;
    const int32_t column0 = index % level.tiles_per_row << tiled_.shift;
    const int64_t size = static_cast<int64_t>(std::min(side, level.width - column0)) * n_;
    for (int32_t r = 0; r < std::min(side, level.rows - row0); ++r) {
      const int64_t texel = static_cast<int64_t>(row0 + r) * level.width + column0;
      write_(level.grad, target * level.item_stride + texel * n_, size,
             sums == nullptr ? nullptr : sums + (static_cast<int64_t>(r) << tiled_.shift) * n_, fresh);
    }
  }
};

}  // namespace diffrender
