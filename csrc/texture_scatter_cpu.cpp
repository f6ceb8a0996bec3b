// Gradient of a texture on the CPU. Lookups are sorted by the square tile of texels that they touch; every tile is then
// summed in double precision, in the order of the lookups, in a buffer that fits the cache, and written once.
//
// So the sum on a texel is right to the last digits however many lookups meet there, it is the same for any number of
// threads, nothing is cleared or summed per thread, and random lookups into a large texture stay within the cache.
// A tile that very many lookups share is summed in parts, whose number depends on counts alone. A small texture is a
// single tile: its lookups are added as they come.
#include "texture_scatter_cpu.h"

#include <cstring>
#include <memory>
#include <numeric>

#include "core/launch.h"
#include "texture_backward.h"

namespace diffrender {
namespace {

constexpr int64_t kLookupsPerChunk = 8192, kMaxChunks = 128, kDirectParts = 16;
constexpr int64_t kDirectBytes = 1 << 20;  // a gradient below this size in double is one tile, and nothing is sorted
constexpr int64_t kDirectBytesOfParts = 8 << 20;        // together
constexpr int64_t kEntriesPerRound = int64_t(1) << 23;  // bounds the memory of the sorted lookups
constexpr int64_t kEntriesPerPart = int64_t(1) << 16;
constexpr int64_t kTileBytes = 64 << 10;

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

template <class scalar_t, int kChannels>
class TextureScatter {
 public:
  TextureScatter(const TiledLevels<scalar_t>& tiled, const scalar_t* grad_values, int64_t targets, int64_t lookups,
                 const ScatterSource<scalar_t>& source)
      : tiled_(tiled),
        grad_values_(grad_values),
        targets_(targets),
        per_target_(lookups / targets),
        n_(kChannels > 0 ? kChannels : tiled.channels),
        source_(source) {}

  // All levels of a small texture in one buffer for each part of the lookups.
  void add_directly() const {
    const int64_t size = tiled_.texel_count * n_, useful = std::max<int64_t>(per_target_ / kLookupsPerChunk, 1);
    const int64_t affordable = kDirectBytesOfParts / std::max<int64_t>(size * int64_t(sizeof(double)), 1);
    const int64_t parts = std::clamp<int64_t>(std::min(kDirectParts, affordable) / targets_, 1, useful);
    const std::unique_ptr<double[]> sums(new double[parts > 1 ? targets_ * parts * size : 0]);
    parallel_tasks(targets_ * parts, [&](int64_t task) {
      const int64_t target = task / parts, start = target * per_target_, part = task % parts;
      std::unique_ptr<double[]> own(parts > 1 ? nullptr : new double[size]);
      double* const buffer = parts > 1 ? sums.get() + task * size : own.get();
      std::memset(buffer, 0, sizeof(double) * size);
      source_(start + part * per_target_ / parts, start + (part + 1) * per_target_ / parts,
              [&](const ScatterBlock<scalar_t>& block) { add_block(block, buffer); });
      if (parts == 1) write_levels(target, buffer);
    });
    if (parts == 1) return;
    parallel_tasks(targets_, [&](int64_t target) {
      double* const sum = sums.get() + target * parts * size;
      for (int64_t part = 1; part < parts; ++part) {
        for (int64_t k = 0; k < size; ++k) sum[k] += sum[part * size + k];
      }
      write_levels(target, sum);
    });
  }

  void add_sorted(int64_t entries_per_lookup) {
    const int64_t count = std::clamp<int64_t>((per_target_ + kLookupsPerChunk - 1) / kLookupsPerChunk, 1, kMaxChunks);
    const int64_t per_chunk = std::max<int64_t>(entries_per_lookup * per_target_ / count, 1);
    const int64_t per_round = std::max<int64_t>(kEntriesPerRound / per_chunk, 1);
    std::vector<Chunk> chunks(targets_ * count);
    const int64_t total = targets_ * count;
    for (int64_t i = 0; i < total; ++i) {
      const int64_t target = i / count, c = i % count;
      chunks[i].target = target;
      chunks[i].begin = target * per_target_ + c * per_target_ / count;
      chunks[i].end = target * per_target_ + (c + 1) * per_target_ / count;
    }
    for (int64_t begin = 0; begin < total; begin += per_round) {
      const int64_t end = std::min(begin + per_round, total);
      parallel_tasks(end - begin, [&](int64_t i) { sort(&chunks[begin + i]); });
      rounds_.clear();
      for (int64_t first = begin; first < end;) {
        // Chunks of the same target.
        int64_t last = first;
        while (last < end && chunks[last].target == chunks[first].target) ++last;
        rounds_.push_back({first, last, first % count == 0});
        first = last;
      }
      add_tiles(chunks);
      for (int64_t i = begin; i < end; ++i) chunks[i].entries.reset(), chunks[i].start.reset();
    }
  }

