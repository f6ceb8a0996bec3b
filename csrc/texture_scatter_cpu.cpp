// Gradient of a texture on the CPU. Lookups are sorted by the square tile of texels that they touch; every tile is then
// summed in double precision, in the order of the lookups, in a buffer that fits the cache, and written once.
//
// So the sum on a texel is right to the last digits however many lookups meet there, it is the same for any number of
// threads, nothing is cleared or summed per thread, and random lookups into a large texture stay within the cache.
// A tile that very many lookups share is summed in parts, whose number depends on counts alone. A small texture is a
// single tile: its lookups are added as they come. Its smallest levels, where neighbouring lookups meet in the same few
// texels, keep the four sums of a square side by side: one addition of four numbers per lookup instead of two or four
// that wait for those of the lookup before. Squares are summed to texels in the end.
#include "texture_scatter_cpu.h"

#include <cstring>
#include <memory>
#include <numeric>

#include "core/launch.h"
#include "texture_backward.h"

namespace diffrender {
namespace {

constexpr int64_t kLookupsPerChunk = 8192, kMaxChunks = 128, kDirectParts = 16;
constexpr int64_t kDirectBytes = 1400000;   // a gradient below this size in double is one tile, and nothing is sorted
constexpr int64_t kSquareBytes = 16 << 10;  // a level below this size in squares is kept in them
constexpr int64_t kDirectBytesOfParts = 8 << 20;        // together
constexpr int64_t kEntriesPerRound = int64_t(1) << 23;  // bounds the memory of the sorted lookups
constexpr int64_t kEntriesPerPart = int64_t(1) << 16;
constexpr int64_t kTileBytes = 64 << 10;

// ---- what depends neither on the type of the numbers nor on the channels

// Entries from `begin` on that fall on one tile. Neighbouring lookups mostly share theirs.
struct Run {
  int32_t tile, begin;
};

// Entries of a chunk in the order of the lookups. Kept by each thread: fresh memory would cost more than what is done
// with it.
struct FoundEntries {
  std::vector<double> storage;
  std::vector<Run> runs;  // and one behind them, which begins at the end
  int64_t capacity = 0;   // entries
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
    for (const Run* run = found.runs.data(); run < found.runs.data() + found.run_count; ++run) {
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

// ---- what depends on the type of the numbers

template <class scalar_t>
void write_sums(void* grad, int64_t first, int64_t size, const double* sums, bool fresh) {
  scalar_t* const out = static_cast<scalar_t*>(grad) + first;
  if (sums == nullptr) {
    std::memset(out, 0, sizeof(scalar_t) * size);
  } else if (fresh) {
    for (int64_t k = 0; k < size; ++k) out[k] = static_cast<scalar_t>(sums[k]);
  } else {
    for (int64_t k = 0; k < size; ++k) out[k] = static_cast<scalar_t>(out[k] + sums[k]);
  }
}

template <class scalar_t>
const TiledLevels::Level& level_of(const TiledLevels& tiled, const TextureShares<scalar_t>& block, int i) {
  return tiled.levels[block.level_of(i)];
}

// Tile of each lookup and texel within it; -1 where it is no square, or one across tiles.
template <class scalar_t>
__attribute__((noinline)) void find_tiles(const TiledLevels& tiled, const TextureShares<scalar_t>& block,
                                          int32_t* tiles, int32_t* texels) {
  const auto& taps = block.taps;
  const int32_t shift = tiled.shift, within = (1 << shift) - 1;
  const auto find = [&](const auto& level, int i) {
    const int32_t row = taps.row[i], column = taps.column[i], y = row & within, x = column & within;
    tiles[i] = level.first_tile + (row >> shift) * level.tiles_per_row + (column >> shift);
    texels[i] = (taps.regular[i] > 0) & (x < within) & (y < within) ? (y << shift) + x : -1;
  };
  if (taps.one_level) {
    const auto& level = level_of(tiled, block, 0);
#pragma omp simd
    for (int i = 0; i < block.n; ++i) find(level, i);
    return;
  }
  for (int i = 0; i < block.n; ++i) find(level_of(tiled, block, i), i);
}

template <class scalar_t>
struct SingleTexels {
  int count;
  int32_t tile[4], texel[4];
  scalar_t weight[4];
};

// Every texel of a lookup by itself.
template <class scalar_t>
__attribute__((noinline)) SingleTexels<scalar_t> single_texels(const TiledLevels& tiled,
                                                               const TextureShares<scalar_t>& block, int i,
                                                               scalar_t weight) {
  const auto& level = level_of(tiled, block, i);
  const int32_t shift = tiled.shift, within = (1 << shift) - 1;
  scalar_t weights[4];
  tap_weights(block.taps, i, weight, weights);
  SingleTexels<scalar_t> result{};
  for (int k = 0; k < 4; ++k) {
    const int32_t tap = block.taps.at(k, i);
    if (tap < 0 || weights[k] == 0) continue;
    const int32_t y = tap / level.width, x = tap - y * level.width;
    result.tile[result.count] = level.first_tile + (y >> shift) * level.tiles_per_row + (x >> shift);
    result.texel[result.count] = ((y & within) << shift) + (x & within);
    result.weight[result.count++] = weights[k];
  }
  return result;
}

// ---- what depends on the channels: their count where it is 1, 3 or 4, else 0

// A square of texels, or a single one, whose weight stands in x. Few channels bring the gradient of their lookup along.
template <class scalar_t, int kChannels>
struct TexelEntry {
  int32_t texel;  // tap 0 within its tile; a single texel: -1 - texel
  scalar_t x, y;
  scalar_t values[kChannels];  // weighted
};

template <class scalar_t>
struct TexelEntry<scalar_t, 0> {
  int32_t texel;
  scalar_t x, y, weight;
  int32_t lookup;  // within its chunk
};

// low and high: rows of a square of texels.
template <int kChannels, class scalar_t>
inline __attribute__((always_inline)) void add_square(double* low, double* high, int channels, double x, double y,
                                                      double weight, const scalar_t* g) {
  const int n = kChannels > 0 ? kChannels : channels;
  const double w_low = weight * (1 - y), w_high = weight * y;
  const double w00 = w_low * (1 - x), w10 = w_low * x, w01 = w_high * (1 - x), w11 = w_high * x;
#pragma omp simd
  for (int c = 0; c < n; ++c) {
    const double value = g[c];
    low[c] += w00 * value;
    high[c] += w01 * value;
  }
#pragma omp simd
  for (int c = 0; c < n; ++c) {
    const double value = g[c];
    low[n + c] += w10 * value;
    high[n + c] += w11 * value;
  }
}

using FourSums = double __attribute__((vector_size(32), aligned(8), may_alias));

// square: [n][4] sums.
template <int kChannels, class scalar_t>
inline __attribute__((always_inline)) void add_to_sums_of_square(double* square, int channels, double x, double y,
                                                                 double weight, const scalar_t* g) {
  const int n = kChannels > 0 ? kChannels : channels;
  const double w_low = weight * (1 - y), w_high = weight * y;
  const FourSums weights = {w_low * (1 - x), w_low * x, w_high * (1 - x), w_high * x};
  for (int c = 0; c < n; ++c) {
    FourSums& sums = *reinterpret_cast<FourSums*>(square + 4 * c);
    sums += weights * static_cast<double>(g[c]);
  }
}

template <class scalar_t, int kChannels>
class ChannelScatter final : public TextureScatter {
 public:
  ChannelScatter(const TiledLevels& tiled, const scalar_t* grad_values, int64_t targets, int64_t lookups,
                 const ScatterSource<scalar_t>& source)
      : TextureScatter(tiled, targets, lookups, sizeof(Entry), write_sums<scalar_t>),
        grad_values_(grad_values),
        source_(source),
        n_(kChannels > 0 ? kChannels : tiled.channels) {}

 private:
  using Entry = TexelEntry<scalar_t, kChannels>;

  const scalar_t* grad_values_;
  const ScatterSource<scalar_t>& source_;
  const int n_;

  void add_lookups(int64_t begin, int64_t end, double* sums) const override {
    source_(begin, end, [&](const TextureShares<scalar_t>& block) { add_block(block, sums); });
  }

  void add_block(const TextureShares<scalar_t>& block, double* buffer) const {
    const auto& taps = block.taps;
    const TiledLevels::Level* level = &level_of(tiled_, block, 0);
    if (taps.one_level && level->grad == nullptr) return;
    const int32_t any_square = tiled_.first_tap_tells ? 0 : 1;
    const scalar_t* g = grad_values_ + block.first * n_;
    for (int i = 0; i < block.n; ++i, g += n_) {
      if (!taps.one_level) level = &level_of(tiled_, block, i);
      const scalar_t weight = block.weight_of(i);
      if (!(weight > 0) || level->grad == nullptr) continue;
      double* const sums = buffer + level->first_sum;
      const int64_t first = static_cast<int64_t>(taps.tap[0][i]) * n_;
      if (level->in_squares && taps.regular[i] >= any_square) {
        add_to_sums_of_square<kChannels>(sums + 4 * first, n_, taps.x[i], taps.y[i], weight, g);
      } else if (!level->in_squares && taps.regular[i] > 0) {
        double* const low = sums + first;
        add_square<kChannels>(low, low + static_cast<int64_t>(level->width) * n_, n_, taps.x[i], taps.y[i], weight, g);
      } else {
        add_texels(taps, i, weight, level->in_squares, g, sums);
      }
    }
  }

  __attribute__((noinline)) void add_texels(const TextureTaps<scalar_t>& taps, int i, scalar_t weight, bool in_squares,
                                            const scalar_t* g, double* sums) const {
    const int64_t stride = in_squares ? 4 : 1;  // a texel is the first of its square
    scalar_t weights[4];
    tap_weights(taps, i, weight, weights);
    for (int k = 0; k < 4; ++k) {
      const int32_t tap = taps.at(k, i);
      if (tap < 0) continue;
      double* const single = sums + static_cast<int64_t>(tap) * n_ * stride;
      const double w = weights[k];
      for (int c = 0; c < n_; ++c) single[c * stride] += w * g[c];
    }
  }

  // The gradient of a lookup goes into its entry, weighted, or the place where it stands does.
  static void fill(const scalar_t* g, int32_t lookup, scalar_t weight, Entry* entry) {
    if constexpr (kChannels > 0) {
      for (int c = 0; c < kChannels; ++c) entry->values[c] = weight * g[c];
    } else {
      entry->weight = weight;
      entry->lookup = lookup;
    }
  }

  void find_entries(const Chunk& chunk, FoundEntries* found) const override {
    source_(chunk.begin, chunk.end,
            [&](const TextureShares<scalar_t>& block) { find_entries_of(block, chunk.begin, found); });
  }

  void find_entries_of(const TextureShares<scalar_t>& block, int64_t first, FoundEntries* found) const {
    const auto& taps = block.taps;
    if (taps.one_level && level_of(tiled_, block, 0).grad == nullptr) return;
    found->reserve(4 * block.n, sizeof(Entry));
    int32_t tiles[kTextureBlock], texels[kTextureBlock];
    find_tiles(tiled_, block, tiles, texels);
    const scalar_t* g = grad_values_ + block.first * n_;
    int32_t lookup = static_cast<int32_t>(block.first - first);
    Entry* const entries = reinterpret_cast<Entry*>(found->storage.data());
    Run* run = found->runs.data() + found->run_count;
    int32_t used = found->used, last_tile = found->last_tile;
    const auto entry_of = [&](int32_t tile) {
      if (tile != last_tile) *run++ = {tile, used};
      last_tile = tile;
      return entries + used++;
    };
    for (int i = 0; i < block.n; ++i, g += n_, ++lookup) {
      const scalar_t weight = block.weight_of(i);
      if (!(weight > 0) || (!taps.one_level && level_of(tiled_, block, i).grad == nullptr)) continue;
      if (texels[i] >= 0) {
        Entry* const entry = entry_of(tiles[i]);
        entry->texel = texels[i];
        entry->x = taps.x[i];
        entry->y = taps.y[i];
        fill(g, lookup, weight, entry);
        continue;
      }
      const SingleTexels<scalar_t> single = single_texels(tiled_, block, i, weight);
      for (int k = 0; k < single.count; ++k) {
        Entry* const entry = entry_of(single.tile[k]);
        entry->texel = -1 - single.texel[k];
        entry->x = entry->y = 0;
        fill(g, lookup, single.weight[k], entry);
      }
    }
    found->used = used;
    found->run_count = static_cast<int32_t>(run - found->runs.data());
    found->last_tile = last_tile;
  }

  void sort_entries(const FoundEntries& found, int32_t* next, double* entries) const override {
    const Entry* const from = reinterpret_cast<const Entry*>(found.storage.data());
    Entry* const to = reinterpret_cast<Entry*>(entries);
    const Run* const last = found.runs.data() + found.run_count;
    for (const Run* run = found.runs.data(); run < last; ++run) {
      const int32_t begin = run[0].begin, end = run[1].begin, place = next[run->tile];
      for (int32_t e = begin; e < end; ++e) to[place + e - begin] = from[e];
      next[run->tile] = place + end - begin;
    }
  }

  void add_entries(const Chunk* first, const Chunk* last, int32_t tile, double* sums) const override {
    const int64_t row = static_cast<int64_t>(n_) << tiled_.shift;
    for (const Chunk* chunk = first; chunk < last; ++chunk) {
      const Entry* const entries = reinterpret_cast<const Entry*>(chunk->entries.get());
      const Entry* const end = entries + chunk->start[tile + 1];
      for (const Entry* entry = entries + chunk->start[tile]; entry < end; ++entry) {
        const scalar_t* g;
        double weight = 1;
        if constexpr (kChannels > 0) {
          g = entry->values;
        } else {
          g = grad_values_ + (chunk->begin + entry->lookup) * n_;
          weight = entry->weight;
        }
        if (entry->texel < 0) {
          double* const texel = sums + static_cast<int64_t>(-1 - entry->texel) * n_;
          for (int k = 0; k < n_; ++k) texel[k] += weight * g[k];
          continue;
        }
        double* const low = sums + static_cast<int64_t>(entry->texel) * n_;
        add_square<kChannels>(low, low + row, n_, entry->x, entry->y, weight, g);
      }
    }
  }
};

}  // namespace

TiledLevels::TiledLevels(int64_t channel_count) : channels(static_cast<int32_t>(channel_count)) {
  shift = 7;
  while (shift > 2 && (int64_t(sizeof(double)) * channel_count << (2 * shift)) > kTileBytes) --shift;
}

void TiledLevels::add(void* grad, int64_t item_stride, int32_t width, int32_t rows) {
  const int32_t side = 1 << shift, per_row = (width + side - 1) >> shift, per_column = (rows + side - 1) >> shift;
  const int64_t texels = static_cast<int64_t>(width) * rows, sums = texels * channels;
  const bool in_squares = 4 * sums * int64_t(sizeof(double)) <= kSquareBytes;
  levels.push_back({grad, item_stride, width, rows, per_row, tile_count, in_squares, sum_count});
  texel_count += texels;
  sum_count += in_squares ? 4 * sums : sums;
  if (grad != nullptr) tile_count += per_row * per_column;
}

template <class scalar_t>
void scatter_texels(const TiledLevels& tiled, const scalar_t* grad_values, int64_t targets, int64_t lookups,
                    int64_t entries_per_lookup, const ScatterSource<scalar_t>& source) {
  if (targets == 0 || tiled.tile_count == 0 || tiled.channels == 0) return;
  const auto go = [&](auto count) {
    ChannelScatter<scalar_t, decltype(count)::value>(tiled, grad_values, targets, lookups, source)
        .run(entries_per_lookup);
  };
  if constexpr (std::is_same_v<scalar_t, float>) {
    if (tiled.channels == 1) return go(std::integral_constant<int, 1>());
    if (tiled.channels == 3) return go(std::integral_constant<int, 3>());
    if (tiled.channels == 4) return go(std::integral_constant<int, 4>());
  }
  go(std::integral_constant<int, 0>());
}

template void scatter_texels(const TiledLevels&, const float*, int64_t, int64_t, int64_t, const ScatterSource<float>&);
template void scatter_texels(const TiledLevels&, const double*, int64_t, int64_t, int64_t,
                             const ScatterSource<double>&);

}  // namespace diffrender