 private:
  using Entry = TexelEntry<scalar_t, kChannels>;

  // Lookups [begin, end) of a target.
  struct Chunk {
    int64_t target, begin, end;
    std::unique_ptr<Entry[]> entries;  // sorted by tile, in the order of the lookups within one
    std::unique_ptr<int32_t[]> start;  // [tiles + 1] entries of each tile
  };

  // Chunks [first, last) of one target; `fresh`: nothing has been written to its gradient before.
  struct Round {
    int64_t first, last;
    bool fresh;
  };

  // Entries from `begin` on that fall on one tile. Neighbouring lookups mostly share theirs.
  struct Run {
    int32_t tile, begin;
  };

  const TiledLevels<scalar_t>& tiled_;
  const scalar_t* grad_values_;
  int64_t targets_, per_target_;
  int n_;
  const ScatterSource<scalar_t>& source_;
  std::vector<Round> rounds_;

  void add_block(const ScatterBlock<scalar_t>& block, double* buffer) const {
    const auto& taps = block.taps;
    if (taps.one_level && level_of(block, 0).grad == nullptr) return;
    for (int i = 0; i < block.n; ++i) {
      const auto& level = level_of(block, i);
      const scalar_t weight = block.weight == nullptr ? scalar_t(1) : block.weight[i];
      if (level.grad == nullptr || !(weight > 0)) continue;
      const scalar_t* const g = grad_values_ + (block.first + i) * n_;
      double* const texel = buffer + level.first_texel * n_;
      if (taps.regular[i] > 0) {
        double* const low = texel + static_cast<int64_t>(taps.tap[0][i]) * n_;
        add_square<kChannels>(low, low + static_cast<int64_t>(level.width) * n_, n_, taps.x[i], taps.y[i], weight, g);
        continue;
      }
      scalar_t weights[4];
      tap_weights(taps, i, weight, weights);
      for (int k = 0; k < 4; ++k) {
        if (taps.tap[k][i] < 0) continue;
        double* const single = texel + static_cast<int64_t>(taps.tap[k][i]) * n_;
        const double w = weights[k];
        for (int c = 0; c < n_; ++c) single[c] += w * g[c];
      }
    }
  }

  void write_levels(int64_t target, const double* sums) const {
    for (const auto& level : tiled_.levels) {
      if (level.grad == nullptr) continue;
      const int64_t size = static_cast<int64_t>(level.width) * level.rows * n_;
      const double* const in = sums + level.first_texel * n_;
      scalar_t* const out = level.grad + target * level.item_stride;
      for (int64_t k = 0; k < size; ++k) out[k] = static_cast<scalar_t>(in[k]);
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

  // Tile of each lookup and texel within it; -1 where it is no square, or one across tiles.
  void find_tiles(const ScatterBlock<scalar_t>& block, int32_t* tiles, int32_t* texels) const {
    const auto& taps = block.taps;
    const int32_t shift = tiled_.shift, within = (1 << shift) - 1;
    const auto find = [&](const auto& level, int i) {
      const int32_t row = taps.row[i], column = taps.column[i], y = row & within, x = column & within;
      tiles[i] = level.first_tile + (row >> shift) * level.tiles_per_row + (column >> shift);
      texels[i] = (taps.regular[i] > 0) & (x < within) & (y < within) ? (y << shift) + x : -1;
    };
    if (taps.one_level) {
      const auto& level = level_of(block, 0);
#pragma omp simd
      for (int i = 0; i < block.n; ++i) find(level, i);
      return;
    }
    for (int i = 0; i < block.n; ++i) find(level_of(block, i), i);
  }

  const typename TiledLevels<scalar_t>::Level& level_of(const ScatterBlock<scalar_t>& block, int i) const {
    return tiled_.levels[block.level == nullptr ? 0 : block.level[i]];
  }

  void sort(Chunk* chunk) const {
    // Kept by each thread: fresh memory would cost more than what is done with it.
    static thread_local std::vector<Entry> found;
    static thread_local std::vector<Run> runs;
    const int32_t shift = tiled_.shift, within = (1 << shift) - 1;
    int64_t used = 0, run_count = 0;
    int32_t last_tile = -1;
    source_(chunk->begin, chunk->end, [&](const ScatterBlock<scalar_t>& block) {
      const auto& taps = block.taps;
      if (taps.one_level && level_of(block, 0).grad == nullptr) return;
      if (used + 4 * block.n > static_cast<int64_t>(found.size())) {
        found.resize(std::max<int64_t>(2 * used, 2 * kLookupsPerChunk));
        runs.resize(found.size());
      }
      int32_t tiles[kTextureBlock], texels[kTextureBlock];
      find_tiles(block, tiles, texels);
      const scalar_t* g = grad_values_ + block.first * n_;
      int32_t lookup = static_cast<int32_t>(block.first - chunk->begin);
      Entry* entry = found.data() + used;
      const auto start_run = [&](int32_t tile) {
        if (tile == last_tile) return;
        runs[run_count++] = {tile, static_cast<int32_t>(entry - found.data())};
        last_tile = tile;
      };
      for (int i = 0; i < block.n; ++i, g += n_, ++lookup) {
        const scalar_t weight = block.weight == nullptr ? scalar_t(1) : block.weight[i];
        if (!(weight > 0) || (!taps.one_level && level_of(block, i).grad == nullptr)) continue;
        if (texels[i] >= 0) {
          start_run(tiles[i]);
          entry->texel = texels[i];
          entry->x = taps.x[i];
          entry->y = taps.y[i];
          fill(g, lookup, weight, entry++);
          continue;
        }
        // Every texel by itself.
        const auto& level = level_of(block, i);
        scalar_t weights[4];
        tap_weights(taps, i, weight, weights);
        for (int k = 0; k < 4; ++k) {
          const int32_t tap = taps.at(k, i);
          if (tap < 0 || weights[k] == 0) continue;
          const int32_t y = tap / level.width, x = tap - y * level.width;
          start_run(level.first_tile + (y >> shift) * level.tiles_per_row + (x >> shift));
          entry->texel = -1 - (((y & within) << shift) + (x & within));
          entry->x = entry->y = 0;
          fill(g, lookup, weights[k], entry++);
        }
      }
      used = entry - found.data();
    });
    const auto end_of = [&](int64_t r) { return r + 1 < run_count ? runs[r + 1].begin : static_cast<int32_t>(used); };
    chunk->start.reset(new int32_t[tiled_.tile_count + 1]());
    int32_t* const start = chunk->start.get();
    for (int64_t r = 0; r < run_count; ++r) start[runs[r].tile + 1] += end_of(r) - runs[r].begin;
    std::partial_sum(start, start + tiled_.tile_count + 1, start);
    chunk->entries.reset(new Entry[used]);
    for (int64_t r = 0; r < run_count; ++r) {
      int32_t& to = start[runs[r].tile];
      for (int32_t e = runs[r].begin; e < end_of(r); ++e) chunk->entries[to++] = found[e];
    }
    // Every start has moved to the start of the next tile.
    for (int32_t t = tiled_.tile_count; t > 0; --t) start[t] = start[t - 1];
    start[0] = 0;
    if (found.size() > 16 * kLookupsPerChunk) found = {}, runs = {};
  }

  void add_tiles(const std::vector<Chunk>& chunks) const {
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
        const int32_t* const start = chunks[c].start.get();
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
      double* const buffer = sums.get() + (tile.slot + p) * buffer_size;
      std::memset(buffer, 0, sizeof(double) * buffer_size);
      add_chunks(chunks, first + p * n / tile.parts, first + (p + 1) * n / tile.parts, tile.tile, buffer);
    });
    parallel_tasks(static_cast<int64_t>(shared.size()), [&](int64_t i) {
      const Shared& tile = shared[i];
      double* const sum = sums.get() + tile.slot * buffer_size;
      for (int64_t p = 1; p < tile.parts; ++p) {
        for (int64_t k = 0; k < buffer_size; ++k) sum[k] += sum[p * buffer_size + k];
      }
      const auto [first, last, fresh] = rounds_[tile.round];
      write(chunks[first].target, tile.tile, sum, fresh);
    });
    // Some tiles per task, so that a task clears its buffer into a cache that it warmed itself.
    parallel_ranges(static_cast<int64_t>(rounds_.size()) * tiles, 8, [&](int64_t begin, int64_t end) {
      std::unique_ptr<double[]> buffer;
      for (int64_t i = begin; i < end; ++i) {
        if (waits[i]) continue;
        const auto [first, last, fresh] = rounds_[i / tiles];
        const int32_t tile = static_cast<int32_t>(i % tiles);
        bool any = false;
        for (int64_t c = first; c < last && !any; ++c) any = chunks[c].start[tile + 1] > chunks[c].start[tile];
        if (any) {
          if (!buffer) buffer.reset(new double[buffer_size]);
          std::memset(buffer.get(), 0, sizeof(double) * buffer_size);
          add_chunks(chunks, first, last, tile, buffer.get());
          write(chunks[first].target, tile, buffer.get(), fresh);
        } else if (fresh) {
          write(chunks[first].target, tile, nullptr, true);
        }
      }
    });
  }

  void add_chunks(const std::vector<Chunk>& chunks, int64_t first, int64_t last, int32_t tile, double* buffer) const {
    const int64_t row = static_cast<int64_t>(n_) << tiled_.shift;
    for (int64_t c = first; c < last; ++c) {
      const Chunk& chunk = chunks[c];
      const Entry* const end = chunk.entries.get() + chunk.start[tile + 1];
      for (const Entry* entry = chunk.entries.get() + chunk.start[tile]; entry < end; ++entry) {
        const scalar_t* g;
        double weight = 1;
        if constexpr (kChannels > 0) {
          g = entry->values;
        } else {
          g = grad_values_ + (chunk.begin + entry->lookup) * n_;
          weight = entry->weight;
        }
        if (entry->texel < 0) {
          double* const texel = buffer + static_cast<int64_t>(-1 - entry->texel) * n_;
          for (int k = 0; k < n_; ++k) texel[k] += weight * g[k];
          continue;
        }
        double* const low = buffer + static_cast<int64_t>(entry->texel) * n_;
        add_square<kChannels>(low, low + row, n_, entry->x, entry->y, weight, g);
      }
    }
  }

  // The sums of a tile (null: none) become its gradient, or are added to it.
  void write(int64_t target, int32_t tile, const double* sums, bool fresh) const {
    size_t l = tiled_.levels.size() - 1;
    while (tiled_.levels[l].grad == nullptr || tiled_.levels[l].first_tile > tile) --l;
    const auto& level = tiled_.levels[l];
    const int32_t side = 1 << tiled_.shift, n = n_, index = tile - level.first_tile;
    const int32_t row0 = index / level.tiles_per_row << tiled_.shift;
    const int32_t column0 = index % level.tiles_per_row << tiled_.shift;
    const int64_t size = static_cast<int64_t>(std::min(side, level.width - column0)) * n;
    for (int32_t r = 0; r < std::min(side, level.rows - row0); ++r) {
      scalar_t* const out =
          level.grad + target * level.item_stride + (static_cast<int64_t>(row0 + r) * level.width + column0) * n;
      if (sums == nullptr) {
        std::memset(out, 0, sizeof(scalar_t) * size);
        continue;
      }
      const double* const in = sums + (static_cast<int64_t>(r) << tiled_.shift) * n;
      for (int64_t k = 0; k < size; ++k) out[k] = static_cast<scalar_t>(fresh ? in[k] : out[k] + in[k]);
    }
  }
};

template <int kChannels, class scalar_t>
void scatter_channels(const TiledLevels<scalar_t>& tiled, const scalar_t* grad_values, int64_t targets, int64_t lookups,
                      int64_t entries_per_lookup, const ScatterSource<scalar_t>& source) {
  TextureScatter<scalar_t, kChannels> scatter(tiled, grad_values, targets, lookups, source);
  const int64_t bytes = tiled.texel_count * tiled.channels * int64_t(sizeof(double));
  if (bytes <= kDirectBytes) {
    scatter.add_directly();
  } else {
    scatter.add_sorted(entries_per_lookup);
  }
}

}  // namespace

template <class scalar_t>
TiledLevels<scalar_t>::TiledLevels(int64_t channel_count) : channels(static_cast<int32_t>(channel_count)) {
  shift = 7;
  while (shift > 2 && (int64_t(sizeof(double)) * channel_count << (2 * shift)) > kTileBytes) --shift;
}

template <class scalar_t>
void TiledLevels<scalar_t>::add(scalar_t* grad, int64_t item_stride, int32_t width, int32_t rows) {
  const int32_t side = 1 << shift, per_row = (width + side - 1) >> shift, per_column = (rows + side - 1) >> shift;
  levels.push_back({grad, item_stride, width, rows, per_row, tile_count, texel_count});
  texel_count += static_cast<int64_t>(width) * rows;
  if (grad != nullptr) tile_count += per_row * per_column;
}

template <class scalar_t>
void scatter_texels(const TiledLevels<scalar_t>& tiled, const scalar_t* grad_values, int64_t targets, int64_t lookups,
                    int64_t entries_per_lookup, const ScatterSource<scalar_t>& source) {
  if (targets == 0 || tiled.tile_count == 0 || tiled.channels == 0) return;
  const auto go = [&](auto count) {
    scatter_channels<decltype(count)::value>(tiled, grad_values, targets, lookups, entries_per_lookup, source);
  };
  if constexpr (std::is_same_v<scalar_t, float>) {
    if (tiled.channels == 1) return go(std::integral_constant<int, 1>());
    if (tiled.channels == 3) return go(std::integral_constant<int, 3>());
    if (tiled.channels == 4) return go(std::integral_constant<int, 4>());
  }
  go(std::integral_constant<int, 0>());
}

template struct TiledLevels<float>;
template struct TiledLevels<double>;
template void scatter_texels(const TiledLevels<float>&, const float*, int64_t, int64_t, int64_t,
                             const ScatterSource<float>&);
template void scatter_texels(const TiledLevels<double>&, const double*, int64_t, int64_t, int64_t,
                             const ScatterSource<double>&);

}  // namespace diffrender
